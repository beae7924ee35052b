//! What flash models must do.

use ashlar_models::endurance::{Wear, predict};
use ashlar_models::flash::{Cleaning, FlashSpec, Hybrid, HybridSpec, NandSpec, PageMapped, SegmentSpec, Segments};
use ashlar_models::{Chance, Completion, Model, ModelFile, Refused, Request, SECTOR, Spec, closed_loop, open_loop};
use proptest::prelude::*;

fn flash() -> FlashSpec {
    let Spec::Flash(spec) = ModelFile::preset("amf-page").unwrap().model else { panic!("a flash") };
    *spec
}
fn segments() -> SegmentSpec {
    let Spec::Segments(spec) = ModelFile::preset("amf-segments").unwrap().model else { panic!("segments") };
    *spec
}
fn card(name: &str) -> HybridSpec {
    let Spec::Hybrid(spec) = ModelFile::preset(name).unwrap().model else { panic!("a card") };
    *spec
}

/// A small drive: two dies of 16 blocks of 8 pages.
fn small_flash() -> FlashSpec {
    let mut spec = flash();
    spec.nand.channels = 2;
    spec.nand.ways = 1;
    spec.nand.blocks_per_die = 16;
    spec.nand.pages_per_block = 8;
    spec.capacity = (2 * 11 * 8 * 4096).to_string();
    spec
}

fn small_segments() -> SegmentSpec {
    let mut spec = segments();
    spec.nand.channels = 2;
    spec.nand.ways = 2;
    spec.nand.blocks_per_die = 8;
    spec.nand.pages_per_block = 2;
    spec.segments = 6;
    spec
}

/// Every block bears exactly so many cycles.
fn wear_after(nand: &mut NandSpec, cycles: f64) {
    nand.endurance_deviation = 0.0;
    (nand.endurance_least, nand.endurance_cycles, nand.endurance_most) = (cycles, cycles, cycles);
}

/// Submits one request and waits for it.
fn run(model: &mut dyn Model, request: Request) -> Result<Completion, Refused> {
    let now_ns = 0;
    let id = model.submit(now_ns, request)?;
    let mut done = Vec::new();
    while let Some(event_ns) = model.next_event() {
        model.advance(event_ns, &mut done);
    }
    Ok(*done.iter().find(|completion| completion.id == id).unwrap())
}

fn any_request(chance: &mut Chance, capacity: u64, grain: u64) -> Request {
    let units = capacity / grain;
    let len = 1 + chance.below(20.min(units));
    let offset = chance.below(units - len + 1) * grain;
    match chance.below(10) {
        0 => Request::flush(),
        1 => Request::discard(offset, len * grain),
        2..6 => Request::write(offset, len * grain),
        _ => Request::read(offset, len * grain),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_request_is_done_once_and_its_time_is_accounted_for(seed: u64, which in 0usize..7) {
        let names = ["ssd-tlc", "amf-page", "amf-segments", "usb-generic", "usb-house", "usb-memorex", "network-disk"];
        let file = ModelFile::preset(names[which]).unwrap();
        let run = || {
            let mut model = file.build(seed).unwrap();
            let mut chance = Chance::new(seed);
            let (mut now_ns, mut taken, mut done) = (0, 0u64, Vec::new());
            let grain = if which == 2 { 4096 } else { SECTOR };
            let requests: Vec<_> = (0..200).map(|_| {
                now_ns += chance.below(3) * chance.below(1_000_000);
                (now_ns, any_request(&mut chance, model.capacity(), grain))
            }).collect();
            for (at_ns, request) in requests {
                while model.next_event().is_some_and(|event_ns| event_ns < at_ns) {
                    model.advance(at_ns, &mut done);
                }
                // Segments refuse what breaks their rules; nothing else refuses anything here.
                match model.submit(at_ns, request) {
                    Ok(_) => taken += 1,
                    Err(refused) => assert!(which == 2, "{refused}"),
                }
            }
            while model.next_event().is_some() {
                model.advance(u64::MAX, &mut done);
            }
            (done, taken, model.counters())
        };
        let (done, taken, counters) = run();
        prop_assert_eq!(&(done.clone(), taken, counters), &run(), "the same seed gives the same run");
        let mut ids: Vec<u64> = done.iter().map(|completion| completion.id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..taken).collect::<Vec<u64>>());
        prop_assert!(done.windows(2).all(|pair| pair[0].done_ns <= pair[1].done_ns));
        for completion in &done {
            prop_assert_eq!(completion.split.total_ns(), completion.response_ns(), "{:?}", completion);
        }
    }

    #[test]
    fn a_page_map_counts_its_pages_and_never_runs_out(seed: u64, cost_benefit: bool) {
        let mut spec = small_flash();
        spec.cleaning = if cost_benefit { Cleaning::CostBenefit } else { Cleaning::Greedy };
        let mut drive = PageMapped::new(&spec, seed).unwrap();
        let mut chance = Chance::new(seed);
        let pages = drive.capacity() / 4096;
        let mut written = 0;
        for _ in 0..3000 {
            let (at, len) = (chance.below(pages), 1 + chance.below(3));
            let len = len.min(pages - at);
            let request = match chance.below(8) {
                0 => Request::discard(at * 4096, len * 4096),
                1 => Request::read(at * 4096, len * 4096),
                _ => { written += len; Request::write(at * 4096, len * 4096) }
            };
            run(&mut drive, request).unwrap();
        }
        let counters = drive.counters();
        prop_assert_eq!(counters.host_pages, written);
        prop_assert_eq!(counters.programs, written + counters.copies);
        prop_assert_eq!(u64::from(drive.wear().iter().sum::<u32>()), counters.erases);
        // What was programmed fits into what was erased, and the drive's blocks.
        prop_assert!(counters.programs <= (counters.erases + 32) * 8);
        prop_assert!(counters.write_amplification() > 1.0);
    }
}

#[test]
fn discarded_space_is_spare_and_sequential_writes_are_not_copied() {
    let mut drive = PageMapped::new(&small_flash(), 0).unwrap();
    let capacity = drive.capacity();
    for _ in 0..20 {
        for page in 0..capacity / 4096 {
            run(&mut drive, Request::write(page * 4096, 4096)).unwrap();
        }
    }
    assert_eq!(drive.counters().copies, 0, "sequential overwrites leave whole blocks stale");
    // Random writes over a quarter, the rest discarded, cost less than with the rest in use.
    let cost = |discard: bool| {
        let mut drive = PageMapped::new(&small_flash(), 0).unwrap();
        for page in 0..capacity / 4096 {
            run(&mut drive, Request::write(page * 4096, 4096)).unwrap();
        }
        if discard {
            run(&mut drive, Request::discard(capacity / 4, capacity / 4 * 3)).unwrap();
        }
        let mut chance = Chance::new(9);
        for _ in 0..2000 {
            run(&mut drive, Request::write(chance.below(capacity / 4 / 4096) * 4096, 4096)).unwrap();
        }
        drive.counters().copies
    };
    assert!(cost(true) * 2 < cost(false), "{} and {}", cost(true), cost(false));
}

#[test]
fn cost_benefit_copies_less_than_greedy_when_most_writes_go_to_few_pages() {
    let copies = |cleaning| {
        let mut spec = small_flash();
        spec.nand.blocks_per_die = 256;
        spec.nand.pages_per_block = 32;
        spec.capacity = (2 * 200 * 32 * 4096).to_string();
        spec.cleaning = cleaning;
        let mut drive = PageMapped::new(&spec, 0).unwrap();
        let pages = drive.capacity() / 4096;
        let mut chance = Chance::new(4);
        let mut left = 0..200_000u64;
        let next = || {
            left.next().map(|i| {
                let hot = chance.below(10) < 9;
                let page = if i < pages {
                    i
                } else if hot {
                    chance.below(pages / 10)
                } else {
                    chance.below(pages)
                };
                Request::write(page * 4096, 4096)
            })
        };
        closed_loop(&mut drive, 0, 8, next, |_| {}).unwrap();
        drive.counters().copies
    };
    assert!(copies(Cleaning::CostBenefit) < copies(Cleaning::Greedy));
}

#[test]
fn a_write_buffer_hides_the_program_and_a_flush_waits_for_it() {
    let mut spec = small_flash();
    spec.write_buffer = "16KiB".into();
    let mut drive = PageMapped::new(&spec, 0).unwrap();
    let mut done = Vec::new();
    let requests = [Request::write(0, 4096), Request::flush(), Request::write_fua(8192, 4096)];
    open_loop(&mut drive, requests.map(|request| (0, request)), |completion| done.push(*completion)).unwrap();
    done.sort_by_key(|completion| completion.id);
    assert!(done[0].response_ns() < 10_000 && done[1].response_ns() > 400_000 && done[2].response_ns() > 400_000);
}

#[test]
fn a_worn_out_drive_refuses_writes_and_still_reads() {
    let mut spec = small_flash();
    spec.nand.endurance_cycles = 20.0;
    spec.nand.endurance_deviation = 5.0;
    spec.nand.endurance_least = 10.0;
    spec.nand.endurance_most = 30.0;
    spec.nand.bad_blocks_ppm = 30_000.0;
    spec.capacity = (2 * 8 * 8 * 4096).to_string();
    let mut drive = PageMapped::new(&spec, 3).unwrap();
    let pages = drive.capacity() / 4096;
    let mut chance = Chance::new(1);
    let mut written = 0;
    let refused = loop {
        match run(&mut drive, Request::write(chance.below(pages) * 4096, 4096)) {
            Ok(_) => written += 1,
            Err(refused) => break refused,
        }
        assert!(written < 100_000, "a block bears twenty cycles");
    };
    assert!(matches!(refused, Refused::WornOut { .. }));
    // Good blocks, their cycles, and the pages of each bound what could be written.
    assert!((500..=32 * 30 * 8).contains(&written), "{written}");
    assert!(drive.counters().bad_blocks > 2);
    run(&mut drive, Request::read(0, pages * 4096)).unwrap();
}

#[test]
fn a_page_map_below_a_log_copies_twice() {
    // Lee et al., FAST '16, Figures 5 and 6. Files A, B, C and D, an inode map in two parts, and a check-point; then E,
    // a new B, F and G, and the changed part of the map and the check-point. The order is ours: the one in which the
    // blocks 0, 2 and 3 of the figure hold A, D and E and one stale page each.
    let mut spec = small_flash();
    spec.nand.channels = 1;
    spec.nand.pages_per_block = 2;
    spec.capacity = (11 * 2 * 4096).to_string();
    let mut drive = PageMapped::new(&spec, 0).unwrap();
    let (a, b, c, d, e, new_b, f, g) = (0, 1, 2, 3, 4, 5, 6, 7);
    let (map0, map1, check) = (16, 17, 18);
    let write = |drive: &mut PageMapped, page: u64| run(drive, Request::write(page * 4096, 4096)).unwrap();
    for page in [a, b, c, map1, d, map0, check] {
        write(&mut drive, page);
    }
    for page in [e, new_b, f, g, map0, check] {
        write(&mut drive, page);
    }
    // The log has no use for the old B, and says so only when it cleans its segment; the drive learns it from a discard.
    run(&mut drive, Request::discard(b * 4096, 4096)).unwrap();
    drive.clean(0, 3);
    let counters = drive.counters();
    assert_eq!((counters.copies, counters.erases), (3, 3));
    // Then the log cleans segment 0: A, C and D move, and the segment is discarded.
    for page in [8, 9, 10] {
        write(&mut drive, page);
    }
    run(&mut drive, Request::discard(0, 4 * 4096)).unwrap();
    assert_eq!(drive.counters().copies + 3, 6, "copies of the drive and of the log");

    // Segments: the log copies the same three, and the device erases the two blocks of the segment.
    let mut spec = small_segments();
    spec.nand.channels = 2;
    spec.nand.ways = 1;
    let mut device = Segments::new(&spec, 0).unwrap();
    let segment = device.segment_bytes();
    assert_eq!(segment, 4 * 4096);
    run(&mut device, Request::write(0, segment)).unwrap();
    run(&mut device, Request::write(segment, segment)).unwrap();
    run(&mut device, Request::write(2 * segment, 3 * 4096)).unwrap();
    run(&mut device, Request::discard(0, segment)).unwrap();
    let counters = device.counters();
    assert_eq!((counters.copies, counters.erases), (0, 2));
}

#[test]
fn segments_are_written_once_and_trimmed_whole() {
    let mut spec = small_segments();
    let mut device = Segments::new(&spec, 0).unwrap();
    // S = 8, C = 4: the example of the paper, 800 sectors earlier.
    assert_eq!(device.segment_bytes(), 8 * 4096);
    assert_eq!(device.place(4096), (0, 1, 0));
    let page = |page: u64, pages: u64| Request::write(page * 4096, pages * 4096);
    run(&mut device, page(0, 5)).unwrap();
    let before = device.counters();
    assert_eq!(run(&mut device, page(4, 1)), Err(Refused::Rewrite { sector: 4 }));
    // Lanes 1 to 3 have their first page only, but sector 4 is taken.
    assert_eq!(run(&mut device, page(3, 4)), Err(Refused::Rewrite { sector: 3 }));
    assert_eq!(device.counters(), before, "what is refused changes nothing");
    run(&mut device, page(5, 3)).unwrap();
    let partial = run(&mut device, Request::discard(0, 4 * 4096));
    assert!(matches!(partial, Err(Refused::PartialSegment { .. })));
    run(&mut device, Request::discard(0, 8 * 4096)).unwrap();
    run(&mut device, page(0, 8)).unwrap();
    // The least worn good blocks are taken: rewriting one segment wears all blocks alike.
    for _ in 0..80 {
        run(&mut device, Request::discard(0, 8 * 4096)).unwrap();
        run(&mut device, page(0, 8)).unwrap();
    }
    let (least, most) = (device.wear().iter().min().unwrap(), device.wear().iter().max().unwrap());
    assert!(most - least <= 1, "{:?}", device.wear());
    let counters = device.counters();
    assert_eq!((counters.programs, counters.copies), (counters.host_pages, 0));
    spec.segments = 9;
    assert!(Segments::new(&spec, 0).unwrap_err().to_string().starts_with("segments = 9"));
}

#[test]
fn grouped_writes_merge_once_where_mixed_ones_merge_four_times() {
    // Boboila and Desnoyers, FAST '10, Figure 14: three free blocks, one of them kept empty.
    let merges = |blocks: [u64; 6]| {
        let mut spec = card("usb-memorex");
        spec.free_blocks = 3;
        spec.log_blocks = 2;
        let mut device = Hybrid::new(&spec, 0).unwrap();
        for (page, block) in blocks.into_iter().enumerate() {
            let offset = block * device.block_bytes() + page as u64 * 2048;
            run(&mut device, Request::write(offset, 2048)).unwrap();
        }
        device.counters().merges
    };
    assert_eq!(merges([70, 10, 50, 70, 10, 50]), 4);
    assert_eq!(merges([70, 70, 10, 10, 50, 50]), 1);
}

/// Writes the first page of a zone until it is refused; how many were taken.
fn write_until_dead(device: &mut Hybrid, zone: u32) -> u64 {
    let mut written = 0;
    let first = Request::write(device.zone_offset(zone), 512);
    while run(device, first).is_ok() {
        written += 1;
        assert!(written < 1_000_000);
    }
    written
}

#[test]
fn a_rotating_free_list_dies_when_all_its_blocks_have() {
    let mut spec = card("usb-generic");
    wear_after(&mut spec.nand, 1000.0);
    let mut device = Hybrid::new(&spec, 0).unwrap();
    // (m + 1) h - 1 with m = 6: the data block wears as well.
    assert_eq!(write_until_dead(&mut device, 0), 6999);
    // Other zones live on.
    for zone in 1..16 {
        let first = Request::write(device.zone_offset(zone), 512);
        run(&mut device, first).unwrap();
    }
    assert!(matches!(run(&mut device, Request::write(512, 512)), Err(Refused::WornOut { .. })));
    run(&mut device, Request::read(0, 512)).unwrap();
}

#[test]
fn a_log_block_multiplies_the_life_of_the_free_list() {
    let mut spec = card("usb-house");
    wear_after(&mut spec.nand, 100.0);
    let mut device = Hybrid::new(&spec, 0).unwrap();
    let written = write_until_dead(&mut device, 0) as f64;
    let (least, most) = predict(Wear::LogBlock, 30.0, 64.0, 100.0, 2048.0);
    assert!(least < written && written < most, "{least} < {written} < {most}");
}

#[test]
fn several_pages_cost_half_the_erases_of_one() {
    let spec = card("usb-house");
    let erases = |pages: u64| {
        let mut device = Hybrid::new(&spec, 0).unwrap();
        for i in 0..64 {
            let offset = (i % 2) * device.block_bytes();
            run(&mut device, Request::write(offset, pages * 4096)).unwrap();
        }
        device.counters().erases
    };
    assert_eq!(erases(2), 64 * 2);
    assert_eq!(erases(1), 63 * 4);
}

#[test]
fn erasing_becomes_slower_and_programming_faster_with_wear() {
    let mut spec = card("usb-generic");
    wear_after(&mut spec.nand, 100.0);
    spec.free_blocks = 6;
    let age = |growth: f64, shrink: f64| {
        let mut spec = spec.clone();
        (spec.nand.erase_growth, spec.nand.program_shrink) = (growth, shrink);
        let mut device = Hybrid::new(&spec, 0).unwrap();
        let mut responses = Vec::new();
        let (mut now_ns, mut done) = (0, Vec::new());
        while device.submit(now_ns, Request::write(0, 512)).is_ok() {
            while let Some(event_ns) = device.next_event() {
                device.advance(event_ns, &mut done);
            }
            let completion = done.pop().unwrap();
            now_ns = completion.done_ns;
            responses.push(completion.response_ns());
        }
        responses
    };
    let slower = age(1.0, 0.0);
    assert!(slower.windows(2).all(|pair| pair[0] <= pair[1]) && slower[0] < slower[slower.len() - 1]);
    let faster = age(0.0, 0.3);
    assert!(faster.windows(2).all(|pair| pair[0] >= pair[1]) && faster[0] > faster[faster.len() - 1]);
}

#[test]
fn impossible_flash_is_refused() {
    let refuse = |spec: &HybridSpec, name: &str| {
        let error = Hybrid::new(spec, 0).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    };
    let mut spec = card("usb-memorex");
    spec.free_blocks = 4;
    refuse(&spec, "free_blocks = 4");
    let mut spec = card("usb-memorex");
    spec.log_pages = 65;
    refuse(&spec, "log_pages = 65");
    let mut spec = card("usb-memorex");
    spec.zones = 3;
    refuse(&spec, "zones = 3");
    let mut spec = flash();
    spec.capacity = "17.2GB".into();
    assert!(PageMapped::new(&spec, 0).unwrap_err().to_string().starts_with("capacity = 17.2GB"));
    spec = flash();
    spec.nand.read_us = vec![1.0, 2.0];
    assert!(PageMapped::new(&spec, 0).unwrap_err().to_string().starts_with("nand.read_us"));
    spec = flash();
    spec.nand.page = "3000".into();
    assert!(PageMapped::new(&spec, 0).unwrap_err().to_string().starts_with("nand.page"));
}
