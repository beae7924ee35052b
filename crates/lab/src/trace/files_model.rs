//! Property tests: tables of descriptors against a model in which every process has a plain list of its own.

use super::counts::Cause;
use super::event::{Caught, Event, What};
use super::host::Past;
use super::tracker::Tracker;
use super::{Op, Record};
use crate::trace::calls::{Known, known};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What a process may do. Descriptors are below eight, so that they meet.
#[derive(Clone, Debug)]
enum Act {
    Open(u32, bool),
    Dup(u32, u32, bool),
    Close(u32),
    CloseRange(u32, u32, bool),
    CloseOnExec(u32, bool),
    /// Another process; whether it shares the descriptors.
    Fork(bool),
    Unshare,
    Exec,
    Exit,
    Read(u32, u64),
    Seek(u32, u64),
}

fn act() -> impl Strategy<Value = Act> {
    let fd = || 0..8u32;
    prop_oneof![
        6 => (fd(), any::<bool>()).prop_map(|(fd, exec)| Act::Open(fd, exec)),
        4 => (fd(), fd(), any::<bool>()).prop_map(|(from, to, exec)| Act::Dup(from, to, exec)),
        4 => fd().prop_map(Act::Close),
        1 => (fd(), fd(), any::<bool>()).prop_map(|(first, last, exec)| Act::CloseRange(first, last, exec)),
        1 => (fd(), any::<bool>()).prop_map(|(fd, set)| Act::CloseOnExec(fd, set)),
        2 => any::<bool>().prop_map(Act::Fork),
        1 => Just(Act::Unshare),
        1 => Just(Act::Exec),
        1 => Just(Act::Exit),
        4 => (fd(), 1..100u64).prop_map(|(fd, len)| Act::Read(fd, len)),
        1 => (fd(), 0..100u64).prop_map(|(fd, to)| Act::Seek(fd, to)),
    ]
}

/// A descriptor: the number of its open file, and whether it is closed when another program begins.
type List = BTreeMap<u32, (u64, bool)>;

/// Processes name a list; those that share have the same.
#[derive(Default)]
struct Model {
    processes: BTreeMap<u32, usize>,
    lists: Vec<List>,
    positions: BTreeMap<u64, u64>,
    /// What must be told: opened and closed files, and reads with their offsets.
    told: Vec<(Op, u64, u64)>,
}

impl Model {
    fn open_files(&self) -> BTreeSet<u64> {
        let lists: BTreeSet<usize> = self.processes.values().copied().collect();
        lists.iter().flat_map(|list| self.lists[*list].values().map(|(file, _)| *file)).collect()
    }

    /// Changes lists; open files that no list has any more are closed.
    fn change(&mut self, change: impl FnOnce(&mut Model)) {
        let before = self.open_files();
        change(self);
        let after = self.open_files();
        self.told.extend(before.difference(&after).map(|file| (Op::Close, *file, 0)));
    }

    fn set(&mut self, list: usize, fd: u32, file: u64, close_on_exec: bool) {
        self.lists[list].insert(fd, (file, close_on_exec));
    }

    fn own(&mut self, process: u32) {
        let list = self.lists[self.processes[&process]].clone();
        self.lists.push(list);
        self.processes.insert(process, self.lists.len() - 1);
    }
}

fn call(name: &str, args: &[u64], result: i64) -> What {
    let Known::Call(call) = known(name) else { panic!("{name} is in the table") };
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let path = call.path.map(|_| b"/f".to_vec());
    What::Call(Caught {
        call,
        latency_ns: 0,
        args: all,
        path,
        path2: None,
        extra: [None; 2],
        result,
        end: None,
        hints: Vec::new(),
    })
}

/// Does the same to both.
fn step(model: &mut Model, tracker: &mut Tracker<Past>, process: u32, act: &Act, next: &mut (u32, u64)) {
    let list = model.processes[&process];
    let get = |model: &Model, fd: u32| model.lists[list].get(&fd).map(|(file, _)| *file);
    const EXEC: u64 = 0o2_000_000;
    let what = match *act {
        Act::Open(fd, exec) => {
            next.1 += 1;
            let file = next.1;
            model.change(|model| model.set(list, fd, file, exec));
            model.told.push((Op::Open, file, 0));
            model.positions.insert(file, 0);
            call("open", &[1, u64::from(exec) * EXEC], fd.into())
        }
        Act::Dup(from, to, exec) => {
            let Some(file) = get(model, from).filter(|_| from != to) else { return };
            model.change(|model| model.set(list, to, file, exec));
            call("dup3", &[from.into(), to.into(), u64::from(exec) * EXEC], to.into())
        }
        Act::Close(fd) => {
            let result = if get(model, fd).is_some() { 0 } else { -9 };
            model.change(|model| model.lists[list].retain(|other, _| *other != fd));
            call("close", &[fd.into()], result)
        }
        Act::CloseRange(first, last, exec) => {
            model.change(|model| {
                let within = |fd: &u32| (first..=last).contains(fd);
                match exec {
                    true => {
                        model.lists[list].iter_mut().filter(|(fd, _)| within(fd)).for_each(|(_, slot)| slot.1 = true)
                    }
                    false => model.lists[list].retain(|fd, _| !within(fd)),
                }
            });
            call("close_range", &[first.into(), last.into(), u64::from(exec) * 4], 0)
        }
        Act::CloseOnExec(fd, set) => {
            let Some(slot) = model.lists[list].get_mut(&fd) else { return };
            slot.1 = set;
            call("fcntl", &[fd.into(), 2, set.into()], 0)
        }
        Act::Fork(shares) => {
            next.0 += 1;
            let child = next.0;
            model.processes.insert(child, list);
            if !shares {
                model.own(child);
            }
            What::Fork { child, flags: u64::from(shares) * 0x400 }
        }
        Act::Unshare => {
            model.own(process);
            call("unshare", &[0x400], 0)
        }
        Act::Exec => {
            model.own(process);
            let own = model.processes[&process];
            model.change(|model| model.lists[own].retain(|_, (_, exec)| !*exec));
            What::Exec { old: process }
        }
        Act::Exit => {
            if model.processes.len() == 1 {
                return;
            }
            model.change(|model| model.processes.retain(|other, _| *other != process));
            What::Exit
        }
        Act::Read(fd, len) => {
            let Some(file) = get(model, fd) else { return };
            let position = model.positions.entry(file).or_default();
            model.told.push((Op::Read, file, *position));
            *position += len;
            call("read", &[fd.into(), 0, len], len as i64)
        }
        Act::Seek(fd, to) => {
            let Some(file) = get(model, fd) else { return };
            model.positions.insert(file, to);
            call("lseek", &[fd.into(), to, 0], to as i64)
        }
    };
    tracker.event(Event { at_ns: 0, thread: process, process: None, what });
}

proptest! {
    #![proptest_config(ashlar_fuzz::config(500))]

    #[test]
    fn tables_are_as_the_model_says(acts in prop::collection::vec((any::<prop::sample::Index>(), act()), 1..80)) {
        let mut tracker = Tracker::new(Past { directory: "/".into() }, None);
        let mut model = Model { processes: [(1, 0)].into(), lists: vec![List::new()], ..Model::default() };
        // The first process comes without standard input and output.
        tracker.event(Event { at_ns: 0, thread: 1, process: None, what: call("close_range", &[0, 9, 0], 0) });
        let mut next = (1, 0);
        for (index, act) in &acts {
            let processes: Vec<u32> = model.processes.keys().copied().collect();
            let process = *index.get(&processes);
            step(&mut model, &mut tracker, process, act, &mut next);
            let mut expected = std::mem::take(&mut model.told);
            let mut told: Vec<(Op, u64, u64)> =
                tracker.take().map(|Record { op, file, offset, .. }| (op, file, offset)).collect();
            expected.sort_unstable();
            told.sort_unstable();
            prop_assert_eq!(told, expected, "{:?} of process {}", act, process);
        }
        prop_assert_eq!(tracker.counts().of(Cause::MissingDescriptor), 0);
        prop_assert!(tracker.counts().dropped.is_empty());
    }
}
