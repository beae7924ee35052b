//! Consistency of names and inodes.

use crate::Files;
use crate::keys::{self, Entry, Record};
use ashlar_vfs::{FileKind, Ino, ROOT, Result};
use std::collections::{HashMap, HashSet};

/// What an audit found wrong. Each is a defect of this software, for transactions keep names and inodes together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Inodes that exist.
    pub inodes: u64,
    /// Directory entries.
    pub entries: u64,
    /// Sentences for people.
    pub wrong: Vec<String>,
}

impl Files {
    /// Compares all entries with all inodes. It holds what it counts in memory, some 100 bytes for each inode.
    pub async fn audit(&self) -> Result<Audit> {
        let mut audit = Audit::default();
        let mut records: HashMap<Ino, Record> = HashMap::new();
        for (key, value) in self.everything_under(keys::INODE).await? {
            let ino = keys::ino_in(&key)?;
            records.insert(ino, Record::decode(&value)?);
        }
        audit.inodes = records.len() as u64;
        let mut orphans: HashSet<Ino> = HashSet::new();
        for (key, _) in self.everything_under(keys::ORPHAN).await? {
            orphans.insert(keys::ino_in(&key)?);
        }
        let mut names: HashMap<Ino, u32> = HashMap::new();
        let mut subdirectories: HashMap<Ino, u32> = HashMap::new();
        for (key, value) in self.everything_under(keys::ENTRY).await? {
            let directory = keys::ino_in(&key)?;
            let entry = Entry::decode(&value)?;
            if entry.ino == 0 {
                continue;
            }
            audit.entries += 1;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            match records.get(&entry.ino) {
                None => audit
                    .wrong
                    .push(format!("{name:?} in directory {directory} names inode {}, which is gone", entry.ino)),
                Some(record) if record.kind != entry.kind => {
                    audit
                        .wrong
                        .push(format!("{name:?} in directory {directory} has another kind than inode {}", entry.ino));
                }
                Some(record) if record.kind == FileKind::Directory => {
                    *subdirectories.entry(directory).or_default() += 1;
                    if record.parent != directory {
                        audit
                            .wrong
                            .push(format!("directory {} lies in {directory}, not in {}", entry.ino, record.parent));
                    }
                }
                Some(_) => {}
            }
            if records.get(&directory).is_none_or(|record| record.kind != FileKind::Directory) {
                audit.wrong.push(format!("{name:?} lies in directory {directory}, which is gone"));
            }
            *names.entry(entry.ino).or_default() += 1;
        }
        for (ino, record) in &records {
            let named = names.get(ino).copied().unwrap_or(0);
            let expected = match record.kind {
                FileKind::Directory if named > 0 || *ino == ROOT => 2 + subdirectories.get(ino).copied().unwrap_or(0),
                _ => named,
            };
            if record.links != expected {
                audit.wrong.push(format!("inode {ino} counts {} links and has {expected}", record.links));
            }
            if named == 0 && *ino != ROOT && !orphans.contains(ino) {
                audit.wrong.push(format!("inode {ino} has no name and is no orphan"));
            }
            if named > 0 && orphans.contains(ino) {
                audit.wrong.push(format!("inode {ino} has a name and is an orphan"));
            }
        }
        audit.wrong.sort_unstable();
        Ok(audit)
    }
}
