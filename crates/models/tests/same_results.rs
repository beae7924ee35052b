//! What flash with a page map does is the same to the last nanosecond, however its tables are laid out: sums over long runs of
//! all kinds of requests, taken from the first implementation.

use ashlar_models::flash::Cleaning;
use ashlar_models::{Chance, Completion, ModelFile, Request, Spec, closed_loop};

/// A drive so small that it cleans most of the time and wears out in the end.
fn small(preset: &str, cleaning: Cleaning, pages_per_block: u32, blocks_per_die: u32, ways: u32) -> ModelFile {
    let mut file = ModelFile::preset(preset).expect("a preset");
    let Spec::Flash(spec) = &mut file.model else { panic!("a flash") };
    let nand = &mut spec.nand;
    (nand.channels, nand.ways) = (2, ways);
    (nand.blocks_per_die, nand.pages_per_block) = (blocks_per_die, pages_per_block);
    (nand.endurance_least, nand.endurance_cycles, nand.endurance_most) = (40.0, 80.0, 120.0);
    nand.endurance_deviation = 20.0;
    nand.bad_blocks_ppm = 20_000.0;
    (nand.erase_growth, nand.program_shrink) = (0.5, 0.2);
    spec.cleaning = cleaning;
    let pages = 2 * ways * (blocks_per_die - 6) * pages_per_block;
    spec.capacity = (pages * 4096).to_string();
    spec.host.depth = 5;
    file
}

/// FNV-1a over everything that a run says.
#[derive(Clone, Copy)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, numbers: &[u64]) {
        for byte in numbers.iter().flat_map(|number| number.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    fn completion(&mut self, done: &Completion) {
        let split = done.split;
        self.add(&[done.id, done.submitted_ns, done.done_ns, split.queue_ns, split.overhead_ns, split.transfer_ns]);
    }
}

/// Runs a drive until it wears out or 60,000 requests are done; gives their number and the sum.
fn run(file: &ModelFile, seed: u64) -> (u64, u64) {
    let mut model = file.build(seed).expect("a drive");
    let (mut chance, mut sum) = (Chance::new(seed), Sum(0xcbf2_9ce4_8422_2325));
    let sectors = model.capacity() / 512;
    let (mut given, mut count) = (0, 0);
    let next = || {
        given += 1;
        let at = chance.below(sectors);
        // Mostly whole pages, most of them in a few places.
        let at = if chance.below(4) > 0 { at / 8 * 8 / (1 + 7 * (at % 2)) / 8 * 8 } else { at };
        let len = (8 * (1 + chance.below(3))).min(sectors - at);
        let request = match chance.below(16) {
            0..4 => Request::read(at * 512, len * 512),
            4 => Request::discard(at * 512, len * 512),
            5 => Request::flush(),
            6 => Request::write_fua(at * 512, len * 512),
            _ => Request::write(at * 512, len * 512),
        };
        (given <= 60_000).then_some(request)
    };
    let ended = closed_loop(model.as_mut(), 0, 12, next, |done| {
        count += 1;
        sum.completion(done);
    });
    let counters = model.counters();
    sum.add(&[counters.host_pages, counters.programs, counters.copies, counters.erases, counters.bad_blocks]);
    sum.add(&[u64::from(ended.is_err())]);
    // What a restart keeps is part of it.
    let mut saved = Vec::new();
    model.save(&mut saved).expect("saved");
    sum.add(&saved.iter().map(|byte| u64::from(*byte)).collect::<Vec<_>>());
    (count, sum.0)
}

#[test]
fn runs_are_what_they_were() {
    let drives = [
        small("ssd-tlc", Cleaning::Greedy, 16, 32, 2),
        small("ssd-tlc", Cleaning::CostBenefit, 12, 40, 3),
        small("amf-page", Cleaning::Greedy, 8, 24, 1),
        small("amf-page", Cleaning::CostBenefit, 32, 16, 4),
    ];
    let found: Vec<_> = drives.iter().flat_map(|drive| [1, 2].map(|seed| run(drive, seed))).collect();
    assert_eq!(found, EXPECTED);
}

/// Requests done, and sums, of each drive with seeds 1 and 2.
const EXPECTED: [(u64, u64); 8] = [
    (27223, 0xd9d7_432d_c92c_05d4),
    (22414, 0xf889_5ae5_2e3d_792d),
    (28057, 0x5aa0_551b_96bc_ccbb),
    (30379, 0x43e7_e31d_57b2_8a49),
    (8781, 0xc1cd_0e79_b6fe_98d5),
    (5699, 0xc169_5307_6d75_a763),
    (60000, 0x189a_859a_51c4_844e),
    (60000, 0x4d1d_d5f5_0bb6_fcea),
];
