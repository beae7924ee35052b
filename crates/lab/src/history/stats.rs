//! What a history amounts to.

use super::record::{Act, Record};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// Block to which sizes are rounded up when live bytes are counted: that of most file systems.
const BLOCK: u64 = 4096;
/// Bounds of lifetimes that are counted, seconds. The first two are those of Sprite and of HP-UX (thesis, section 2.2).
const LIFETIMES_S: [(i64, &str); 6] =
    [(1, "1 s"), (30, "30 s"), (3600, "an hour"), (86_400, "a day"), (30 * 86_400, "30 days"), (i64::MAX, "longer")];

/// Counts over a history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Closing {
    /// All records.
    pub records: u64,
    /// Directories made.
    pub directories_made: u64,
    /// Files made.
    pub created: u64,
    /// Files changed.
    pub modified: u64,
    /// Files and directories moved.
    pub moved: u64,
    /// Files and directories deleted.
    pub deleted: u64,
    /// Writes that a sync follows.
    pub synced: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// From the first record to the last, nanoseconds.
    pub span_ns: i64,
    /// Most bytes that files had at any time, rounded up to blocks of 4 KiB.
    pub peak_bytes: u64,
    /// Bytes that they had at the end.
    pub live_bytes: u64,
    /// Files that were there at the end.
    pub live_files: u64,
    /// Directories that were.
    pub live_directories: u64,
    /// Files that were deleted, by how long they lived: bound as text, files.
    pub lifetimes: Vec<(String, u64)>,
}

/// Adds a history up, record by record.
#[derive(Default)]
pub struct Stats {
    closing: Closing,
    live: HashMap<u64, (i64, Option<u64>)>,
    lifetimes: [u64; LIFETIMES_S.len()],
}

/// Bytes of the blocks of a file.
pub(crate) fn blocks(size: u64) -> u64 {
    size.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX - BLOCK + 1)
}

impl Stats {
    /// Adds a record.
    pub fn add(&mut self, record: &Record) {
        let closing = &mut self.closing;
        closing.records += 1;
        closing.written_bytes = closing.written_bytes.saturating_add(record.written());
        closing.span_ns = record.at_ns;
        match record.act {
            Act::MakeDirectory { .. } => {
                closing.directories_made += 1;
                closing.live_directories += 1;
                self.live.insert(record.id, (record.at_ns, None));
            }
            Act::Create { size, how, .. } => {
                closing.created += 1;
                closing.synced += u64::from(how.sync);
                closing.live_files += 1;
                closing.live_bytes = closing.live_bytes.saturating_add(blocks(size));
                self.live.insert(record.id, (record.at_ns, Some(size)));
            }
            Act::Modify { size, how, .. } => {
                closing.modified += 1;
                closing.synced += u64::from(how.sync);
                if let Some((_, Some(old))) = self.live.get_mut(&record.id) {
                    let old = std::mem::replace(old, size);
                    closing.live_bytes = closing.live_bytes.saturating_sub(blocks(old)).saturating_add(blocks(size));
                }
            }
            Act::Move { .. } => closing.moved += 1,
            Act::Delete => {
                closing.deleted += 1;
                match self.live.remove(&record.id) {
                    Some((made, Some(size))) => {
                        closing.live_files -= 1;
                        closing.live_bytes = closing.live_bytes.saturating_sub(blocks(size));
                        let seconds = (record.at_ns - made) / 1_000_000_000;
                        let index = LIFETIMES_S.iter().position(|(bound, _)| seconds < *bound);
                        self.lifetimes[index.unwrap_or(LIFETIMES_S.len() - 1)] += 1;
                    }
                    Some((_, None)) => closing.live_directories -= 1,
                    None => {}
                }
            }
        }
        closing.peak_bytes = closing.peak_bytes.max(closing.live_bytes);
    }

    /// Bytes that files have now, rounded up to blocks.
    pub fn live_bytes(&self) -> u64 {
        self.closing.live_bytes
    }

    /// The counts.
    pub fn finish(mut self) -> Closing {
        let names = LIFETIMES_S
            .iter()
            .map(|(_, name)| if *name == "longer" { (*name).into() } else { format!("below {name}") });
        self.closing.lifetimes = names.zip(self.lifetimes).collect();
        self.closing
    }
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ashlar_units::Bytes;
        let days = self.span_ns as f64 / 86_400e9;
        writeln!(f, "records        {} over {} days", self.records, ashlar_report::number(days))?;
        writeln!(
            f,
            "               {} files made, {} changed, {} deleted, {} moved; {} directories made; {} syncs",
            self.created, self.modified, self.deleted, self.moved, self.directories_made, self.synced
        )?;
        writeln!(f, "written        {}", Bytes(self.written_bytes))?;
        writeln!(
            f,
            "at the end     {} in {} files and {} directories; most at any time {}",
            Bytes(self.live_bytes),
            self.live_files,
            self.live_directories,
            Bytes(self.peak_bytes)
        )?;
        let lifetimes: Vec<_> = self.lifetimes.iter().map(|(name, files)| format!("{name} {files}")).collect();
        writeln!(f, "lives          {}", lifetimes.join(", "))
    }
}
