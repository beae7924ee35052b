//! How long a workload would take on a file system that need not be there (thesis, chapter 4 and appendix A).
//!
//! ```text
//! trace ──parse──preprocess──cache──pattern──price──summary
//!                    │          └───────┬──────┘
//!               snapshot            vector
//! ```
//!
//! Each stage annotates [`step::Step`]s and stands alone: [`parse`] makes the chain of a call, [`preprocess`] says which
//! files it uses, [`cache`] what is in memory, [`pattern`] what is sequential, [`price`] what it takes, [`summary`] adds up.
//! [`engine`] runs all for several systems at once; there calls come by the clocks of the predicted system ([`order`]), and the
//! cache stage has them.
//! [`compare`] and [`report`] put predictions beside measurements, [`page`] shows them.
//!
//! Departs  the thesis has a process for each stage, and its cache stage knows no time; it charges write-back by bytes of
//!          all calls, removing as cutting, and parts of blocks not at all ([`price`] says what we do). Caches are empty at
//!          first, but the directory where the trace begins is in memory: it is where the file system is mounted. (So
//!          `/tmp` in figure 4.5 is a cached lookup.)

pub mod cache;
pub mod compare;
pub mod engine;
pub mod fsop;
pub mod order;
pub mod page;
pub mod parse;
pub mod pattern;
pub mod preprocess;
pub mod price;
pub mod report;
pub mod step;
pub mod summary;
pub mod tree;
