//! Types, outcomes, and the matrix of both.

use super::fault::Fault;
use ashlar_pool::InMemory;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "`Type::what` says it")]
pub enum Type {
    Superblock,
    SuperblockAll,
    SuperblockOld,
    LogLead,
    LogRecords,
    NodeBatch,
    DataBatch,
    Parity,
    ParityOld,
    Catalog,
    Interior,
    LeafMap,
    LeafNames,
    LeafBoth,
    DataRaw,
    DataCompressed,
    DataShared,
    DataSnapshot,
    Dead,
    Free,
    CachedNode,
    CachedPointer,
    Memtable,
    UnwrittenData,
    UnwrittenRecords,
    Ext4Superblock,
    Ext4Descriptors,
    Ext4BlockBitmap,
    Ext4InodeBitmap,
    Ext4InodeTable,
    Ext4Directory,
    Ext4ExtentTree,
    Ext4Journal,
    Ext4Data,
    Ext4Free,
}

/// Every type: its name, and what it is.
const TYPES: [(Type, &str, &str); 35] = [
    (Type::Superblock, "superblock", "the newest superblock, one of its two copies"),
    (Type::SuperblockAll, "superblock-all", "the newest superblock, both copies alike"),
    (Type::SuperblockOld, "superblock-old", "superblocks of earlier checkpoints"),
    (Type::LogLead, "log-lead", "first block of a batch of the log that recovery reads, with short records"),
    (Type::LogRecords, "log-records", "long records of such a batch"),
    (Type::NodeBatch, "node-batch", "first block and list of a batch of index nodes"),
    (Type::DataBatch, "data-batch", "first block and records of a batch that recovery no longer reads"),
    (Type::Parity, "parity", "parity of a batch of index nodes, and its first block once more"),
    (Type::ParityOld, "parity-old", "the same where nobody refers to any of them"),
    (Type::Catalog, "catalog", "index nodes of the catalog: volumes, live bytes, dead lists"),
    (Type::Interior, "interior", "index nodes above the leaves"),
    (Type::LeafMap, "leaf-map", "leaves of the index with the block map"),
    (Type::LeafNames, "leaf-names", "leaves with the dictionary: inodes, names, attributes"),
    (Type::LeafBoth, "leaf-both", "leaves with both"),
    (Type::DataRaw, "data-raw", "data as they are"),
    (Type::DataCompressed, "data-compressed", "compressed data"),
    (Type::DataShared, "data-shared", "data with several references"),
    (Type::DataSnapshot, "data-snapshot", "data to which only snapshots refer"),
    (Type::Dead, "dead", "written, and no longer referred to"),
    (Type::Free, "free", "never written, or free again"),
    (Type::CachedNode, "mem-node", "memory: bytes of a cached index node"),
    (Type::CachedPointer, "mem-pointer", "memory: a pointer of a cached index node"),
    (Type::Memtable, "mem-memtable", "memory: a change that is not yet in the index"),
    (Type::UnwrittenData, "mem-data", "memory: data that are not yet written"),
    (Type::UnwrittenRecords, "mem-records", "memory: records of the log that are not yet written"),
    (Type::Ext4Superblock, "superblock", "the superblock"),
    (Type::Ext4Descriptors, "group-descriptors", "group descriptors"),
    (Type::Ext4BlockBitmap, "block-bitmap", "bitmap of blocks"),
    (Type::Ext4InodeBitmap, "inode-bitmap", "bitmap of inodes"),
    (Type::Ext4InodeTable, "inode-table", "inodes that are in use"),
    (Type::Ext4Directory, "directory", "directory blocks"),
    (Type::Ext4ExtentTree, "extent-tree", "blocks of extent trees"),
    (Type::Ext4Journal, "journal", "the journal, of a file system unmounted in order"),
    (Type::Ext4Data, "data", "data of files"),
    (Type::Ext4Free, "free", "free blocks"),
];

impl Type {
    /// Those of a target.
    pub fn of(target: Target) -> impl Iterator<Item = Type> {
        let is_ext4 = |of: Type| of >= Type::Ext4Superblock;
        TYPES.iter().map(|(of, ..)| *of).filter(move |of| is_ext4(*of) == (target == Target::Ext4))
    }
    /// Its name.
    pub fn name(self) -> &'static str {
        TYPES.iter().find(|(of, ..)| *of == self).map_or("", |(_, name, _)| name)
    }
    /// What it is.
    pub fn what(self) -> &'static str {
        TYPES.iter().find(|(of, ..)| *of == self).map_or("", |(.., what)| what)
    }
    /// A type of the target by its name.
    pub fn named(target: Target, name: &str) -> Result<Type, String> {
        by_name("type of block", Type::of(target), Type::name, name)
    }
    /// What is damaged in memory, if that is where it is.
    pub fn in_memory(self) -> Option<InMemory> {
        match self {
            Type::CachedNode => Some(InMemory::CachedNode),
            Type::CachedPointer => Some(InMemory::CachedPointer),
            Type::Memtable => Some(InMemory::Memtable),
            Type::UnwrittenData => Some(InMemory::UnwrittenData),
            Type::UnwrittenRecords => Some(InMemory::UnwrittenRecords),
            _ => None,
        }
    }
}

/// One of these by its name; else a sentence that has all names.
pub(super) fn by_name<T: Copy>(
    what: &str,
    all: impl Iterator<Item = T>,
    name: impl Fn(T) -> &'static str,
    text: &str,
) -> Result<T, String> {
    let all: Vec<T> = all.collect();
    let names = || all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
    let found = all.iter().copied().find(|one| name(*one) == text);
    found.ok_or_else(|| format!("{text:?} is no {what}; there are {}", names()))
}

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A pool with file systems, in process.
    Pool,
    /// ext4 of the kernel, on a disk of ours.
    Ext4,
}

impl Target {
    /// Its name.
    pub fn name(self) -> &'static str {
        if self == Target::Pool { "pool" } else { "ext4" }
    }
}

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Target, String> {
        by_name("target", [Target::Pool, Target::Ext4].into_iter(), Target::name, text)
    }
}

/// What a pool does without, to show what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Without {
    /// It does not look at checksums of data and index nodes.
    Checksums,
    /// Index nodes have none.
    Parity,
}

impl Without {
    /// Its name.
    pub fn name(self) -> &'static str {
        if self == Without::Checksums { "checksums" } else { "parity" }
    }
}

impl FromStr for Without {
    type Err = String;
    fn from_str(text: &str) -> Result<Without, String> {
        by_name("thing to do without", [Without::Checksums, Without::Parity].into_iter(), Without::name, text)
    }
}

/// What came of damage, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// There was nothing to damage.
    NotTried,
    /// No effect: what was damaged was not in use.
    Masked,
    /// Everything is right: a copy was used, or what was damaged was made anew.
    Repaired,
    /// Reported, and what is lost is named.
    Named,
    /// Reported, but not what is lost.
    Unnamed,
    /// It cannot be opened, and says why.
    Refused,
    /// Something else was returned than what was written.
    Wrong,
    /// A panic, a hang, or a program that was killed.
    Crash,
}

impl Outcome {
    /// All but the first.
    pub const ALL: [Outcome; 7] = [
        Outcome::Masked,
        Outcome::Repaired,
        Outcome::Named,
        Outcome::Unnamed,
        Outcome::Refused,
        Outcome::Wrong,
        Outcome::Crash,
    ];
    /// In the matrix.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::NotTried => "-",
            Outcome::Masked => "masked",
            Outcome::Repaired => "repaired",
            Outcome::Named => "named",
            Outcome::Unnamed => "unnamed",
            Outcome::Refused => "refused",
            Outcome::Wrong => "WRONG",
            Outcome::Crash => "CRASH",
        }
    }
    /// Whether it must not be.
    pub fn is_bad(self) -> bool {
        self >= Outcome::Wrong
    }
}

/// Outcome of a case, and what was said.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    pub(super) said: Vec<String>,
}

impl Verdict {
    pub(super) fn new(outcome: Outcome, said: Vec<String>) -> Verdict {
        Verdict { outcome, said }
    }
}

/// One type damaged in one way.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Cell {
    /// What was damaged: one of the names in `types`.
    pub of: String,
    /// How.
    pub fault: Fault,
    /// How often each outcome came.
    pub counts: BTreeMap<Outcome, u64>,
    /// Whether it happened in memory.
    pub memory: bool,
}

/// A case that is worth a look.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Example {
    /// Its name.
    pub case: String,
    /// What came of it.
    pub outcome: Outcome,
    /// What was said: what was wrong first.
    pub said: Vec<String>,
    /// The command that does it again.
    pub replay: String,
    /// Whether it happened in memory.
    pub memory: bool,
}

/// What came of all cases.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Matrix {
    /// What was tried.
    pub target: Target,
    /// The seed.
    pub seed: u64,
    /// What the pool did without (a negative control).
    pub without: Option<Without>,
    /// Cases tried.
    pub cases: u64,
    /// Types and what they are.
    pub types: BTreeMap<String, String>,
    /// By type and fault.
    pub cells: Vec<Cell>,
    /// The first of each outcome that must not be, by type and fault; and with `--case`, that case.
    pub examples: Vec<Example>,
}

impl Matrix {
    pub(super) fn new(target: Target, seed: u64, without: Option<Without>) -> Matrix {
        let types = Type::of(target).map(|of| (of.name().to_string(), of.what().to_string())).collect();
        Matrix { target, seed, without, cases: 0, types, cells: Vec::new(), examples: Vec::new() }
    }

    pub(super) fn add(&mut self, of: Type, fault: Fault, outcome: Outcome) {
        if outcome == Outcome::NotTried {
            return;
        }
        self.cases += 1;
        let memory = of.in_memory().is_some();
        let place = self.cells.iter().position(|cell| cell.of == of.name() && cell.fault == fault);
        let place = place.unwrap_or_else(|| {
            self.cells.push(Cell { of: of.name().into(), fault, counts: BTreeMap::new(), memory });
            self.cells.len() - 1
        });
        *self.cells[place].counts.entry(outcome).or_default() += 1;
    }

    /// How often this came, in memory or on disks.
    pub fn count(&self, outcome: Outcome, memory: bool) -> u64 {
        let cells = self.cells.iter().filter(|cell| cell.memory == memory);
        cells.filter_map(|cell| cell.counts.get(&outcome)).sum()
    }

    /// Whether there was wrong data or a crash; in memory too if that is what is asked.
    pub fn is_bad(&self, memory_too: bool) -> bool {
        let bad = |memory: bool| self.count(Outcome::Wrong, memory) + self.count(Outcome::Crash, memory) > 0;
        // What bad memory does to data is measured; a crash is ours.
        bad(false) || self.count(Outcome::Crash, true) > 0 || (memory_too && bad(true))
    }

    fn cell(&self, of: &str, fault: Fault) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.of == of && cell.fault == fault)
    }

    /// Tables: faults, and rows of types with their cells.
    fn tables(&self) -> Vec<(Vec<Fault>, Vec<&str>)> {
        let sets: [&[Fault]; 2] = [&Fault::DISK, &Fault::MEMORY];
        let mut tables = Vec::new();
        for set in sets {
            let used = |fault: &Fault| self.cells.iter().any(|cell| cell.fault == *fault);
            let faults: Vec<Fault> = set.iter().copied().filter(used).collect();
            let here = |of: &Type| faults.iter().any(|fault| self.cell(of.name(), *fault).is_some());
            let rows: Vec<&str> = Type::of(self.target).filter(here).map(Type::name).collect();
            if !rows.is_empty() {
                tables.push((faults, rows));
            }
        }
        tables
    }

    /// The matrix as a page.
    pub fn html(&self) -> String {
        let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let mut page = format!(
            "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>Faults by type: {target}</title>\
             <style>body{{font:15px sans-serif;max-width:80em;margin:2em auto}}table{{border-collapse:collapse}}\
             td,th{{padding:.3em .6em;text-align:left;border:1px solid #ccc;vertical-align:top}}\
             .masked{{background:#f4f4f4}}.repaired{{background:#cdeccd}}.named{{background:#e2f0c8}}\
             .unnamed{{background:#fbf0b8}}.refused{{background:#fddfb0}}.WRONG{{background:#e33;color:#fff}}\
             .CRASH{{background:#808;color:#fff}}pre{{background:#eee;padding:.6em;overflow:auto}}</style>\
             <h1>Faults by type: {target}</h1><p>{cases} cases, seed {seed}{control}.",
            target = self.target.name(),
            cases = self.cases,
            seed = self.seed,
            control = self
                .without
                .map_or_else(String::new, |without| format!(", without {} (negative control)", without.name())),
        );
        for (faults, rows) in self.tables() {
            page += "<h2>";
            page += if Fault::MEMORY.contains(&faults[0]) { "In memory" } else { "On the disk" };
            page += "</h2><table><tr><th>type";
            faults.iter().for_each(|fault| page += &format!("<th>{}", fault.name()));
            for of in rows {
                let what = self.types.get(of).map_or("", String::as_str);
                page += &format!("<tr><th title=\"{}\">{of}", escape(what));
                for fault in &faults {
                    let Some(cell) = self.cell(of, *fault) else {
                        page += "<td>";
                        continue;
                    };
                    let worst = cell.counts.keys().max().map_or("", |outcome| outcome.name());
                    page += &format!("<td class={worst}>{}", counts(cell, "<br>"));
                }
            }
            page += "</table>";
        }
        page += "<h2>Types</h2><table>";
        for of in Type::of(self.target) {
            page += &format!("<tr><th>{}<td>{}", of.name(), escape(of.what()));
        }
        page += "</table>";
        for example in &self.examples {
            page += &format!(
                "<h3 id=\"{case}\">{case}: {}</h3><pre>{}</pre><p>Again: <code>{}</code>",
                example.outcome.name(),
                escape(&example.said.join("\n")),
                escape(&example.replay),
                case = escape(&example.case),
            );
        }
        page
    }
}

fn counts(cell: &Cell, between: &str) -> String {
    let parts: Vec<String> =
        cell.counts.iter().rev().map(|(outcome, count)| format!("{} {count}", outcome.name())).collect();
    parts.join(between)
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (faults, rows) in self.tables() {
            write!(f, "{:<18}", "")?;
            faults.iter().try_for_each(|fault| write!(f, "{:<22}", fault.name()))?;
            writeln!(f)?;
            for of in rows {
                write!(f, "{of:<18}")?;
                for fault in &faults {
                    let text = self.cell(of, *fault).map_or("-".into(), |cell| counts(cell, " "));
                    write!(f, "{text:<21} ")?;
                }
                writeln!(f)?;
            }
            writeln!(f)?;
        }
        for example in &self.examples {
            writeln!(f, "{}: {}", example.case, example.outcome.name())?;
            example.said.iter().take(6).try_for_each(|said| writeln!(f, "    {said:.300}"))?;
            writeln!(f, "    replay: {}", example.replay)?;
        }
        let sum = |outcome: Outcome| self.count(outcome, false) + self.count(outcome, true);
        write!(f, "seed {}: {} cases", self.seed, self.cases)?;
        for outcome in Outcome::ALL.into_iter().filter(|outcome| sum(*outcome) > 0) {
            write!(f, ", {} {}", sum(outcome), outcome.name())?;
        }
        writeln!(f)?;
        if self.is_bad(true) { Ok(()) } else { writeln!(f, "no wrong data, no crash") }
    }
}
