//! Devices that are saved and restored go on as if nothing had been; damaged states are refused, or harmless.

use ashlar_models::{Chance, Completion, Kind, Model, ModelFile, Request, Spec};
use proptest::prelude::*;

/// When everything given to the device before is long done.
const LATER_NS: u64 = 1 << 60;

/// Small specimens of every kind of flash.
fn small() -> Vec<ModelFile> {
    let mut files = Vec::new();
    for name in ["amf-page", "amf-segments", "usb-memorex"] {
        let mut file = ModelFile::preset(name).expect("a preset");
        match &mut file.model {
            Spec::Flash(spec) => {
                (spec.nand.channels, spec.nand.ways) = (2, 1);
                (spec.nand.blocks_per_die, spec.nand.pages_per_block) = (16, 8);
                spec.capacity = (2 * 11 * 8 * 4096).to_string();
                spec.nand.endurance_least = 30.0;
                (spec.nand.endurance_cycles, spec.nand.endurance_deviation) = (60.0, 20.0);
            }
            Spec::Segments(spec) => {
                (spec.nand.channels, spec.nand.ways) = (2, 2);
                (spec.nand.blocks_per_die, spec.nand.pages_per_block) = (8, 2);
                spec.segments = 6;
            }
            Spec::Hybrid(spec) => spec.zones = 1,
            _ => panic!("a flash"),
        }
        if let Spec::Hybrid(spec) = &mut file.model {
            spec.nand.blocks_per_die = 24;
        }
        files.push(file);
    }
    files
}

/// Gives a device requests one after another from `now_ns` on, and waits for each. What it refuses is left out.
fn work(device: &mut dyn Model, chance: &mut Chance, requests: u32, mut now_ns: u64) -> Vec<Completion> {
    let (unit, mut done) = (4096, Vec::new());
    for _ in 0..requests {
        let units = device.capacity() / unit;
        let offset = (chance.unit() * units as f64) as u64;
        let len = 1 + (chance.unit() * 4.0) as u64;
        let kind = match (chance.unit() * 8.0) as u32 {
            0 => Kind::Read,
            1 => Kind::Discard,
            2 => Kind::Flush,
            _ => Kind::Write,
        };
        let mut request = Request { kind, offset: offset * unit, len: len.min(units - offset) * unit, fua: false };
        if kind == Kind::Discard && chance.unit() < 0.5 {
            (request.offset, request.len) = (0, device.capacity());
        }
        if device.submit(now_ns, request).is_ok() {
            while let Some(event_ns) = device.next_event() {
                now_ns = now_ns.max(event_ns);
                device.advance(now_ns, &mut done);
            }
        }
    }
    done
}

fn save(device: &dyn Model) -> Vec<u8> {
    let mut saved = Vec::new();
    device.save(&mut saved).expect("memory takes it");
    saved
}

/// Completions but for their numbers, which begin anew.
fn numbered(done: Vec<Completion>) -> Vec<Completion> {
    done.into_iter().map(|completion| Completion { id: 0, ..completion }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_restored_device_goes_on(seed in any::<u64>(), before in 0u32..600, after in 1u32..200) {
        for file in small() {
            let mut device = file.build(seed).expect("a device");
            let mut chance = Chance::new(seed);
            work(&mut *device, &mut chance, before, 0);
            let saved = save(&*device);
            let mut again = file.build(seed).expect("a device");
            again.restore(&mut saved.as_slice()).expect("what was saved");
            prop_assert_eq!(save(&*again), saved, "{}", file.name);
            let wanted = work(&mut *device, &mut Chance::new(seed + 1), after, LATER_NS);
            let found = work(&mut *again, &mut Chance::new(seed + 1), after, LATER_NS);
            prop_assert_eq!(numbered(found), numbered(wanted), "{}", file.name);
            prop_assert_eq!(again.counters(), device.counters(), "{}", file.name);
        }
    }

    #[test]
    fn damaged_states_are_refused_or_harmless(
        seed in any::<u64>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        for file in small() {
            let mut device = file.build(seed).expect("a device");
            work(&mut *device, &mut Chance::new(seed), 300, 0);
            let mut saved = save(&*device);
            for (at, byte) in &damage {
                let at = at.index(saved.len());
                saved[at] = *byte;
            }
            if let Some(cut) = cut {
                saved.truncate(cut.index(saved.len()));
            }
            let mut again = file.build(seed).expect("a device");
            if again.restore(&mut saved.as_slice()).is_ok() {
                work(&mut *again, &mut Chance::new(seed), 300, LATER_NS);
            }
        }
    }
}
