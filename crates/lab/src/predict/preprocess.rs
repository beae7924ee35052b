//! Second stage: names become files, by the tree of a snapshot, or of what the trace itself shows.
//!
//! What the trace says of success and failure counts more than the tree: a file that a call used without error was there,
//! and is added where the tree has it not ([`Tree::found`]). A lookup that fails ends its chain.

use super::step::{Chain, Kind, Step};
use super::tree::{BLOCK, Tree};
use crate::trace::flags::{CREATE, CUT, DATA_SYNC};
use crate::trace::{Op, Record};
use std::collections::HashMap;

/// `FALLOC_FL_KEEP_SIZE` and `FALLOC_FL_PUNCH_HOLE`.
const KEEP_SIZE: u64 = 1;
const PUNCH_HOLE: u64 = 2;
const ENOENT: u64 = 2;
const ENOTDIR: u64 = 20;
/// Linux reads and writes no more at once.
const IO_MAX: u64 = 0x7fff_f000;
/// Largest file: an offset is a signed number.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Sizes that files had before the trace, as far as the trace shows: by path, how far they were read before anything wrote
/// to them.
#[derive(Debug, Default)]
pub struct Sizes {
    read: HashMap<String, u64>,
    made: HashMap<String, ()>,
}

impl Sizes {
    /// Looks at the next call of the trace.
    pub fn see(&mut self, record: &Record) {
        let wrote = matches!(record.op, Op::Write | Op::Truncate | Op::Fallocate | Op::Copy)
            || record.op == Op::Open && record.flags & (CREATE | CUT) != 0;
        if record.error != 0 || record.path.is_empty() {
            return;
        }
        if wrote && !self.read.contains_key(&record.path) {
            self.made.insert(record.path.clone(), ());
        } else if record.op == Op::Read && !self.made.contains_key(&record.path) {
            let end = record.offset.saturating_add(record.done).min(SIZE_MAX);
            let size = self.read.entry(record.path.clone()).or_default();
            *size = end.max(*size);
        }
    }
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct Open {
    inode: u64,
    directory: u64,
    durable: bool,
}

/// The stage.
#[derive(Debug)]
pub struct Preprocess {
    tree: Tree,
    sizes: Sizes,
    open: HashMap<u64, Open>,
}

impl Preprocess {
    /// Over these names. `sizes` are of files that the tree has not.
    pub fn new(tree: Tree, sizes: Sizes) -> Preprocess {
        Preprocess { tree, sizes, open: HashMap::new() }
    }

    /// The names as they are now.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Annotates a chain.
    pub fn apply(&mut self, chain: &mut Chain) {
        let Some(mut call) = chain.pop() else { return };
        let ends = self.lookups(chain, &call);
        call.ignored = chain.iter().any(|step| step.failed);
        call.failed = call.error != 0;
        let one = ends.first().copied().flatten();
        if let Some(end) = one {
            (call.inode, call.directory) = (end.inode.unwrap_or_default(), end.directory);
        }
        if call.is_done() {
            let name = call.path.rsplit('/').next().unwrap_or_default().to_string();
            match call.op {
                Some(Op::Open) => self.opened(chain, &mut call, one, &name),
                Some(Op::Rename | Op::Link) => {
                    self.renamed(chain, &mut call, one, ends.get(1).copied().flatten(), &name)
                }
                Some(Op::Unlink | Op::Rmdir) => self.unlinked(chain, &mut call, &name),
                Some(Op::Mkdir | Op::Symlink | Op::Mknod) => {
                    if let Some(end) = one {
                        call.inode = self.tree.add(end.directory, &name, call.op == Some(Op::Mkdir));
                    }
                }
                Some(_) => self.used(chain, &mut call),
                None => {}
            }
        }
        chain.push(call);
    }

    /// Resolves the lookups; returns for each path where it ends.
    fn lookups(&mut self, chain: &mut Chain, call: &Step) -> Vec<Option<End>> {
        let mut ends: Vec<Option<End>> = Vec::new();
        let mut above = self.tree.top();
        let mut before = String::new();
        let mut over = false;
        let count = chain.len();
        for at in 0..count {
            let goes_on = |from: &str, to: &str| to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/'));
            let is_last = chain.get(at + 1).is_none_or(|next| !goes_on(&chain[at].path, &next.path));
            let step = &mut chain[at];
            if before.is_empty() || !goes_on(&before, &step.path) {
                above = self.tree.top();
            }
            before.clone_from(&step.path);
            if over {
                step.ignored = true;
                continue;
            }
            step.held = self.tree.is_held(&step.path);
            step.directory = above;
            let name = step.path.rsplit('/').next().unwrap_or_default();
            let mut found = self.tree.child(above, name);
            let made = is_last && makes(call, ends.len());
            let absent = matches!(call.error, ENOENT | ENOTDIR);
            if found.is_none() && !made && !absent {
                found = Some(self.found(above, name, !is_last || is_directory(call.op), &step.path));
            }
            if is_last {
                ends.push(Some(End { inode: found, directory: above }));
            }
            match found {
                Some(inode) => {
                    step.inode = inode;
                    step.size = self.tree.node(inode).map_or(0, |node| node.size);
                    above = inode;
                }
                None => {
                    step.failed = !made;
                    over = !made;
                }
            }
        }
        ends
    }

    /// A file of which nobody told that it is there.
    fn found(&mut self, above: u64, name: &str, directory: bool, path: &str) -> u64 {
        self.tree.found += 1;
        let inode = self.tree.add(above, name, directory);
        if let (Some(size), Some(node)) = (self.sizes.read.get(path), self.tree.node_mut(inode)) {
            node.size = *size;
        }
        inode
    }

    fn opened(&mut self, chain: &mut Chain, call: &mut Step, end: Option<End>, name: &str) {
        let Some(end) = end else { return };
        let inode = match end.inode {
            Some(inode) => inode,
            None => {
                call.kind = Kind::Create;
                self.tree.add(end.directory, name, false)
            }
        };
        call.inode = inode;
        if let Some(node) = self.tree.node_mut(inode) {
            node.open += 1;
            call.size = node.size;
            if call.flags & CUT != 0 && node.size > 0 {
                chain.push(call.before(Kind::Cut));
                node.resize(0);
            }
        }
        if call.file != 0 {
            let durable = call.flags & DATA_SYNC != 0;
            self.open.insert(call.file, Open { inode, directory: end.directory, durable });
        }
    }

    fn renamed(&mut self, chain: &mut Chain, call: &mut Step, from: Option<End>, to: Option<End>, name: &str) {
        let (Some(End { inode: Some(inode), directory }), Some(to)) = (from, to) else { return };
        let new = call.path2.rsplit('/').next().unwrap_or_default().to_string();
        if to.inode == Some(inode) {
            return;
        }
        if let Some(gone) = self.tree.unlink(to.directory, &new) {
            self.cut(chain, call, gone);
        }
        call.directory = to.directory;
        self.tree.link(to.directory, &new, inode);
        if call.op == Some(Op::Rename) {
            self.tree.unlink(directory, name);
        }
    }

    fn unlinked(&mut self, chain: &mut Chain, call: &mut Step, name: &str) {
        call.size = self.tree.node(call.inode).map_or(0, |node| node.size);
        match self.tree.unlink(call.directory, name) {
            Some(gone) => self.cut(chain, call, gone),
            // Its content stays; nothing of it is given up yet.
            None => call.size = 0,
        }
    }

    /// A file is gone: its content is given up before the call.
    fn cut(&mut self, chain: &mut Chain, call: &Step, gone: u64) {
        let node = self.tree.node(gone).cloned().unwrap_or_default();
        chain.push(Step { inode: gone, size: node.size, ..call.before(Kind::Cut) });
        self.tree.drop_node(gone);
    }

    /// A call on a file that is open, or that its path names.
    fn used(&mut self, chain: &mut Chain, call: &mut Step) {
        if let Some(open) = self.open.get(&call.file).filter(|_| call.file != 0) {
            (call.inode, call.directory, call.durable) = (open.inode, open.directory, open.durable);
        } else if call.inode == 0 && !call.path.is_empty() {
            let (above, name) = call.path.rsplit_once('/').unwrap_or(("", &call.path));
            let above = self.tree.find(above).unwrap_or(self.tree.top());
            let found = if name.is_empty() { Some(above) } else { self.tree.child(above, name) };
            let (name, path) = (name.to_string(), call.path.clone());
            call.inode = found.unwrap_or_else(|| self.found(above, &name, is_directory(call.op), &path));
            call.directory = above;
        }
        // Calls that a program is to make have nothing done yet, and copies at the end of their source neither: those ask for far
        // more than there is.
        let left = if call.op == Some(Op::Copy) {
            let source = self.tree.find(&call.path2).and_then(|inode| self.tree.node(inode));
            source.map_or(0, |source| source.size.saturating_sub(call.offset))
        } else {
            u64::MAX
        };
        let Some(node) = self.tree.node_mut(call.inode) else { return };
        call.size = node.size;
        let done = if call.done > 0 { call.done } else { call.len.min(left) }.min(IO_MAX);
        let end = call.offset.min(SIZE_MAX).saturating_add(done).min(SIZE_MAX);
        let blocks = (call.offset.min(SIZE_MAX) / BLOCK, end.div_ceil(BLOCK));
        match call.op {
            Some(Op::Read) => {
                // What was read was there.
                let read = call.offset.saturating_add(call.done).min(SIZE_MAX);
                if call.done > 0 && read > node.size {
                    node.size = read;
                    call.size = read;
                }
                call.done =
                    if call.done > 0 { done } else { node.size.saturating_sub(call.offset).min(call.len).min(IO_MAX) };
                call.holes = node.holes_in(blocks.0, call.offset.saturating_add(call.done).div_ceil(BLOCK));
            }
            Some(Op::Write | Op::Copy) => {
                call.done = done;
                if end > node.size {
                    node.resize(end);
                }
                call.fresh = node.holes_in(blocks.0, blocks.1);
                node.fill(blocks.0, blocks.1);
            }
            Some(Op::Truncate) => {
                let size = call.len.min(SIZE_MAX);
                if size < node.size {
                    chain.push(Step { offset: size, ..call.before(Kind::Cut) });
                }
                node.resize(size);
            }
            Some(Op::Fallocate) if call.flags & PUNCH_HOLE != 0 => {
                let inner = (call.offset.div_ceil(BLOCK), end / BLOCK);
                node.fill(inner.0, inner.1);
                if inner.0 < inner.1 {
                    node.holes.push(inner);
                }
            }
            Some(Op::Fallocate) => {
                if end > node.size && call.flags & KEEP_SIZE == 0 {
                    node.resize(end);
                }
                node.fill(blocks.0, blocks.1);
            }
            Some(Op::Close) => {
                node.open = node.open.saturating_sub(1);
                self.open.remove(&call.file);
                if let Some(gone) = self.tree.forget(call.inode) {
                    self.cut(chain, call, gone);
                }
            }
            _ => {}
        }
    }
}

/// Where a path ends.
#[derive(Clone, Copy, Debug)]
struct End {
    inode: Option<u64>,
    directory: u64,
}

/// Whether the last component of the first or second path of a call may be absent, as the call makes it.
fn makes(call: &Step, which: usize) -> bool {
    match call.op {
        Some(Op::Open) => call.flags & CREATE != 0,
        Some(Op::Mkdir | Op::Symlink | Op::Mknod) => true,
        Some(Op::Rename | Op::Link) => which == 1,
        _ => false,
    }
}

fn is_directory(op: Option<Op>) -> bool {
    matches!(op, Some(Op::Getdents | Op::Rmdir))
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    fn stage() -> Preprocess {
        Preprocess::new(Tree::new("/m"), Sizes::default())
    }

    fn run(stage: &mut Preprocess, record: Record) -> Chain {
        let mut chain = parse(0, &record);
        stage.apply(&mut chain);
        chain
    }

    fn open(file: u64, path: &str, flags: u64) -> Record {
        Record { file, flags, ..Record::new(Op::Open, path) }
    }

    fn write(file: u64, offset: u64, len: u64) -> Record {
        Record { file, offset, len, done: len, ..Record::new(Op::Write, "/m/a") }
    }

    #[test]
    fn a_file_lives_and_dies() {
        let mut stage = stage();
        let made = run(&mut stage, open(1, "/m/a", CREATE));
        let call = made.last().expect("the call");
        assert_eq!((call.kind, made[0].held, made[1].failed), (Kind::Create, true, false));
        let wrote = run(&mut stage, write(1, 0, 5000));
        assert_eq!((wrote[0].inode, wrote[0].size, wrote[0].fresh), (call.inode, 0, 2));
        assert_eq!(run(&mut stage, write(1, 4096, 5000))[0].fresh, 1, "the third block");
        assert_eq!(run(&mut stage, write(1, 1 << 20, 1))[0].fresh, 1, "behind a hole");
        let read = Record { file: 1, len: 1 << 30, ..Record::new(Op::Read, "/m/a") };
        let read = run(&mut stage, read);
        assert_eq!((read[0].done, read[0].holes), ((1 << 20) + 1, 253), "to the end");
        // It is open: its content is given up when it is closed.
        let removed = run(&mut stage, Record::new(Op::Unlink, "/m/a"));
        assert!(removed.iter().all(|step| step.kind != Kind::Cut));
        let closed = run(&mut stage, Record { file: 1, ..Record::new(Op::Close, "/m/a") });
        assert_eq!((closed[0].kind, closed[0].size), (Kind::Cut, (1 << 20) + 1));
        let gone = run(&mut stage, Record { error: ENOENT, ..Record::new(Op::Stat, "/m/a/b") });
        let states: Vec<_> = gone.iter().map(|step| (step.failed, step.ignored)).collect();
        assert_eq!(states, [(false, false), (true, false), (false, true), (true, true)], "first bad component");
    }

    #[test]
    fn copies_end_where_their_source_ends() {
        let mut stage = stage();
        run(&mut stage, open(1, "/m/a", CREATE));
        run(&mut stage, write(1, 0, 5000));
        run(&mut stage, open(2, "/m/b", CREATE));
        let copy = |path2: &str, offset, done| {
            let path2 = path2.into();
            Record { file: 2, path2, offset, len: 1 << 30, done, ..Record::new(Op::Copy, "/m/b") }
        };
        let mut done = |copy| run(&mut stage, copy)[0].done;
        assert_eq!(done(copy("/m/a", 0, 5000)), 5000);
        assert_eq!(done(copy("/m/a", 5000, 0)), 0, "the last one of a program finds the end");
        assert_eq!(done(copy("/m/a", 1000, 0)), 4000, "one that is to be made");
        assert_eq!(done(copy("/m/c", 0, 0)), 0, "nobody knows how much");
    }

    #[test]
    fn opening_and_renaming_give_content_up() {
        let mut stage = stage();
        for (file, path) in [(1, "/m/a"), (2, "/m/b")] {
            run(&mut stage, open(file, path, CREATE));
            run(&mut stage, write(file, 0, 10));
            run(&mut stage, Record { file, ..Record::new(Op::Close, path) });
        }
        let again = run(&mut stage, open(3, "/m/a", CREATE | CUT));
        assert_eq!(again.iter().filter(|step| step.kind == Kind::Cut).map(|step| step.size).collect::<Vec<_>>(), [10]);
        assert_eq!(again.last().expect("the call").kind, Kind::Call, "it was there");
        let rename = run(&mut stage, Record { path2: "/m/b".into(), ..Record::new(Op::Rename, "/m/a") });
        assert_eq!(rename.iter().filter(|step| step.kind == Kind::Cut).map(|step| step.size).collect::<Vec<_>>(), [10]);
        assert_eq!(stage.tree().find("/m/a"), None);
        assert_eq!(stage.tree().find("/m/b"), again.last().map(|step| step.inode));
    }

    #[test]
    fn what_the_trace_uses_was_there() {
        let mut sizes = Sizes::default();
        let read = Record { file: 1, offset: 100, len: 900, done: 700, ..Record::new(Op::Read, "/m/d/f") };
        sizes.see(&read);
        sizes.see(&write(2, 0, 100));
        let mut stage = Preprocess::new(Tree::new("/m"), sizes);
        let chain = run(&mut stage, open(1, "/m/d/f", 0));
        assert_eq!((chain[2].size, stage.tree().found), (800, 2));
        assert_eq!(run(&mut stage, read)[0].inode, chain[2].inode);
        assert_eq!(
            run(&mut stage, Record { file: 9, len: 5, ..Record::new(Op::Read, "") })[0].inode,
            0,
            "nobody knows"
        );
    }
}
