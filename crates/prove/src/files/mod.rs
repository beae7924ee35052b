//! Files under random histories, compared with a model of POSIX.
//!
//! A history is a list of operations that a seed determines. It runs on a subject (a file system in process, or a directory
//! of whatever is mounted) and on a model beside it; every answer must agree, errors included. What is compared at the end
//! is everything: names, attributes, bytes, holes.

mod cuts;
mod directory;
mod engine;
mod generator;
mod history;
mod model;
mod mounted;
mod operation;
pub(crate) mod tested;
mod together;
mod trees;

pub use cuts::{FilesOptions, FilesOutcome, explore_files};
pub use directory::Directory;
pub use model::Model;
pub use mounted::{Mounted, MountedOutcome, explore_mounted};
pub use operation::{Answer, Data, Op, Place, Refusal, Stat, Subject, Target};
pub use tested::BetrSetting;
pub use together::{TogetherOutcome, explore_together};
pub use trees::{TreesOutcome, explore_trees};
