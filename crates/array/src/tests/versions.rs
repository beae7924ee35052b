//! Arrays of every version that was ever written, as they lie on their members: they must open and be whole.
//!
//! A new version gets a picture of its own: `cargo test -p ashlar-array print_ -- --ignored --nocapture` prints it.

use super::*;
use crate::Pace;
use ashlar_fuzz::{image_of, sketch};
use std::sync::atomic::AtomicBool;

/// RAID-6 of five, with one group each.
const MEMBERS: usize = 5;
const CAPACITY: Blocks = Blocks(2 + JOURNAL_MIN.0 + 64);
/// What a picture has between members.
const NEXT: &str = "member";
/// Blocks that were written, each of them nearly all zeros.
const WRITTEN: std::ops::Range<u64> = 5..16;

fn content(at: u64) -> Bytes {
    let mut block = vec![0; BLOCK_LEN];
    block[..8].copy_from_slice(b"contents");
    block[100] = at as u8;
    block.into()
}

fn run<F: Future<Output = ()> + Send + 'static>(body: impl FnOnce(Env) -> F) {
    let sim = Sim::new(1, Schedule::Fifo);
    let env = sim.env();
    sim.run(body(env)).expect("no deadlock");
}

fn named(members: &[Device]) -> Vec<NamedDevice> {
    let member = |(slot, device): (usize, &Device)| NamedDevice { name: format!("{slot}"), device: device.clone() };
    members.iter().enumerate().map(member).collect()
}

#[test]
#[ignore = "prints the picture of a new version"]
fn print_a_picture() {
    run(|env| async move {
        let members: Vec<Device> = (0..MEMBERS).map(|_| Arc::new(Memory::new(CAPACITY)) as Device).collect();
        let creation = Creation { level: Level::Raid6, ..CREATION };
        Array::create(&env, &named(&members), creation, |_, _| ()).await.expect("an array can be made");
        let array = Array::open(&env, named(&members), 0, Options::default()).await.expect("it opens");
        let pieces = WRITTEN.map(content).collect();
        BlockDevice::write(&array, CONTEXT, Lba(WRITTEN.start), pieces, Durability::Forced).await.expect("written");
        for (slot, member) in members.iter().enumerate() {
            let image = member.read(CONTEXT, Lba(0), CAPACITY).await.expect("a device");
            println!("{NEXT} {slot}\n{}", sketch(&image));
        }
    });
}

#[test]
fn arrays_of_version_1_open_whole_and_degraded() {
    let picture = include_str!("version1.txt");
    for lost in [vec![], vec![1, 3], vec![0, 4]] {
        run(|env| async move {
            let mut members: Vec<Device> = Vec::new();
            for text in picture.split(NEXT).skip(1) {
                let member: Device = Arc::new(Memory::new(CAPACITY));
                let image = image_of(text, CAPACITY.to_bytes().0 as usize);
                member.write(CONTEXT, Lba(0), vec![image.into()], Durability::Cached).await.expect("a device");
                members.push(member);
            }
            assert_eq!(members.len(), MEMBERS);
            let mut there = named(&members);
            for slot in lost.iter().rev() {
                there.remove(*slot);
            }
            let array = Array::open(&env, there, lost.len(), Options::default()).await.expect("it opens");
            for at in 0..array.shape().capacity().0 {
                let expected = if WRITTEN.contains(&at) { content(at) } else { vec![0; BLOCK_LEN].into() };
                assert!(read(&array, at).await.expect("it can be read") == expected, "block {at}, without {lost:?}");
            }
            let scrubbed = array.check(Pace::default(), &AtomicBool::new(false), |_| ()).await.expect("a scrub");
            assert_eq!(array.status().members.len(), MEMBERS);
            assert_eq!((scrubbed.groups > 0, scrubbed.wrong, scrubbed.lost), (true, 0, 0), "{scrubbed:?}");
        });
    }
}
