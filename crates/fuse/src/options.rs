//! How to mount.

use crate::flags::Flags;
use crate::report::OnDamage;
use ashlar_units::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// How to mount a file system. The default suits a local file system with one writer, this process.
#[derive(Clone)]
pub struct Options {
    /// What `df` and `/proc/mounts` show as the source.
    pub source: String,
    /// Nothing can be written, and that for good.
    pub read_only: bool,
    /// What mounts may be besides.
    pub flags: Flags,
    /// The page cache collects writes and sends them in large pieces. Off, every `write` is a request: slower, but a
    /// crash of this process loses nothing that `write` returned for.
    pub writeback: bool,
    /// Reads and writes of files go past the page cache, and writes to one file may overlap, as for a block device. Takes
    /// an OPEN request for each open, and turns `writeback` off.
    pub direct: bool,
    /// For how long the kernel may rely on names, present and absent, and on attributes. We are the only writer, so
    /// practically for ever.
    pub timeout: Duration,
    /// Requests come over io_uring where that is faster and allowed. Off, they come through the device.
    pub over_io_uring: bool,
    /// Largest data of a request; the kernel's `fs.fuse.max_pages_limit` may lower it.
    pub max_data: Bytes,
    /// Largest write request where the page cache collects writes. It sends very many at once, and requests that a program waits for
    /// go behind those: on a slow device they should be small, while reading ahead goes best in large ones.
    pub max_write_back: Bytes,
    /// Memory for requests over io_uring, shared by all processors. With little, requests are smaller than [`max_data`](Self::max_data):
    /// see [`Mount::buffers`](crate::Mount::buffers).
    pub buffers: Bytes,
    /// How far the kernel reads ahead of a sequential reader, at most; no more than a 512th of the machine's memory, since
    /// each reader takes twice as much of it.
    pub read_ahead: Bytes,
    /// Takes reports of damage, at most ten a second. The default prints them to standard error.
    pub on_damage: OnDamage,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            source: "ashlar".into(),
            read_only: false,
            flags: Flags::default(),
            writeback: true,
            direct: false,
            timeout: Duration::from_secs(10 * 365 * 86_400),
            over_io_uring: true,
            max_data: Bytes(1 << 20),
            max_write_back: Bytes(256 << 10),
            buffers: Bytes(64 << 20),
            read_ahead: Bytes(32 << 20),
            on_damage: Arc::new(|damage| ashlar_env::say::error(format_args!("ashlar: {damage}"))),
        }
    }
}
