//! What data are: duplicates, compressibility, sizes, layout and access, from a sample or in full.

#![allow(missing_docs)]
pub mod analyse;
pub mod chunk;
pub mod compress;
pub mod incidence;
pub mod listing;
pub mod sample;
pub mod sizes;
pub mod unseen;
