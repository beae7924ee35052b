//! The names that a system vector may have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// In which unit a result is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Time of one occurrence, milliseconds.
    Milliseconds,
    /// A rate, kilobytes (1,024 bytes) a second.
    Rate,
    /// Time of a fixed job, seconds.
    Seconds,
    /// A size, kilobytes.
    Kilobytes,
    /// A size, bytes.
    Bytes,
    /// A number of things.
    Count,
}

impl Unit {
    /// The least and the most that can be.
    pub fn range(self) -> (f64, f64) {
        match self {
            Unit::Milliseconds => (0.0, 1e7),
            Unit::Rate => (1e-3, 1e12),
            Unit::Seconds => (1e-9, 1e6),
            Unit::Kilobytes | Unit::Count => (0.0, 1e13),
            Unit::Bytes => (1.0, 1e9),
        }
    }

    /// As in documents.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Milliseconds => "ms",
            Unit::Rate => "KB/s",
            Unit::Seconds => "s",
            Unit::Kilobytes => "KB",
            Unit::Bytes => "B",
            Unit::Count => "",
        }
    }
}

/// A benchmark of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(u8);

/// What is known of a family.
#[derive(Debug)]
pub struct Described {
    /// As in files.
    pub name: &'static str,
    /// The unit of its results.
    pub unit: Unit,
    /// A result for each of several numbers, which stand behind the name, as in `RD64`.
    pub sized: bool,
    /// What it is.
    pub what: &'static str,
}

macro_rules! families {
    ($($name:ident $text:literal $unit:ident $sized:literal $what:literal;)*) => {
        /// All, in the order of files: those of the thesis (table 4.4) first.
        pub static FAMILIES: &[Described] =
            &[$(Described { name: $text, unit: Unit::$unit, sized: $sized, what: $what }),*];

        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[repr(u8)]
        enum Place { $($name),* }

        #[doc(hidden)]
        impl Family { $(
            #[doc = $what]
            pub const $name: Family = Family(Place::$name as u8);
        )* }
    };
}

families! {
    BC "BC" Kilobytes false "Size of the buffer cache; of Linux all memory that caches may take.";
    DNLC "DNLC" Count false "Names that the name cache holds.";
    MDC "MDC" Count false "Files of which the attribute cache holds the attributes.";
    BS "BS" Bytes false "Block size.";
    FS "FS" Bytes false "Fragment size.";
    LUS_BC "LUS_BC" Milliseconds false "Looking up a name in the directory of the lookup before, name and attributes cached.";
    LUS_NC "LUS_NC" Milliseconds false "The same, neither cached.";
    LUS_AC "LUS_AC" Milliseconds false "The same, attributes cached and the name not.";
    LUR_BC "LUR_BC" Milliseconds false "Looking up a name in another directory than before, name and attributes cached.";
    LUR_NC "LUR_NC" Milliseconds false "The same, neither cached.";
    LUR_AC "LUR_AC" Milliseconds false "The same, attributes cached and the name not.";
    RDC "RDC" Rate false "Reading what is cached.";
    RD "RD" Rate true "Reading what is not cached, in order, by KB of the request.";
    RRD "RRD" Rate true "Reading what is not cached, not in order, by KB of the request.";
    WRC "WRC" Rate false "Writing over what is cached.";
    WR "WR" Seconds true "A fixed job beside a program that writes, by its KB/s.";
    RDO "RDO" Milliseconds false "A call that reads, without the bytes.";
    WRO "WRO" Milliseconds false "A call that writes, without the bytes.";
    OPEN "OPEN" Milliseconds false "Opening a file, without lookups.";
    CR "CR" Milliseconds false "Creating a file, without lookups.";
    RM "RM" Milliseconds false "Removing an empty file, without lookups.";
    STAT "STAT" Milliseconds false "Asking for attributes by path, without lookups.";
    MKDIR "MKDIR" Milliseconds false "Making a directory.";
    RMDIR "RMDIR" Milliseconds false "Removing a directory.";
    RENAME "RENAME" Milliseconds false "Renaming a file.";
    CHMOD "CHMOD" Milliseconds false "Setting the mode of a file.";
    TR "TR" Milliseconds true "Cutting a cached file to nothing, by its KB.";
    TRC "TRC" Milliseconds true "Cutting an uncached file to nothing, by its KB.";

    CLOSE "CLOSE" Milliseconds false "Closing a file.";
    CLD "CLD" Milliseconds true "Closing a file that was written, by its dirty KB.";
    FSTAT "FSTAT" Milliseconds false "Asking for the attributes of an open file.";
    LUS_NG "LUS_NG" Milliseconds false "Looking up an absent name, of which it is cached that it is absent.";
    LUS_NN "LUS_NN" Milliseconds false "Looking up an absent name in a cached directory.";
    LUR_NN "LUR_NN" Milliseconds false "Looking up an absent name in a directory that is not cached.";
    WNO "WNO" Milliseconds false "A call that writes where the file had no block, without the blocks.";
    WNF "WNF" Milliseconds false "The same where the file was empty.";
    WNC "WNC" Rate false "Writing where the file had no block.";
    RMW "RMW" Milliseconds false "Writing a part of a block that is allocated and not cached: reading it first.";
    RMC "RMC" Milliseconds true "Removing a cached file, by its KB; all of it.";
    RMU "RMU" Milliseconds true "Removing a file of which nothing is cached, by its KB; all but the lookup.";
    RMD "RMD" Milliseconds true "Removing a file that was not written back yet, by its KB; all of it.";
    SYNEW "SYNEW" Milliseconds true "Syncing a file that was just made, by its KB.";
    SYAPP "SYAPP" Milliseconds true "Syncing a file that grew, by the KB.";
    SYOVER "SYOVER" Milliseconds true "Syncing a file of which blocks were written over, by the KB.";
    SYNONE "SYNONE" Milliseconds false "Syncing a file that is clean.";
    SYDIR "SYDIR" Milliseconds false "Syncing a directory in which a file was made.";
    SYFS "SYFS" Milliseconds true "Syncing the whole file system, by its dirty KB.";
    DIRO "DIRO" Milliseconds false "A call that reads a cached directory, without entries.";
    DIRE "DIRE" Milliseconds false "Reading one entry of a cached directory.";
    DIRU "DIRU" Milliseconds false "The first read of a directory that is not cached.";
    MAP "MAP" Milliseconds false "Mapping a file and unmapping it.";
    FAULT "FAULT" Milliseconds false "A page of a mapping, cached, when all are asked for by one call.";
    MRD "MRD" Rate true "Pages of a mapping, not cached, in order, all asked for by one call, by KB.";
    RFS "RFS" Milliseconds true "The first read of a file that is not cached, and what the rest waits for, by its KB.";
    HRD "HRD" Rate false "Reading where the file has no block.";
    LINK "LINK" Milliseconds false "Giving a file a further name.";
    SYMLINK "SYMLINK" Milliseconds false "Making a symbolic link.";
    READLINK "READLINK" Milliseconds false "Reading a symbolic link.";
    GETXA "GETXA" Milliseconds false "Asking for an extended attribute.";
    SETXA "SETXA" Milliseconds false "Setting an extended attribute.";
    UTIMES "UTIMES" Milliseconds false "Setting the times of a file.";
    STATFS "STATFS" Milliseconds false "Asking for free space.";
    FALLOC "FALLOC" Milliseconds true "Taking space for a file, by KB.";
    EXTEND "EXTEND" Milliseconds false "Growing a file by truncate.";
    WBS "WBS" Milliseconds false "What other calls wait for a block of 4 KiB that is written back beside them, of a run.";
    WBR "WBR" Milliseconds false "What other calls wait for a run of blocks that is written back beside them.";
    WBRATE "WBRATE" Rate false "Writing back for long, in order.";
    WBRRATE "WBRRATE" Rate false "Writing back for long, single blocks.";
    PCA "PCA" Milliseconds true "Asking for attributes, opening, reading 4 KiB and closing, all cached, by how many do so at once.";
    PRD "PRD" Milliseconds true "Reading 4 KiB at random, not cached, by how many do so at once.";
    PRS "PRS" Milliseconds true "Reading 128 KiB in order, not cached, by how many do so at once, each its own.";
    PFS "PFS" Milliseconds true "Opening, reading and closing a file of 16 KiB, not cached, by how many do so at once.";
    PCR "PCR" Milliseconds true "Creating, writing 4 KiB and closing a file that stays, by how many do so at once.";
    PSY "PSY" Milliseconds true "Creating, writing 16 KiB, syncing and removing, by how many do so at once, in 16 directories.";
    URD "URD" Milliseconds true "For how long a job of PRD keeps processors or device busy, by how many do so at once.";
    URS "URS" Milliseconds true "The same of PRS.";
    UFS "UFS" Milliseconds true "The same of PFS.";
    USY "USY" Milliseconds true "The same of PSY.";
    PDS "PDS" Milliseconds true "The same in one directory.";
    RA "RA" Kilobytes false "How far is read ahead.";
    ICB "ICB" Bytes false "Memory of a cached inode.";
    DCB "DCB" Bytes false "Memory of a cached name.";
    DIRTYBG "DIRTYBG" Kilobytes false "Dirty data from which on they are written back at once.";
    DIRTYMAX "DIRTYMAX" Kilobytes false "Dirty data at which who writes waits.";
    DIRTYFILES "DIRTYFILES" Count false "Dirty files at which who makes one more dirty waits; absent where there are no bounds.";
    DIRTYWAIT "DIRTYWAIT" Milliseconds false "What it waits for.";
    EXPIRE "EXPIRE" Seconds false "Age at which dirty data are written back.";
    WAKE "WAKE" Seconds false "How often it is looked whether they have that age.";
}

impl Family {
    /// All, in the order of files.
    pub fn all() -> impl Iterator<Item = Family> {
        (0..FAMILIES.len() as u8).map(Family)
    }

    /// What is known of it.
    pub fn described(self) -> &'static Described {
        &FAMILIES[usize::from(self.0)]
    }

    /// As in files.
    pub fn name(self) -> &'static str {
        self.described().name
    }

    /// Its unit.
    pub fn unit(self) -> Unit {
        self.described().unit
    }
}

/// One result of a vector: a family, and for sized ones the number behind its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The benchmark.
    pub family: Family,
    /// The number; zero where there is none.
    pub size: u64,
}

impl Key {
    /// Reads a name.
    pub fn parse(name: &str) -> Result<Key, String> {
        let find = |text: &str, sized: bool| {
            Family::all().find(|family| family.name() == text && family.described().sized == sized)
        };
        if let Some(family) = find(name, false) {
            return Ok(Key { family, size: 0 });
        }
        let letters = name.trim_end_matches(|char: char| char.is_ascii_digit());
        if let (Some(family), Ok(size)) = (find(letters, true), name[letters.len()..].parse::<u64>())
            && size <= SIZE_MAX
        {
            return Ok(Key { family, size });
        }
        let near = Family::all().min_by_key(|family| distance(family.name(), letters));
        let near = near.map_or(String::new(), |family| {
            let number = if family.described().sized { "64" } else { "" };
            format!("; the nearest is {}{number} ({})", family.name(), family.described().what)
        });
        Err(format!("there is no benchmark {:?}{near}", name.chars().take(40).collect::<String>()))
    }
}

/// Largest number behind a name: 1 TiB in KB.
const SIZE_MAX: u64 = 1 << 30;

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.family.name())?;
        if self.family.described().sized { write!(f, "{}", self.size) } else { Ok(()) }
    }
}

/// Letters that differ between two names (Levenshtein), of the first 40.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().take(40).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, char) in one.chars().enumerate() {
        let mut before = row[0];
        row[0] = at + 1;
        for (index, against) in other.iter().enumerate() {
            let here = if char == *against { before } else { 1 + before.min(row[index]).min(row[index + 1]) };
            before = std::mem::replace(&mut row[index + 1], here);
        }
    }
    row[other.len()]
}
