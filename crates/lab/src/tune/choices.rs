//! Options, and what they mean for safety.

use crate::age::image::Kind;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// What a crash may leave. What was synced is safe in all of them. Those that promise more are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// No journal: the file system must be checked, and may lose more than what was under way.
    NoJournal,
    /// Metadata are consistent; files may show what was on the disk before.
    StaleData,
    /// Metadata are consistent; what is in files was written to them, but an overwrite may be done by half.
    Metadata,
    /// Data go by the journal or to new places.
    Data,
}

impl Class {
    /// All, the safest first.
    pub const ALL: [Class; 4] = [Class::Data, Class::Metadata, Class::StaleData, Class::NoJournal];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::NoJournal => "no journal",
            Class::StaleData => "stale data possible",
            Class::Metadata => "metadata consistent",
            Class::Data => "data consistent",
        })
    }
}

/// One thing that can be set.
#[derive(Debug)]
pub struct Choice {
    /// As in reports.
    pub name: &'static str,
    kind: Kind,
    /// Choices of one dimension exclude each other.
    dimension: &'static str,
    mkfs: &'static str,
    mount: &'static str,
    /// The class that it has, if that is another than the default's.
    class: Option<Class>,
}

const fn format(kind: Kind, name: &'static str, dimension: &'static str, mkfs: &'static str) -> Choice {
    Choice { name, kind, dimension, mkfs, mount: "", class: None }
}

const fn mount(kind: Kind, name: &'static str, dimension: &'static str, mount: &'static str) -> Choice {
    Choice { name, kind, dimension, mkfs: "", mount, class: None }
}

const fn of_class(choice: Choice, class: Class) -> Choice {
    Choice { class: Some(class), ..choice }
}

/// The options of FAST '10, section 4, as far as these file systems have them; for btrfs, of which it knows nothing, those
/// of the same kind.
static CHOICES: [Choice; 27] = [
    format(Kind::Ext4, "block=1k", "block", "-b 1024"),
    format(Kind::Ext4, "block=2k", "block", "-b 2048"),
    format(Kind::Ext4, "inode=128", "inode", "-I 128"),
    format(Kind::Ext4, "inode=1k", "inode", "-I 1024"),
    format(Kind::Ext4, "group=16k", "group", "-g 16384"),
    mount(Kind::Ext4, "noatime", "atime", "noatime"),
    mount(Kind::Ext4, "strictatime", "atime", "strictatime"),
    of_class(mount(Kind::Ext4, "data=journal", "journal", "data=journal"), Class::Data),
    of_class(mount(Kind::Ext4, "data=writeback", "journal", "data=writeback"), Class::StaleData),
    of_class(format(Kind::Ext4, "no journal", "journal", "-O ^has_journal"), Class::NoJournal),
    format(Kind::Xfs, "block=1k", "block", "-b size=1024"),
    format(Kind::Xfs, "block=2k", "block", "-b size=2048"),
    format(Kind::Xfs, "inode=1k", "inode", "-i size=1024"),
    format(Kind::Xfs, "inode=2k", "inode", "-i size=2048"),
    format(Kind::Xfs, "agcount=8", "groups", "-d agcount=8"),
    format(Kind::Xfs, "agcount=16", "groups", "-d agcount=16"),
    format(Kind::Xfs, "agcount=32", "groups", "-d agcount=32"),
    format(Kind::Xfs, "agcount=64", "groups", "-d agcount=64"),
    format(Kind::Xfs, "agcount=128", "groups", "-d agcount=128"),
    mount(Kind::Xfs, "noatime", "atime", "noatime"),
    mount(Kind::Xfs, "strictatime", "atime", "strictatime"),
    format(Kind::Btrfs, "node=4k", "node", "-n 4096"),
    format(Kind::Btrfs, "node=32k", "node", "-n 32768"),
    mount(Kind::Btrfs, "noatime", "atime", "noatime"),
    mount(Kind::Btrfs, "strictatime", "atime", "strictatime"),
    of_class(mount(Kind::Btrfs, "nodatacow", "cow", "nodatacow"), Class::Metadata),
    mount(Kind::Btrfs, "commit=120", "commit", "commit=120"),
];

impl Choice {
    /// Those of a file system.
    pub fn all(kind: Kind) -> impl Iterator<Item = &'static Choice> {
        CHOICES.iter().filter(move |choice| choice.kind == kind)
    }
}

/// Choices that are made together.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file system.
    pub kind: Kind,
    choices: Vec<&'static Choice>,
}

impl Options {
    /// None.
    pub fn defaults(kind: Kind) -> Options {
        Options { kind, choices: Vec::new() }
    }

    /// One more.
    pub fn with(mut self, choice: &'static Choice) -> Options {
        self.choices.push(choice);
        self
    }

    /// These and others; `None` if they exclude each other.
    pub fn and(&self, others: &Options) -> Option<Options> {
        let clash = |choice: &&Choice| self.choices.iter().any(|own| own.dimension == choice.dimension);
        if others.choices.iter().any(clash) {
            return None;
        }
        Some(Options { kind: self.kind, choices: [&self.choices[..], &others.choices].concat() })
    }

    /// Their names.
    pub fn names(&self) -> Vec<&'static str> {
        self.choices.iter().map(|choice| choice.name).collect()
    }

    /// What a crash may leave.
    pub fn class(&self) -> Class {
        let default = match self.kind {
            Kind::Ext4 | Kind::Xfs => Class::Metadata,
            Kind::Btrfs => Class::Data,
        };
        self.choices.iter().filter_map(|choice| choice.class).min().unwrap_or(default)
    }

    /// For mkfs.
    pub fn mkfs(&self) -> String {
        let all = self.choices.iter().map(|choice| choice.mkfs).filter(|text| !text.is_empty());
        all.collect::<Vec<_>>().join(" ")
    }

    /// For `mount -o`. The kernel's default of access times is named, since images are mounted without them else.
    pub fn mount(&self) -> String {
        let own = self.choices.iter().map(|choice| choice.mount).filter(|text| !text.is_empty());
        std::iter::once("relatime").chain(own).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_put_together() {
        let find = |name: &str| Choice::all(Kind::Ext4).find(|choice| choice.name == name).expect("it is there");
        let one = Options::defaults(Kind::Ext4).with(find("block=1k"));
        let two = Options::defaults(Kind::Ext4).with(find("data=writeback"));
        let both = one.and(&two).expect("they fit");
        assert_eq!((both.mkfs().as_str(), both.mount().as_str()), ("-b 1024", "relatime,data=writeback"));
        assert_eq!((one.class(), both.class()), (Class::Metadata, Class::StaleData));
        assert!(both.and(&Options::defaults(Kind::Ext4).with(find("no journal"))).is_none());
        assert!(Class::ALL.is_sorted_by(|one, other| one > other));
    }
}
