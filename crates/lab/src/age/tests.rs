//! Ageing of a subject in memory: killed anywhere, it ends as if it had not been.

use super::*;
use crate::history::synthetic::{Common, Sizes, profile::Profile};
use crate::history::{Builder, Header, HistoryReader, Writing};
use crate::layout::Files;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Files in memory, with room for so many bytes.
#[derive(Default)]
struct Memory {
    room: u64,
    there: BTreeMap<u64, (u64, u8, u64)>,
    log: Vec<String>,
    /// Operations until the program is killed, in the middle of one.
    life: Option<u64>,
    again: bool,
}

impl Memory {
    fn new(room: u64) -> Memory {
        Memory { room, ..Memory::default() }
    }

    fn used(&self) -> u64 {
        self.there.values().map(|found| found.2).sum()
    }

    /// Ends the life of the program when its time has come; before or after the operation took effect.
    fn live(&mut self) -> bool {
        match &mut self.life {
            Some(0) => false,
            Some(life) => {
                *life -= 1;
                true
            }
            None => true,
        }
    }
}

fn killed() -> io::Error {
    io::Error::other("killed")
}

fn place(id: u64, alive: &Alive) -> (u64, u8) {
    alive.get(&id).map(|live| (live.parent, live.name_len)).expect("the driver knows it")
}

impl Subject for Memory {
    fn repeating(&mut self, again: bool) {
        self.again = again;
    }
    fn at(&mut self, _now_ns: i64) {}
    fn make_directory(&mut self, id: u64, alive: &Alive) -> Result<(), Refusal> {
        let (parent, len) = place(id, alive);
        assert!(parent == ROOT || self.there.contains_key(&parent));
        let old = self.there.insert(id, (parent, len, 0));
        assert!(old.is_none() || self.again);
        if !self.live() {
            return Err(Refusal::Io(killed()));
        }
        self.log.push(format!("mkdir {id}"));
        Ok(())
    }
    fn write(&mut self, id: u64, old: u64, keep: u64, how: Writing, alive: &Alive) -> Result<(), Refusal> {
        let (parent, len) = place(id, alive);
        let size = alive.get(&id).expect("alive").size;
        assert!(parent == ROOT || self.there.contains_key(&parent));
        let found = self.there.get(&id).map_or(0, |found| found.2);
        assert!(found == old || self.again, "{id} has {found} bytes and not {old}");
        if self.used() - found + size > self.room {
            return Err(Refusal::Full);
        }
        self.there.insert(id, (parent, len, size));
        if !self.live() {
            return Err(Refusal::Io(killed()));
        }
        self.log.push(format!("write {id} {keep} {size} {}", how.sync));
        Ok(())
    }
    fn rename(&mut self, id: u64, _from: (u64, u8), alive: &Alive) -> Result<(), Refusal> {
        let to = place(id, alive);
        let found = self.there.get_mut(&id).expect("it is there");
        (found.0, found.1) = to;
        if !self.live() {
            return Err(Refusal::Io(killed()));
        }
        self.log.push(format!("rename {id}"));
        Ok(())
    }
    fn delete(&mut self, id: u64, _alive: &Alive) -> io::Result<()> {
        assert!(self.there.values().all(|found| found.0 != id), "{id} is not empty");
        let old = self.there.remove(&id);
        assert!(old.is_some() || self.again, "{id} is not there");
        if !self.live() {
            return Err(killed());
        }
        self.log.push(format!("delete {id}"));
        Ok(())
    }
    fn give_up(&mut self, id: u64, _alive: &Alive) -> io::Result<()> {
        self.there.remove(&id);
        Ok(())
    }
    fn write_back(&mut self, id: u64, _alive: &Alive) -> io::Result<()> {
        assert!(self.there.contains_key(&id) || self.again);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn look(&mut self, _alive: &Alive) -> io::Result<Look> {
        Ok(Look { used: self.used() as f64 / self.room as f64, ..Look::default() })
    }
}

fn home(name: &str) -> PathBuf {
    let home = std::env::temp_dir().join(format!("ashlar-age-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&home).expect("made");
    home
}

/// A history of so many bytes; the number of its records.
fn history(to: &Path, capacity: u64) -> u64 {
    let sizes = Sizes::Even(1, 40_000);
    let common = Common { capacity, sizes, directories: 5, sync_share: 0.02, write_unit: 4096, seed: 1 };
    let curve = vec![(4.0, 0.9), (8.0, 0.5)];
    let profile = Profile { common, days: 8, utilization: curve, turnover: 0.3, short_lived: 0.5, short_sizes: sizes };
    let mut builder = Builder::new(1 << 20, &std::env::temp_dir());
    let stop = AtomicBool::new(false);
    profile.run(&mut builder, &stop, &|_| {}).expect("no interruption");
    let header = Header { source: "test".into(), models: Vec::new(), seed: 1, capacity };
    builder.finish(to, &header, &stop).expect("space").0.records
}

fn run(
    history: &Path,
    total: u64,
    memory: &mut impl Subject,
    state: &mut State,
) -> Result<(Done, Vec<Point>), AgeError> {
    let options = AgeOptions { scale: Scale::ONE, writeback: Writeback::LINUX, when_full: WhenFull::Skip, seed: 1 };
    let mut reader = HistoryReader::new(std::fs::File::open(history).expect("it is there")).expect("a history");
    age(&mut reader, total, memory, &options, state, &AtomicBool::new(false), &|_| {})
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn killed_anywhere_it_ends_the_same(lives in prop::collection::vec(0..400u64, 0..5), room in 300_000..1_200_000u64, name: u64) {
        let home = home(&format!("killed-{name:x}"));
        let file = home.join("h");
        let total = history(&file, 1 << 20);
        let mut whole = Memory::new(room);
        let expected = run(&file, total, &mut whole, &mut State::nowhere()).expect("nothing fails");
        let mut memory = Memory::new(room);
        let mut state = State::begin(&home.join("s"), "this").expect("space");
        for life in lives {
            memory.life = Some(life);
            match run(&file, total, &mut memory, &mut state) {
                Err(AgeError::Io(_, error)) => prop_assert_eq!(error.to_string(), "killed"),
                other => drop(other.expect("it lived long enough")),
            }
            state = State::resume(&home.join("s"), "this").expect("the same run");
        }
        memory.life = None;
        let done = run(&file, total, &mut memory, &mut state).expect("nothing fails");
        std::fs::remove_dir_all(&home).expect("it is ours");
        prop_assert_eq!(&memory.there, &whole.there);
        prop_assert_eq!(done.0, expected.0);
        prop_assert_eq!(done.1.len(), expected.1.len());
        // What the killed operation did is not in the log, and what was done again stands once.
        prop_assert!(memory.log == whole.log, "another log, of {} and not {}", memory.log.len(), whole.log.len());
    }
}

#[test]
fn a_full_file_system_is_told_or_ends_it() {
    let home = home("full");
    let file = home.join("h");
    let total = history(&file, 1 << 20);
    let mut memory = Memory::new(400_000);
    let (done, points) = run(&file, total, &mut memory, &mut State::nowhere()).expect("nothing fails");
    assert!(done.refused > 0 && done.first_full.is_some() && done.skipped > 0, "{done:?}");
    assert!(memory.used() <= memory.room && memory.used() > memory.room / 3, "it goes on: {}", memory.used());
    assert!(points.len() as u64 >= POINTS && points.iter().all(|point| point.used <= 1.0), "{}", points.len());
    let options = AgeOptions { scale: Scale::ONE, writeback: Writeback::LINUX, when_full: WhenFull::Stop, seed: 1 };
    let mut reader = HistoryReader::new(std::fs::File::open(&file).expect("it is there")).expect("a history");
    let (stop, mut memory) = (AtomicBool::new(false), Memory::new(400_000));
    let ended = age(&mut reader, total, &mut memory, &options, &mut State::nowhere(), &stop, &|_| {});
    assert!(matches!(ended, Err(AgeError::Full(record)) if Some(record) == done.first_full));
    std::fs::remove_dir_all(&home).expect("it is ours");
}

#[test]
fn a_scaled_history_keeps_its_share() {
    let home = home("scaled");
    let file = home.join("h");
    let total = history(&file, 32 << 20);
    let mut reader = HistoryReader::new(std::fs::File::open(&file).expect("it is there")).expect("a history");
    let live = reader.closing().expect("whole").live_bytes;
    for wanted in [live / 3, 5 * live / 2] {
        let scale = Scale::to(live, wanted).expect("it is not empty");
        let options = AgeOptions { scale, writeback: Writeback::LINUX, when_full: WhenFull::Skip, seed: 1 };
        let mut reader = HistoryReader::new(std::fs::File::open(&file).expect("it is there")).expect("a history");
        let (stop, mut memory) = (AtomicBool::new(false), Memory::new(u64::MAX));
        let done = age(&mut reader, total, &mut memory, &options, &mut State::nowhere(), &stop, &|_| {});
        assert_eq!(done.expect("nothing fails").0.skipped, 0);
        let share = memory.used() as f64 / wanted as f64;
        assert!((0.8..1.2).contains(&share), "{share} of what was wanted");
    }
    std::fs::remove_dir_all(&home).expect("it is ours");
}

#[test]
fn a_run_is_only_its_own() {
    let home = home("own");
    State::begin(&home, "this").expect("space");
    assert!(State::is_there(&home));
    assert!(matches!(State::resume(&home, "that"), Err(state::StateError::Other { found, .. }) if found == "this"));
    assert_eq!(State::resume(&home, "this").expect("the same").position(), 0);
    let elsewhere = r#"{"what":"this","boot":"another"}"#;
    std::fs::write(home.join("run.json"), elsewhere).expect("space");
    assert!(matches!(State::resume(&home, "this"), Err(state::StateError::Restarted(_))));
    std::fs::write(home.join("clean"), "").expect("space");
    State::resume(&home, "this").expect("it was put away");
    std::fs::remove_dir_all(&home).expect("it is ours");
}

#[test]
fn a_directory_ages() {
    let home = home("directory");
    let file = home.join("h");
    let total = history(&file, 1 << 20);
    std::fs::create_dir(home.join("d")).expect("made");
    let options = AgeOptions { scale: Scale::ONE, writeback: Writeback::LINUX, when_full: WhenFull::Skip, seed: 1 };
    let mut reader = HistoryReader::new(std::fs::File::open(&file).expect("it is there")).expect("a history");
    let mut subject = Directory::new(&home.join("d"), 1).expect("a directory");
    let stop = AtomicBool::new(false);
    let done = age(&mut reader, total, &mut subject, &options, &mut State::nowhere(), &stop, &|_| {});
    let (done, points) = done.expect("space");
    assert_eq!((done.skipped, done.refused), (0, 0));
    let mut reader = HistoryReader::new(std::fs::File::open(&file).expect("it is there")).expect("a history");
    let closing = reader.closing().expect("whole");
    let (mut files, mut directories, mut bytes) = (0, 0, 0);
    let walked = crate::walk::walk(&home.join("d"), &stop, &mut |entry, _| {
        match entry.kind {
            crate::walk::Kind::File => {
                files += 1;
                bytes += entry.size;
            }
            _ => directories += 1,
        }
        Ok(())
    });
    walked.expect("a tree");
    assert_eq!((files, directories), (closing.live_files, closing.live_directories + 1));
    assert!(bytes <= closing.live_bytes && bytes + 4096 * files > closing.live_bytes);
    assert_eq!(points.last().map(|point| point.files), Some(files));
    std::fs::remove_dir_all(&home).expect("it is ours");
}

#[test]
fn our_files_age_in_virtual_time() {
    let home = home("own-files");
    let file = home.join("h");
    let total = history(&file, 16 << 20);
    let mut reader = HistoryReader::new(std::fs::File::open(&file).expect("it is there")).expect("a history");
    let closing = reader.closing().expect("whole");
    let disk = ashlar_models::ModelFile::preset("wd-re3").expect("it is there");
    let aged = |size: u64| {
        let mut own = Own::new(Bytes(size), &disk, 7).expect("a disk");
        let (done, points) = run(&file, total, &mut own, &mut State::nowhere()).expect("nothing fails");
        let layout = own.layout().expect("it can be read");
        (own, done, points, layout)
    };
    let (mut own, done, points, layout) = aged(128 << 20);
    assert_eq!((done.skipped, done.refused), (0, 0));
    // The history counts whole blocks.
    let Files { files, bytes, .. } = layout.all;
    assert_eq!(files, closing.live_files);
    assert!(bytes <= closing.live_bytes && bytes + 4096 * files > closing.live_bytes);
    // Files that are written at once lie together in a log.
    assert_eq!(layout.all.score, Some(1.0), "{layout:?}");
    let days = points.last().map_or(0.0, |point| point.day);
    assert!((own.seconds() / 86_400.0 - days).abs() < 0.01, "{} s for {days} days", own.seconds());
    let (_, again, same, like) = aged(128 << 20);
    assert_eq!((done, &points, &layout), (again, &same, &like), "another run of the same seed");
    let speed = own.read_speed().expect("it can be read");
    assert_eq!(speed.bytes, bytes);
    let mut copy = own.fresh_copy(Bytes(128 << 20), &disk, 7).expect("there is room");
    assert_eq!(copy.read_speed().expect("it can be read").bytes, bytes);
    let (_, done, ..) = aged(16 << 20);
    assert!(done.refused > 0 && done.first_full.is_some(), "{done:?}");
    std::fs::remove_dir_all(&home).expect("it is ours");
}

/// What is alive after each record of a history that is lived for some years, by the wrapper's own records alone.
fn lived(file: &Path, span_ns: i64, years: f64) -> (Vec<Record>, BTreeMap<u64, u64>) {
    let open = || HistoryReader::new(std::fs::File::open(file)?);
    let mut source = years::Years::new(open, span_ns, years).expect("a history");
    let (mut records, mut files) = (Vec::new(), BTreeMap::new());
    while let Some(record) = years::Source::record(&mut source).expect("a history") {
        match record.act {
            Act::Create { size, .. } => assert!(files.insert(record.id, size).is_none(), "made twice"),
            Act::Modify { size, .. } => drop(files.insert(record.id, size).expect("it is there")),
            Act::Delete => drop(files.remove(&record.id)),
            Act::MakeDirectory { .. } | Act::Move { .. } => {}
        }
        records.push(record);
    }
    (records, files)
}

#[test]
fn a_history_is_cut_or_lived_again() {
    const YEAR_NS: f64 = 365.0 * 86_400e9;
    let home = home("years");
    let file = home.join("h");
    history(&file, 4 << 20);
    let mut reader = HistoryReader::new(std::fs::File::open(&file).expect("it is there")).expect("a history");
    let closing = reader.closing().expect("whole");
    let passes = |times: f64| (closing.span_ns as f64 + 1e9) * times / YEAR_NS;
    let (once, end) = lived(&file, closing.span_ns, passes(0.9999999));
    assert_eq!(once.len() as u64, closing.records);
    let (half, _) = lived(&file, closing.span_ns, passes(0.5));
    assert!(half.len() < once.len() && half[..] == once[..half.len()], "a part of it");
    let (thrice, last) = lived(&file, closing.span_ns, passes(2.9999999));
    assert!(thrice[..once.len()] == once[..] && thrice.len() as u64 > 3 * (closing.records - closing.live_files));
    assert!(thrice.is_sorted_by_key(|record| record.at_ns));
    let made = |records: &[Record]| records.iter().filter(|record| matches!(record.act, Act::Create { .. })).count();
    assert_eq!(made(&thrice), 3 * made(&once));
    let (most, now) = (end.values().sum::<u64>(), last.values().sum::<u64>());
    assert!(now <= most && now > most / 2, "{now} bytes, after {most} in the first pass");
    assert!(last.keys().all(|id| !end.contains_key(id)), "all have turned over");
    let (mut memory, open) = (Memory::new(u64::MAX), || HistoryReader::new(std::fs::File::open(&file)?));
    let mut source = years::Years::new(open, closing.span_ns, passes(2.9999999)).expect("a history");
    let options = AgeOptions { scale: Scale::ONE, writeback: Writeback::LINUX, when_full: WhenFull::Skip, seed: 1 };
    let stop = AtomicBool::new(false);
    let done =
        age(&mut source, 1000, &mut memory, &options, &mut State::nowhere(), &stop, &|_| {}).expect("nothing fails");
    assert_eq!((done.0.records, done.0.skipped), (thrice.len() as u64, 0));
    assert_eq!(done.1.last().map(|point| point.record), Some(thrice.len() as u64));
    assert_eq!(memory.used(), now);
    std::fs::remove_dir_all(&home).expect("it is ours");
}
