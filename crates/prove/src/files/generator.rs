//! Seeded operations: mostly such that work, on few names and at borders where things change.

use super::model::{Body, Model};
use super::operation::{Data, HANDLES, Op, Place, Target};
use crate::seeded::Dice;
use ashlar_vfs::{FallocateMode, FileKind, RenameMode, Time, XattrMode};

/// Names in each directory.
const NAMES: u64 = 6;
/// Directories are made down to this depth.
const DEPTH_MAX: usize = 3;
/// Files stay below this size: past the border between small and large ranges of our own format.
const SIZE_MAX: u64 = (1 << 20) + (96 << 10);
/// Values of extended attributes stay below this length.
const VALUE_MAX: u64 = 2000;
/// Times that every file system can store, in seconds since 1970.
const SECONDS_MAX: u64 = 1 << 31;

/// Who runs the operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Makes histories.
pub(super) struct Generator {
    pub(super) dice: Dice,
    caller: Caller,
    /// Whole trees are removed, too.
    trees: bool,
    /// What has a name, with its node, and handles in use; as of the present operation.
    named: Vec<(Place, usize)>,
}

impl Generator {
    pub(super) fn new(seed: u64, caller: Caller) -> Generator {
        Generator { dice: Dice::new(seed), caller, trees: true, named: Vec::new() }
    }

    /// Without removing trees, if `trees` says so: histories as they were before there was that.
    pub(super) fn with_trees(self, trees: bool) -> Generator {
        Generator { trees, ..self }
    }

    /// The next operation, fit for what the model holds.
    pub(super) fn next(&mut self, model: &Model) -> Op {
        self.named = model.tree();
        loop {
            if let Some(op) = self.any(model) {
                return op;
            }
        }
    }

    fn any(&mut self, model: &Model) -> Option<Op> {
        let handle = self.dice.below(HANDLES as u64) as usize;
        Some(match self.dice.below(48 + u64::from(self.trees)) {
            0..=4 => Op::Create {
                at: self.place(model),
                kind: if self.dice.one_in(6) { FileKind::Fifo } else { FileKind::File },
                permissions: self.permissions(),
                handle: None,
            },
            5 => Op::Create {
                at: self.place(model),
                kind: FileKind::File,
                permissions: self.permissions(),
                handle: Some(handle),
            },
            6..=8 => Op::Mkdir { at: self.place(model), permissions: self.permissions() },
            9 => Op::Symlink { at: self.place(model), target: vec![b'x'; 1 + self.dice.below(250) as usize] },
            10 => {
                let directory = self.node(model, |body| matches!(body, Body::Directory(_)))?;
                Op::Nameless { directory, permissions: self.permissions(), handle }
            }
            11 | 12 => {
                let at = self.node(model, |body| matches!(body, Body::File(_) | Body::Directory(_)))?;
                Op::Open { at, handle }
            }
            13 => {
                model.handles[handle]?;
                Op::Close { handle }
            }
            14 => {
                // What lost its last name cannot be named again, unless it never had one; so Linux.
                let open = &model.nodes[model.handles[handle]?];
                if matches!(open.body, Body::Directory(_)) || (open.links == 0 && !open.nameless) {
                    return None;
                }
                Op::Name { handle, to: self.place(model) }
            }
            15 | 16 => Op::Link { from: self.existing(model), to: self.place(model) },
            17..=20 => Op::Rename {
                from: self.existing(model),
                to: if self.dice.one_in(2) { self.existing(model) } else { self.place(model) },
                mode: self.dice.pick(&[
                    RenameMode::Replace,
                    RenameMode::Whiteout { uid: self.caller.uid, gid: self.caller.gid },
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ]),
            },
            21 | 22 => Op::Unlink { at: self.existing(model) },
            23 => Op::Rmdir { at: self.existing(model) },
            24 | 25 => Op::Read { of: self.data(model)?, offset: self.offset(), len: self.len() },
            26..=30 => {
                let offset = self.offset();
                Op::Write { of: self.data(model)?, offset, data: self.bytes(SIZE_MAX - offset) }
            }
            31 => {
                let of = self.file(model)?;
                let Body::File(bytes) = &model.nodes[model.target(&of).ok()?].body else { return None };
                let room = SIZE_MAX.checked_sub(bytes.len() as u64).filter(|room| *room > 0)?;
                Op::Append { of, data: self.bytes(room) }
            }
            32 | 33 => Op::Truncate { of: self.data(model)?, size: self.offset() },
            34 | 35 => self.fallocate(model)?,
            36 | 37 => self.copy(model)?,
            38 => Op::Extents { of: self.file(model)? },
            39 => Op::SetXattr {
                of: self.attributed(model)?,
                name: self.name(),
                len: self.dice.below(VALUE_MAX),
                mode: self.dice.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]),
            },
            40 => {
                let (of, name) = (self.attributed(model)?, self.name());
                if self.dice.one_in(2) { Op::GetXattr { of, name } } else { Op::RemoveXattr { of, name } }
            }
            41 => Op::Chmod { of: self.settable(model)?, permissions: self.permissions() },
            42 => {
                let (uid, gid) = match self.caller.uid {
                    0 => (self.dice.below(3) as u32, self.dice.below(3) as u32),
                    own => (own, self.caller.gid),
                };
                let of = self.node(model, |_| true)?;
                Op::Chown { of: self.opened(model, of), uid, gid }
            }
            43 => {
                let modified =
                    Time { seconds: self.dice.below(SECONDS_MAX) as i64, nanos: self.dice.below(1_000_000_000) as u32 };
                Op::SetTimes { of: self.settable(model)?, modified }
            }
            44 | 45 => {
                let of = self.node(model, |_| true)?;
                let of = self.opened(model, of);
                if self.dice.one_in(3) { Op::ListXattrs { of: self.attributed(model)? } } else { Op::Stat { of } }
            }
            46 => {
                let directory = self.node(model, |body| matches!(body, Body::Directory(_)))?;
                let meanwhile = self.dice.one_in(2).then(|| self.removable(model, &directory)).flatten();
                Op::List { directory, page: 1 + self.dice.below(4) as usize, meanwhile }
            }
            47 => Op::Fsync { of: self.data(model)?, data_only: self.dice.one_in(2) },
            _ => Op::RemoveTree { at: self.existing(model) },
        })
    }

    fn name(&mut self) -> u8 {
        self.dice.below(NAMES) as u8
    }

    fn permissions(&mut self) -> u32 {
        let any = self.dice.pick(&[0o644, 0o600, 0o755, 0o040]);
        // Who is not root must be able to go on.
        if self.caller.uid == 0 { any } else { any | 0o700 }
    }

    /// A place for a name, taken or not. Now and then nothing can be there.
    fn place(&mut self, model: &Model) -> Place {
        let open: Vec<usize> =
            (0..HANDLES).filter(|handle| model.handles[*handle].is_some_and(|node| model.is_directory(node))).collect();
        if !open.is_empty() && self.dice.one_in(4) {
            return Place { base: Some(self.dice.pick(&open)), names: vec![self.name()] };
        }
        let wrong = self.dice.one_in(30);
        let fits = |(place, node): &&(Place, usize)| match &model.nodes[*node].body {
            Body::Directory(_) => place.names.len() < DEPTH_MAX,
            Body::File(_) => wrong,
            _ => false,
        };
        let directories: Vec<Place> = self.named.iter().filter(fits).map(|(place, _)| place.clone()).collect();
        let mut directory = self.dice.pick(&directories);
        if wrong && self.dice.one_in(3) {
            directory = directory.below(self.name());
            if model.find(&directory).is_ok_and(|node| matches!(model.nodes[node].body, Body::Symlink(_))) {
                directory.names.pop();
            }
        }
        directory.below(self.name())
    }

    /// A place where something is, mostly.
    fn existing(&mut self, model: &Model) -> Place {
        let named: Vec<Place> = self.named.iter().skip(1).map(|(place, _)| place.clone()).collect();
        if named.is_empty() || self.dice.one_in(5) { self.place(model) } else { self.dice.pick(&named) }
    }

    fn node(&mut self, model: &Model, fits: impl Fn(&Body) -> bool) -> Option<Place> {
        let named = self.named.iter().filter(|(_, node)| fits(&model.nodes[*node].body));
        let places: Vec<Place> = named.map(|(place, _)| place.clone()).collect();
        (!places.is_empty()).then(|| self.dice.pick(&places))
    }

    /// Either this, or something that is open.
    fn opened(&mut self, model: &Model, at: Place) -> Target {
        let open: Vec<usize> = (0..HANDLES).filter(|handle| model.handles[*handle].is_some()).collect();
        if open.is_empty() || self.dice.one_in(2) { Target::At(at) } else { Target::Open(self.dice.pick(&open)) }
    }

    /// A file, by name or open.
    fn file(&mut self, model: &Model) -> Option<Target> {
        let is_file = |node: usize| matches!(model.nodes[node].body, Body::File(_));
        let mut all: Vec<Target> = (0..HANDLES)
            .filter(|handle| model.handles[*handle].is_some_and(is_file))
            .flat_map(|handle| [Target::Open(handle), Target::Open(handle)])
            .collect();
        all.extend(self.named.iter().filter(|(_, node)| is_file(*node)).map(|(place, _)| Target::At(place.clone())));
        (!all.is_empty()).then(|| self.dice.pick(&all))
    }

    /// A file; now and then a directory, by name.
    fn data(&mut self, model: &Model) -> Option<Target> {
        if self.dice.one_in(20) {
            return self.node(model, |body| matches!(body, Body::Directory(_))).map(Target::At);
        }
        self.file(model)
    }

    /// What can have extended attributes of users.
    fn attributed(&mut self, model: &Model) -> Option<Target> {
        let at = self.node(model, |body| matches!(body, Body::File(_) | Body::Directory(_)))?;
        Some(self.opened(model, at))
    }

    /// What has permissions and times of its own when named.
    fn settable(&mut self, model: &Model) -> Option<Target> {
        let at = self.node(model, |body| !matches!(body, Body::Symlink(_)))?;
        Some(self.opened(model, at))
    }

    /// A name in a directory that `unlink` takes.
    fn removable(&mut self, model: &Model, directory: &Place) -> Option<u8> {
        let Body::Directory(entries) = &model.nodes[model.find(directory).ok()?].body else { return None };
        let names: Vec<u8> =
            entries.iter().filter(|(_, node)| !model.is_directory(**node)).map(|(name, _)| *name).collect();
        (!names.is_empty()).then(|| self.dice.pick(&names))
    }

    /// Offsets near the borders where things change.
    fn offset(&mut self) -> u64 {
        let border = self.dice.pick(&[0, 4096, 8192, 128 << 10, 1 << 20]);
        let near = if self.dice.one_in(2) { 0 } else { self.dice.below(9000) };
        (border + near).min(SIZE_MAX - 1)
    }

    fn len(&mut self) -> u64 {
        1 + if self.dice.one_in(2) { self.dice.below(200) } else { self.dice.below(70_000) }
    }

    fn bytes(&mut self, len_max: u64) -> Data {
        Data { stamp: self.dice.below(256) as u8, len: self.len().min(len_max) }
    }

    fn fallocate(&mut self, model: &Model) -> Option<Op> {
        let of = self.data(model)?;
        let (mut offset, mut len) = (self.offset(), 1 + self.dice.below(60_000));
        let keep_size = self.dice.one_in(2);
        let mode = self.dice.pick(&[
            FallocateMode::Reserve { keep_size },
            FallocateMode::Zero { keep_size },
            FallocateMode::Punch,
            FallocateMode::Collapse,
            FallocateMode::Insert,
        ]);
        if self.dice.one_in(2) {
            offset = offset / 4096 * 4096;
        }
        if !self.dice.one_in(3) {
            len = len.next_multiple_of(4096);
        }
        Some(Op::Fallocate { of, offset, len, mode })
    }

    fn copy(&mut self, model: &Model) -> Option<Op> {
        let (from, to) = (self.data(model)?, self.data(model)?);
        // Copies within a file may overlap, which is an error of its own.
        if model.target(&from).ok()? == model.target(&to).ok()? {
            return None;
        }
        let (mut from_offset, mut to_offset) = (self.offset(), self.offset());
        if !self.dice.one_in(3) {
            (from_offset, to_offset) = (from_offset / 4096 * 4096, to_offset / 4096 * 4096);
        }
        let len = (1 + self.dice.below(100_000)).min(SIZE_MAX - from_offset.max(to_offset));
        Some(Op::Copy { from, from_offset, to, to_offset, len })
    }
}
