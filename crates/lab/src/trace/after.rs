//! Which calls of other lanes must be done before a call can be: those that decide what it finds. Who runs a trace waits for
//! them, and who predicts it counts with that.
//!
//! A call on an open file waits for its opening, and closing for all that use it. A call on a name waits for whoever made,
//! renamed or removed it last, or a directory above, or closed the file after writing; and a call that makes, renames or removes
//! waits for all before it that use the name, and those below a directory that goes. A read does not wait for a write.
//!
//! Costs    a node for each name, and for each of those the last use by each lane; an entry for each open file.

use super::Op;
use super::flags::{CREATE, READ_WRITE, WRITE};
use std::collections::HashMap;

/// A lane, and how many of its calls must be done.
pub type Done = (u32, u32);

/// What of a call decides.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What.
    pub op: Op,
    /// Its path, of names between slashes.
    pub path: &'a str,
    /// The other one.
    pub path2: &'a str,
    /// The number of the open file; zero for none.
    pub file: u64,
    /// As the call has them.
    pub flags: u64,
}

impl<'a> From<&'a super::Record> for Asked<'a> {
    fn from(record: &'a super::Record) -> Asked<'a> {
        let super::Record { op, path, path2, file, flags, .. } = record;
        Asked { op: *op, path, path2, file: *file, flags: *flags }
    }
}

impl Asked<'_> {
    /// The second path, where it is one of a file.
    fn second(&self) -> Option<&str> {
        matches!(self.op, Op::Rename | Op::Link | Op::Copy).then_some(self.path2)
    }
}

/// Who changed something last, and who used it since: for each lane the last position.
#[derive(Clone, Debug, Default)]
struct Resource {
    change: Option<Done>,
    users: Vec<Done>,
}

impl Resource {
    fn all(&self, wanted: &mut Vec<Done>) {
        wanted.extend(self.change);
        wanted.extend(&self.users);
    }

    fn used(&mut self, (lane, position): Done) {
        match self.users.iter_mut().find(|(user, _)| *user == lane) {
            Some((_, last)) => *last = position,
            None => self.users.push((lane, position)),
        }
    }

    fn changed(&mut self, by: Done) {
        self.change = Some(by);
        self.users.clear();
    }
}

/// The node that is above all others.
const ROOT: usize = 0;

/// A name below another.
#[derive(Debug, Default)]
struct Node {
    above: u32,
    below: HashMap<Box<str>, u32>,
    resource: Resource,
    /// It is removed or renamed at some time: who does that waits for whatever happens below.
    goes: bool,
}

#[derive(Debug, Default)]
struct Open {
    resource: Resource,
    writable: bool,
}

/// Tells it, call by call. Two passes: [`see`](After::see) all calls, then [`next`](After::next) the same ones.
#[derive(Debug)]
pub struct After {
    /// The root, and what is below.
    nodes: Vec<Node>,
    files: HashMap<u64, Open>,
    /// Calls of each lane so far.
    positions: Vec<u32>,
    /// What a lane knows to be done of another one.
    known: HashMap<(u32, u32), u32>,
    wanted: Vec<Done>,
}

impl Default for After {
    fn default() -> After {
        let (nodes, files, positions) = (vec![Node::default()], HashMap::new(), Vec::new());
        After { nodes, files, positions, known: HashMap::new(), wanted: Vec::new() }
    }
}

impl After {
    fn node(&mut self, path: &str) -> usize {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
            at = match self.nodes[at].below.get(name) {
                Some(node) => *node as usize,
                None => {
                    let next = self.nodes.len();
                    self.nodes[at].below.insert(name.into(), next as u32);
                    self.nodes.push(Node { above: at as u32, ..Node::default() });
                    next
                }
            };
        }
        at
    }

    /// First pass.
    pub fn see(&mut self, asked: Asked) {
        if matches!(asked.op, Op::Rmdir | Op::Rename) {
            let node = self.node(asked.path);
            self.nodes[node].goes = true;
        }
        if asked.op == Op::Rename {
            let node = self.node(asked.path2);
            self.nodes[node].goes = true;
        }
    }

    /// Second pass: the next call, of this lane. Returns what it waits for beyond what its lane has waited for before.
    pub fn next(&mut self, lane: u32, asked: Asked) -> &[Done] {
        let index = lane as usize;
        if index >= self.positions.len() {
            self.positions.resize(index + 1, 0);
        }
        self.positions[index] += 1;
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        self.ask((lane, self.positions[index]), asked, &mut wanted);
        // Of each lane the last, what is before it goes without saying.
        wanted.sort_unstable_by(|one, other| other.cmp(one));
        let known = &mut self.known;
        wanted.retain(|(other, position)| {
            if *other == lane {
                return false;
            }
            let known = known.entry((lane, *other)).or_default();
            let new = position > known;
            *known = (*known).max(*position);
            new
        });
        self.wanted = wanted;
        &self.wanted
    }

    fn ask(&mut self, me: Done, asked: Asked, wanted: &mut Vec<Done>) {
        let Asked { op, path, file, flags, .. } = asked;
        let mut was_written = false;
        if file != 0 {
            let open = self.files.entry(file).or_default();
            match op {
                Op::Open => {
                    open.writable = flags & (WRITE | READ_WRITE) != 0;
                    open.resource.changed(me);
                }
                Op::Close => {
                    open.resource.all(wanted);
                    was_written = open.writable;
                    // Its number is never used again.
                    self.files.remove(&file);
                }
                _ => {
                    wanted.extend(open.resource.change);
                    open.resource.used(me);
                }
            }
        }
        let by_name = file == 0 || op == Op::Open;
        let changes = by_name
            && (matches!(op, Op::Mkdir | Op::Rmdir | Op::Unlink | Op::Rename | Op::Symlink | Op::Mknod)
                || op == Op::Open && flags & CREATE != 0);
        let first = self.node(path);
        let second = asked.second().map(|path| (self.node(path), op != Op::Copy));
        for (node, changes) in [(first, changes)].into_iter().chain(second) {
            if by_name {
                match changes {
                    true => self.nodes[node].resource.all(wanted),
                    false => wanted.extend(self.nodes[node].resource.change),
                }
                self.ask_above(me, node, wanted);
            }
            let resource = &mut self.nodes[node].resource;
            if changes { resource.changed(me) } else { resource.used(me) }
        }
        // What was written is found by those who open it later.
        if was_written {
            self.nodes[first].resource.change = Some(me);
        }
    }

    fn ask_above(&mut self, me: Done, node: usize, wanted: &mut Vec<Done>) {
        let mut at = node;
        while at != ROOT {
            at = self.nodes[at].above as usize;
            let directory = &mut self.nodes[at];
            wanted.extend(directory.resource.change);
            if directory.goes {
                directory.resource.used(me);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Record;

    /// What each call waits for.
    fn waits(calls: &[(u32, Record)]) -> Vec<Vec<Done>> {
        let mut after = After::default();
        calls.iter().for_each(|(_, record)| after.see(record.into()));
        calls.iter().map(|(lane, record)| after.next(*lane, record.into()).to_vec()).collect()
    }

    #[test]
    fn a_name_is_waited_for() {
        let two = |op, path: &str, path2: &str| Record { path2: path2.into(), ..Record::new(op, path) };
        let calls = [
            (0, Record::new(Op::Stat, "/d/a")),
            (1, Record::new(Op::Mkdir, "/d")),
            (2, Record { flags: CREATE | 1, file: 5, ..Record::new(Op::Open, "/d/a") }),
            (0, Record::new(Op::Stat, "/d/a")),
            (0, Record::new(Op::Stat, "/d/a")),
            (2, Record { file: 5, ..Record::new(Op::Close, "/d/a") }),
            (1, Record::new(Op::Stat, "/d/a")),
            (3, two(Op::Rename, "/d", "/e")),
            (4, Record::new(Op::Stat, "/elsewhere")),
        ];
        let expected: [&[Done]; 9] =
            [&[], &[(0, 1)], &[(0, 1), (1, 1)], &[(2, 1), (1, 1)], &[], &[], &[(2, 2)], &[(1, 2), (2, 1), (0, 3)], &[]];
        for (waits, expected) in waits(&calls).iter().zip(expected) {
            let sorted = |waits: &[Done]| {
                let mut waits = waits.to_vec();
                waits.sort_unstable();
                waits
            };
            assert_eq!(sorted(waits), sorted(expected));
        }
    }

    #[test]
    fn an_open_file_is_waited_for() {
        let on = |op, flags| Record { file: 1, flags, ..Record::new(op, "/a") };
        let calls = [(0, on(Op::Open, 0)), (1, on(Op::Read, 0)), (2, on(Op::Read, 0)), (0, on(Op::Close, 0))];
        assert_eq!(waits(&calls), [vec![], vec![(0, 1)], vec![(0, 1)], vec![(2, 1), (1, 1)]]);
    }
}
