//! How long a workload would take on a file system that need not be there (thesis, chapter 4).
pub mod cache;
pub mod compare;
pub mod parse;
pub mod pattern;
pub mod preprocess;
pub mod step;
pub mod tree;
