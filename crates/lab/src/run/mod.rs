//! A trace of system calls done for real, in a directory of its own, and measured (after ARTC: Weiss et al., *ROOT: Replaying
//! Multithreaded Traces with Resource-Oriented Ordering*, SOSP '13).
//!
//! ```text
//! records ── script: lanes, waits ── prefill: what was there before ── play: each lane a thread ── measured records
//! ```
//!
//! Order. Calls of a thread follow each other. Across threads a call waits for the calls before it in the trace that decide
//! what it finds: the one that opened its file, made, renamed or removed its path or a directory above, or closed its path
//! after writing; and a call that makes, renames or removes waits for all before it that use the path. Else nothing waits
//! (*closed loop*), unless the times of the trace count ([`Pace`]).
//!
//! A trace is anybody's: its paths lead nowhere but below the directory ([`Root`]), its sizes are bounded, and what it asks
//! that cannot be done is counted, with examples.
//!
//! Departs  threads of a trace that do not overlap in time share a thread here. All pages of a mapping are made to be there by one call. Owners
//!          are set to what they are. Names of extended attributes are not in traces, so all are `user.ashlar`.

mod bench;
mod files;
mod perform;
mod play;
mod prefill;
mod root;
mod script;
mod summary;

pub use bench::{BenchError, BenchOptions, Job, Repeat};
pub use play::{Measured, Pace, PlayOptions, Played, play};
pub use prefill::{Content, Finder, Needed, Prefilled, bytes, of_snapshot, prefill};
pub use root::Root;
pub use script::{Dropped, Limits, Script, ScriptBuilder, ScriptError};
pub use summary::{Difference, Example, OpSummary, Summary, joules};

#[cfg(test)]
mod tests;
