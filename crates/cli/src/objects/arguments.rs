//! What can be said about buckets and objects.

use crate::arguments::DeviceArgument;
use ashlar_units::Bytes;
use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum BucketCommand {
    /// Make a bucket.
    Create(BucketCreate),
    /// List buckets.
    List,
    /// Destroy a bucket, which must be empty.
    Rm {
        /// Its name.
        name: String,
        /// Destroy what is in it, too.
        #[arg(long)]
        force: bool,
    },
}

#[derive(Args)]
pub struct BucketCreate {
    /// Its name: 3 to 63 lower-case letters, digits, '.' and '-'.
    pub name: String,
    /// What keeps its objects.
    #[arg(long, value_parser = super::engines::values())]
    pub engine: String,
    /// A file or block device of its own, for engines that take one. What it holds is lost. A regular file is taken at its
    /// present size, or made with the given one.
    #[arg(long, value_name = "PATH[,size=SIZE]")]
    pub device: Option<DeviceArgument>,
    /// A file or block device for staging, for engines that take one: flash. What it holds is lost.
    #[arg(long, value_name = "PATH[,size=SIZE]")]
    pub staging: Option<DeviceArgument>,
    /// Overwrite a device that holds objects already.
    #[arg(long)]
    pub force: bool,
}

#[derive(Subcommand)]
pub enum ObjectsCommand {
    /// Store a file as an object.
    Put {
        /// BUCKET/KEY; with a '/' at its end, the file's name follows.
        to: Place,
        /// The file; '-' is standard input.
        file: PathBuf,
        /// Refuse to replace an object.
        #[arg(long)]
        new: bool,
    },
    /// Write an object to a file.
    Get {
        /// BUCKET/KEY.
        from: Place,
        /// The file, which is replaced; '-' is standard output.
        file: PathBuf,
    },
    /// List objects.
    List {
        /// BUCKET, or BUCKET/PREFIX.
        of: Place,
        /// At most so many.
        #[arg(long, default_value_t = 1_000_000)]
        limit: usize,
    },
    /// Delete objects.
    Rm {
        /// BUCKET/KEY, or BUCKET/PREFIX with --recursive.
        what: Place,
        /// Delete all objects whose names begin so.
        #[arg(short, long)]
        recursive: bool,
    },
    /// What an object is.
    Stat {
        /// BUCKET/KEY.
        what: Place,
    },
    /// Read every object and compare it with its checksum.
    Verify {
        /// BUCKET, or BUCKET/PREFIX.
        of: Place,
    },
}

/// BUCKET, or BUCKET/KEY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub bucket: String,
    /// Empty if there is none.
    pub key: String,
}

impl std::str::FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Place, String> {
        let (bucket, key) = text.strip_prefix("s3://").unwrap_or(text).split_once('/').unwrap_or((text, ""));
        let bucket = bucket.strip_prefix("s3://").unwrap_or(bucket);
        if bucket.is_empty() {
            return Err(format!("{text:?} names no bucket: write BUCKET/KEY, as in photos/2026/a.jpg"));
        }
        Ok(Place { bucket: bucket.into(), key: key.into() })
    }
}

#[derive(Subcommand)]
pub enum S3Command {
    /// Serve the buckets to aws, s3cmd, rclone and programs, until Ctrl-C.
    Serve(S3Serve),
}

#[derive(Args)]
pub struct S3Serve {
    /// Where to listen; port 0 lets the system choose. Other than loopback addresses need credentials.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    pub listen: SocketAddr,
    /// Who may come in: a file of lines ACCESS_KEY SECRET that only you can read. Without it everybody on this machine.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Encrypt: a PEM file with the server's certificate.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// BUCKET.DOMAIN in the header Host names a bucket, beside paths.
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// The engine of buckets that clients make.
    #[arg(long, default_value = "pool", value_parser = super::engines::values())]
    pub engine: String,
    /// Memory for bodies under way; caches of pools come on top, with as much.
    #[arg(long, default_value = "512MiB")]
    pub memory: Bytes,
    /// Clients at once; more wait.
    #[arg(long, default_value_t = 1024)]
    pub clients: usize,
    /// Threads that serve. Default: one per processor, at most 64.
    #[arg(long)]
    pub threads: Option<usize>,
}
