//! The steps of calls, which stages annotate: what the thesis calls operations of a chain (appendix A.1).

use crate::trace::{Op, Record};
use ashlar_columns::{Column, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The steps of one call, in their order: lookups, what the call does besides, and the call itself.
pub type Chain = Vec<Step>;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "lowercase")]
        pub enum $name { #[default] $($(#[$variant_doc])* $variant,)* }
        impl $name {
            /// As in files.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

words! {
    /// What a step is.
    Kind {
        /// What the call itself does.
        Call "call",
        /// A name is looked up in a directory.
        Lookup "lookup",
        /// A file is made, by an open.
        Create "create",
        /// The content of a file is given up: cut, removed, or replaced.
        Cut "cut",
    }
}

words! {
    /// What caches held for a lookup.
    Cached {
        /// It is no lookup, or nobody looked yet.
        Unknown "unknown",
        /// Name and attributes.
        Hit "hit",
        /// That the name is absent.
        Negative "negative",
        /// The attributes, and not the name.
        Attributes "attributes",
        /// Neither.
        Miss "miss",
        /// Nothing, and the name is absent; the directory was there.
        Absent "absent",
        /// Nothing, and the name is absent; nor was the directory there.
        Nowhere "nowhere",
    }
}

words! {
    /// What a step has to do with the disk-bound step before it (table A.5).
    Relation {
        /// Nobody looked yet.
        Invalid "invalid",
        /// The same file.
        Same "same",
        /// A file in the directory that was used before.
        Child "child",
        /// The directory of the file that was used before.
        Parent "parent",
        /// A file in the same directory.
        SameDir "samedir",
        /// None of these.
        Unknown "unknown",
        /// The step is not disk-bound.
        Cached "cached",
    }
}

words! {
    /// What a file has that is not durable yet.
    Change {
        /// Nothing.
        Nothing "nothing",
        /// It was made, or its name changed.
        New "new",
        /// It grew, or has blocks that it had not.
        Grown "grown",
        /// What it had was written over.
        Over "over",
        /// It is a directory, names of which changed.
        Names "names",
    }
}

/// A step. What does not apply is zero, false or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Step {
    /// Which call of the trace it belongs to, from 0 on.
    pub call: u64,
    /// What it is.
    pub kind: Kind,
    /// What the call is.
    pub op: Option<Op>,
    /// When it was called, nanoseconds.
    pub at_ns: u64,
    /// How long the call took, nanoseconds, where somebody measured it; at the call itself.
    pub measured_ns: u64,
    /// Which thread.
    pub thread: u64,
    /// The path that is looked up or used.
    pub path: String,
    /// The other path of the call.
    pub path2: String,
    /// Number of the open file.
    pub file: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Bytes done.
    pub done: u64,
    /// `errno`.
    pub error: u64,
    /// Flags, as the call has them.
    pub flags: u64,

    /// (preprocess) The file, by a number that no other has.
    pub inode: u64,
    /// (preprocess) The directory in which its name is.
    pub directory: u64,
    /// (preprocess) Its size before, bytes.
    pub size: u64,
    /// (preprocess) It fails here, and the steps behind it are not done.
    pub failed: bool,
    /// (preprocess) It is not done, since one before it failed.
    pub ignored: bool,
    /// (preprocess) What is written is to be durable when the call returns.
    pub durable: bool,
    /// (preprocess) It is the root, or above: always in memory.
    pub held: bool,

    /// (cache) What caches held for a lookup.
    pub cached: Cached,
    /// (cache) The first block of the directory is in memory.
    pub near: bool,
    /// (cache) Blocks that were read or written and in memory.
    pub hits: u64,
    /// (cache) Blocks that are fetched for the call, those that are read ahead included.
    pub misses: u64,
    /// (preprocess) Blocks that are read where the file has none.
    pub holes: u64,
    /// (preprocess) Blocks that are written where the file had none.
    pub fresh: u64,
    /// (cache) Blocks that must be read first, as parts of them are written.
    pub partial: u64,
    /// (cache) Of a file whose content is given up: inode, first and last block are in memory.
    pub held_whole: bool,
    /// (cache) Dirty blocks of the file, which are written now or given up; of who closes a file, if it wrote.
    pub dirty: u64,
    /// (cache) What was not durable.
    pub change: Change,
    /// (cache) Blocks that were written back beside the call.
    pub back_blocks: u64,
    /// (cache) Runs of such blocks.
    pub back_runs: u64,
    /// (cache) Nanoseconds for which the call waits, as there is too much dirty data.
    pub held_up_ns: u64,

    /// (pattern) What it has to do with the disk-bound step before.
    pub relation: Relation,
    /// (pattern) It goes on where that ended, or is in the same directory.
    pub sequential: bool,

    /// (price) Nanoseconds, on average.
    pub predicted_ns: u64,
    /// (price) Nanoseconds, drawn from the distributions of what it consists of; at the call itself, for all of it.
    pub drawn_ns: u64,
}

impl Step {
    /// The call itself as a step.
    pub fn of(call: u64, record: &Record) -> Step {
        Step {
            call,
            op: Some(record.op),
            at_ns: record.at_ns,
            measured_ns: record.latency_ns,
            thread: record.thread,
            path: record.path.clone(),
            path2: record.path2.clone(),
            file: record.file,
            offset: record.offset,
            len: record.len,
            done: record.done,
            error: record.error,
            flags: record.flags,
            ..Step::default()
        }
    }

    /// A lookup of `path` before this.
    pub fn lookup(&self, path: &str) -> Step {
        Step { path: path.into(), ..self.before(Kind::Lookup) }
    }

    /// Another step of the same call.
    pub fn before(&self, kind: Kind) -> Step {
        let Step { call, op, at_ns, thread, file, inode, directory, size, .. } = *self;
        Step { kind, call, op, at_ns, thread, file, inode, directory, size, ..Step::default() }
    }

    /// Whether it is done: neither ignored nor failed.
    pub fn is_done(&self) -> bool {
        !self.failed && !self.ignored
    }
}

/// Files of steps.
pub const STEPS: Table<Step> = Table {
    name: "steps",
    needed: &["call", "kind", "op"],
    example: r#"{"call": 0, "kind": "lookup", "op": "open", "path": "/tmp"}"#,
    columns: &[
        ("call", Column::Number(|step| step.call)),
        ("kind", Column::Text(|step| step.kind.name())),
        ("op", Column::Text(|step| step.op.map_or("", Op::name))),
        ("at_ns", Column::Number(|step| step.at_ns)),
        ("measured_ns", Column::Number(|step| step.measured_ns)),
        ("thread", Column::Number(|step| step.thread)),
        ("path", Column::Text(|step| &step.path)),
        ("path2", Column::Text(|step| &step.path2)),
        ("file", Column::Number(|step| step.file)),
        ("offset", Column::Number(|step| step.offset)),
        ("len", Column::Number(|step| step.len)),
        ("done", Column::Number(|step| step.done)),
        ("error", Column::Number(|step| step.error)),
        ("flags", Column::Number(|step| step.flags)),
        ("inode", Column::Number(|step| step.inode)),
        ("directory", Column::Number(|step| step.directory)),
        ("size", Column::Number(|step| step.size)),
        ("failed", Column::Flag(|step| step.failed)),
        ("ignored", Column::Flag(|step| step.ignored)),
        ("durable", Column::Flag(|step| step.durable)),
        ("held", Column::Flag(|step| step.held)),
        ("cached", Column::Text(|step| step.cached.name())),
        ("near", Column::Flag(|step| step.near)),
        ("hits", Column::Number(|step| step.hits)),
        ("misses", Column::Number(|step| step.misses)),
        ("holes", Column::Number(|step| step.holes)),
        ("fresh", Column::Number(|step| step.fresh)),
        ("partial", Column::Number(|step| step.partial)),
        ("held_whole", Column::Flag(|step| step.held_whole)),
        ("dirty", Column::Number(|step| step.dirty)),
        ("change", Column::Text(|step| step.change.name())),
        ("back_blocks", Column::Number(|step| step.back_blocks)),
        ("back_runs", Column::Number(|step| step.back_runs)),
        ("held_up_ns", Column::Number(|step| step.held_up_ns)),
        ("relation", Column::Text(|step| step.relation.name())),
        ("sequential", Column::Flag(|step| step.sequential)),
        ("predicted_ns", Column::Number(|step| step.predicted_ns)),
        ("drawn_ns", Column::Number(|step| step.drawn_ns)),
    ],
};
