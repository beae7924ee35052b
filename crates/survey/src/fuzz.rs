//! Fuzz targets: images and file systems in them, states, and lines of traces.

use crate::inside;
use crate::qcow2::Qcow2;
use crate::state;
use crate::tally::{Mode, Part, Tally};
use crate::tests::qcow2_image;
use crate::trace::parse_line;
use ashlar_fuzz::{bounded, config, hostile, noise};
use proptest::prelude::*;
use std::io::Write;

/// A header may ask for a table of 32 MiB, if the file is as long; these are not.
const IMAGE_MEMORY: u64 = 24 << 20;

fn read_all(bytes: &[u8]) {
    let mut file = tempfile();
    file.write_all(bytes).expect("space");
    if Qcow2::is(&file).expect("a file")
        && let Ok(image) = Qcow2::open(file)
    {
        let mut buffer = vec![0; 1 << 16];
        let end = image.size().min(1 << 22);
        for offset in (0..end).step_by(buffer.len()) {
            let _ = image.read_at(offset, &mut buffer);
        }
        let mut runs = 0;
        let _ = image.segments(0, end, &mut |from, to| {
            assert!(from < to && to <= end);
            runs += 1;
            true
        });
    }
}

/// A file without a name.
pub fn tempfile() -> std::fs::File {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let path = std::env::temp_dir().join(format!(
        "ashlar-survey-{}-{:?}-{}",
        std::process::id(),
        std::thread::current().id(),
        NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    ));
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
    std::fs::remove_file(&path).expect("it is ours");
    file.expect("a place for files")
}

fn state_bytes() -> Vec<u8> {
    let mut tallies =
        [Tally::new(Mode::Full, 1 << 20, &std::env::temp_dir()), Tally::new(Mode::Base, 0, &std::env::temp_dir())];
    for value in 0..20 {
        for tally in &mut tallies {
            tally.found(value, value as u32 % 3, 4096, true).expect("space");
            tally.unit(value as u32 % 3, Part { bytes: 4096, zero: 0, first: value % 2 == 0, stratum: 1 }, true);
        }
    }
    let path = std::env::temp_dir().join(format!("ashlar-survey-state-{}", std::process::id()));
    state::save(&path, &state::Progress::default(), &mut tallies).expect("space");
    let bytes = std::fs::read(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is ours");
    bytes
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn qcow2_images(bytes in hostile(any::<u64>().prop_map(qcow2_image))) {
        bounded(IMAGE_MEMORY, || read_all(&bytes));
    }

    #[test]
    fn files_in_images(bytes in hostile(Just(inside::tests::image()))) {
        let data = [(0, (bytes.len() as u64).next_multiple_of(4096))];
        bounded(8 << 20, || inside::tests::are_whole(&inside::tests::parts_of(&bytes, &data), &data));
    }

    #[test]
    fn states(bytes in hostile(Just(state_bytes()))) {
        let directory = std::env::temp_dir();
        bounded(24 << 20, || {
            let mut tallies = [Tally::new(Mode::Full, 1 << 20, &directory), Tally::new(Mode::Base, 0, &directory)];
            let _ = state::decode(&mut bytes.as_slice(), "", &mut tallies);
        });
    }

    #[test]
    fn lines_of_traces(bytes in hostile(Just(b"12345 7 cp 100 8 W 8 0 00112233445566778899aabbccddeeff".to_vec())), more in noise(40)) {
        let _ = parse_line(&String::from_utf8_lossy(&bytes));
        let _ = parse_line(&String::from_utf8_lossy(&more));
    }
}
