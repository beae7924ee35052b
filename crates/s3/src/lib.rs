//! Object stores for others: S3 over HTTP.
//!
//! The protocol is the library s3s (signatures, chunks, XML, over hyper); what requests mean is here, over any
//! [`Store`](ashlar_objects::Store). Tokio stays in this crate: stores run on their own runtime, where each call is
//! spawned.
//!
//! Invariants
//!  1. Nobody sees an object before its request ended well: bodies go into the store in pieces under names that no key has,
//!     and one `compose` makes them the object. Pieces of requests that end otherwise are deleted; those that a crash left,
//!     when the bucket is opened the next time.
//!  2. A change that was answered survives a crash.
//!  3. What a client says about his bytes (signature, MD5, checksums, length) is compared with them before they are seen.
//!  4. Memory is bounded: see [`Limits`]. A request takes all memory for its body at once, before the first byte, and only
//!     after its signature was found good.
//!  5. Without credentials only loopback addresses are served.
//!
//! Costs      a body of up to 8 MiB is one `put`; a longer one is a `put` for each 8 MiB and a `compose`.
//! Departs    from S3: see docs/s3.md.

mod body;
mod buckets;
mod budget;
mod credentials;
mod described;
mod error;
mod gateway;
mod lanes;
mod names;
mod outlet;
mod parts;
mod rechunk;
mod server;
mod service;
mod sums;
mod tls;

pub use buckets::{BucketError, BucketInfo, Buckets, InMemory};
pub use credentials::Credentials;
pub use server::{Limits, Options, Server};
pub use tls::Tls;

/// Whether a bucket may have this name: 3 to 63 lower-case letters, digits, '.' and '-', as S3 has it; no '.' beside a '-',
/// for names are parts of hosts' names.
pub fn is_bucket_name(name: &str) -> bool {
    s3s::path::check_bucket_name(name) && !name.contains(".-") && !name.contains("-.")
}
