//! Consistency of names and inodes.

use crate::Files;
use crate::keys::{self, Entry, Record, decode_record};
use ashlar_inodes::{COLLISIONS_MAX, FIXES_MAX, visit};
use ashlar_vfs::{FileKind, Ino, ROOT, Result};
use bytes::Bytes;
use std::ops::ControlFlow;

/// Inodes that are compared with all entries in one pass, at most: 40 MiB of [`Seen`].
const INODES_PER_PASS_MAX: usize = 1 << 20;

/// Sentences that are kept; the rest is counted.
const WRONG_MAX: usize = 1000;

/// What an audit found wrong. Each is a defect of this software, for transactions keep names and inodes together, or comes of keys
/// that were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Inodes that exist.
    pub inodes: u64,
    /// Directory entries.
    pub entries: u64,
    /// Sentences for people.
    pub wrong: Vec<String>,
}

/// What makes something right that follows from the rest.
pub(crate) enum Fix {
    /// A name leads to an inode that is gone: it is made anew from what is left, or the name goes.
    Inode {
        ino: Ino,
        kind: FileKind,
        directory: Ino,
        position: u64,
        entry: Entry,
    },
    /// No lookup reaches the entry at this position, since one before it in its chain is gone.
    Chain {
        directory: Ino,
        position: u64,
    },
    /// A directory with names in it is gone.
    Directory(Ino),
    Links(Ino, u64),
    Parent(Ino, Ino),
    /// It has a name.
    NoOrphan(Ino),
}

/// Findings, and what would mend them.
#[derive(Default)]
pub(crate) struct Findings {
    wrong: Vec<String>,
    more: u64,
    pub(crate) fixes: Vec<Fix>,
    /// Inodes that no name leads to.
    pub(crate) nameless: Vec<Ino>,
}

impl Findings {
    fn note(&mut self, what: String) {
        if self.wrong.len() < WRONG_MAX { self.wrong.push(what) } else { self.more += 1 }
    }
    fn fix(&mut self, what: String, fix: Fix) {
        self.note(what);
        if self.fixes.len() < FIXES_MAX {
            self.fixes.push(fix);
        }
    }
    fn sentences(mut self) -> Vec<String> {
        self.wrong.sort_unstable();
        if self.more > 0 {
            self.wrong.push(format!("and {} more", self.more));
        }
        self.wrong
    }
}

/// An inode, and what names it.
struct Seen {
    ino: Ino,
    parent: Ino,
    kind: FileKind,
    links: u32,
    names: u32,
    subdirectories: u32,
    orphan: bool,
}

impl Files {
    /// Compares all entries with all inodes, up to a million inodes at a time. Nothing may change meanwhile: audit a snapshot.
    pub async fn audit(&self) -> Result<Audit> {
        self.audit_by(self.inodes_per_pass()).await
    }

    /// Inodes that memory has room for, in one pass.
    pub(crate) fn inodes_per_pass(&self) -> usize {
        self.pool().held_beside(size_of::<Seen>()).min(INODES_PER_PASS_MAX)
    }

    async fn audit_by(&self, inodes_per_pass: usize) -> Result<Audit> {
        let (audit, findings) = self.findings(inodes_per_pass).await?;
        Ok(Audit { wrong: findings.sentences(), ..audit })
    }

    /// An audit, so many inodes at a time.
    pub(crate) async fn findings(&self, inodes_per_pass: usize) -> Result<(Audit, Findings)> {
        let (mut audit, mut findings) = (Audit::default(), Findings::default());
        let mut next = Some(0);
        while let Some(low) = next {
            let (mut inodes, above) = self.inodes_from(low, inodes_per_pass).await?;
            audit.inodes += inodes.len() as u64;
            audit.entries = self.count_names(low, above, &mut inodes, &mut findings).await?;
            inodes.iter().for_each(|inode| inode.judge(&mut findings));
            next = above;
        }
        Ok((audit, findings))
    }

    /// Some inodes from `low` on in order, and the first that is not among them.
    async fn inodes_from(&self, low: Ino, count: usize) -> Result<(Vec<Seen>, Option<Ino>)> {
        // Growing would hold them twice.
        let (mut inodes, mut above) = (Vec::with_capacity(count), None);
        let note = |key: &[u8], value: &Bytes| {
            let ino = keys::ino_in(key)?;
            if inodes.len() == count {
                above = Some(ino);
                return Ok(ControlFlow::Break(()));
            }
            let Record { kind, links, parent, .. } = decode_record(ino, value)?;
            inodes.push(Seen { ino, parent, kind, links, names: 0, subdirectories: 0, orphan: false });
            Ok(ControlFlow::Continue(()))
        };
        visit(&self.volume, &keys::inode(low), &[keys::INODE + 1], note).await?;
        for orphan in self.numbers_under(keys::ORPHAN, keys::ino_in).await? {
            find(&mut inodes, orphan).into_iter().for_each(|inode| inode.orphan = true);
        }
        Ok((inodes, above))
    }

    /// Reads all entries; counts those that concern the inodes `low..above`. Gives how many there are in all.
    async fn count_names(
        &self,
        low: Ino,
        above: Option<Ino>,
        inodes: &mut [Seen],
        findings: &mut Findings,
    ) -> Result<u64> {
        let concerns = |ino: Ino| ino >= low && above.is_none_or(|above| ino < above);
        let mut entries = 0;
        // Whose chain goes on behind which position.
        let mut chain = None;
        let note = |key: &[u8], value: &Bytes| {
            let directory = keys::ino_in(key)?;
            let position = keys::number_in(key, 9).ok_or_else(|| keys::damaged("a key is cut short"))?;
            let entry = Entry::decode(value)?;
            let Entry { ino, kind, ref name, more } = entry;
            let reached = position % COLLISIONS_MAX == 0 || chain == Some((directory, position - 1));
            chain = (reached && more).then_some((directory, position));
            if ino == 0 {
                return Ok(ControlFlow::Continue(()));
            }
            let place = || format!("{:?} in directory {directory}", String::from_utf8_lossy(name));
            if !reached && concerns(directory) {
                let what = format!("no lookup finds {}: one with an equal hash before it is gone", place());
                findings.fix(what, Fix::Chain { directory, position });
            }
            entries += 1;
            if concerns(ino) {
                match find(inodes, ino) {
                    None => {
                        let what = format!("{} names inode {ino}, which is gone", place());
                        findings.fix(what, Fix::Inode { ino, kind, directory, position, entry: entry.clone() });
                    }
                    Some(inode) => {
                        inode.names += 1;
                        if inode.kind != kind {
                            findings.note(format!("{} has another kind than inode {ino}", place()));
                        }
                        if inode.kind == FileKind::Directory && inode.parent != directory {
                            let what = format!("directory {ino} lies in {directory}, not in {}", inode.parent);
                            findings.fix(what, Fix::Parent(ino, directory));
                        }
                    }
                }
            }
            if concerns(directory) {
                match find(inodes, directory) {
                    Some(Seen { kind: FileKind::Directory, subdirectories, .. }) => {
                        *subdirectories += u32::from(kind == FileKind::Directory);
                    }
                    Some(_) => findings.note(format!("{} lies in what is no directory", place())),
                    None => {
                        let what = format!("{} lies in a directory that is gone", place());
                        // All its names say so, one after the other.
                        match findings.fixes.last() {
                            Some(Fix::Directory(last)) if *last == directory => findings.note(what),
                            _ => findings.fix(what, Fix::Directory(directory)),
                        }
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        visit(&self.volume, &[keys::ENTRY], &[keys::ENTRY + 1], note).await?;
        Ok(entries)
    }
}

fn find(inodes: &mut [Seen], ino: Ino) -> Option<&mut Seen> {
    inodes.binary_search_by_key(&ino, |inode| inode.ino).ok().map(|index| &mut inodes[index])
}

impl Seen {
    fn judge(&self, findings: &mut Findings) {
        let Seen { ino, links, names, .. } = *self;
        let expected = match self.kind {
            FileKind::Directory if names > 0 || ino == ROOT => 2 + self.subdirectories,
            _ => names,
        };
        if links != expected {
            let what = format!("inode {ino} counts {links} links and has {expected}");
            match names > 0 || ino == ROOT {
                true => findings.fix(what, Fix::Links(ino, expected.into())),
                // With its name it gets them.
                false => findings.note(what),
            }
        }
        if names == 0 && ino != ROOT && !self.orphan {
            findings.note(format!("inode {ino} has no name and is no orphan"));
            if findings.nameless.len() < FIXES_MAX {
                findings.nameless.push(ino);
            }
        }
        if names > 0 && self.orphan {
            findings.fix(format!("inode {ino} has a name and is an orphan"), Fix::NoOrphan(ino));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use ashlar_block::Device;
    use ashlar_devices::Memory;
    use ashlar_env::sim::{Schedule, Sim};
    use ashlar_pool::{Config, Creation, Pool, Txn};
    use ashlar_units::Blocks;
    use ashlar_vfs::{FileSystem, NewNode};
    use std::sync::Arc;

    #[test]
    fn contradictions_are_found_in_passes_of_any_size() {
        let sim = Sim::new(1, Schedule::Random);
        let env = sim.env();
        let run = async move {
            let device: Device = Arc::new(Memory::new(Blocks(64 * 256)));
            let devices = vec![device];
            Pool::create(&env, &devices, Creation::default()).await.expect("made");
            let pool = Pool::open(&env, devices, Config::default()).await.expect("opened");
            let volume = pool.create_volume("v").await.expect("made");
            Files::format(&volume, 0, 0).await.expect("formatted");
            let files = Files::open(volume, Options::default()).await.expect("opened");
            let node = |kind| NewNode { kind, permissions: 0o755, uid: 0, gid: 0, device: 0, umask: 0, open: false };
            let mut parent = ROOT;
            let mut made = Vec::new();
            for index in 0..20 {
                let name = format!("directory {index}");
                let child = files.mkdir(parent, name.as_bytes(), node(FileKind::Directory)).await.expect("made").ino;
                made.push(files.create(child, b"file", node(FileKind::File)).await.expect("made").ino);
                parent = if index % 3 == 0 { child } else { parent };
            }
            files.syncfs().await.expect("synced");
            let whole = files.audit().await.expect("audited");
            assert_eq!((whole.inodes, whole.entries, whole.wrong.len()), (41, 40, 0), "{:?}", whole.wrong);
            for size in [1, 2, 7, 40, 41, 42] {
                assert_eq!(files.audit_by(size).await.expect("audited"), whole, "{size} at a time");
            }
            let mut txn = Txn::new();
            files.volume.delete(&mut txn, &keys::inode(made[5]));
            files.volume.put(&mut txn, &keys::orphan(made[9]), Bytes::new());
            files.volume.commit(txn).await.expect("broken");
            let whole = files.audit().await.expect("audited");
            assert_eq!(whole.wrong.len(), 2, "{:?}", whole.wrong);
            for size in [1, 2, 7, 40] {
                assert_eq!(files.audit_by(size).await.expect("audited"), whole, "{size} at a time");
            }
        };
        sim.run(run).expect("no deadlock");
    }
}
