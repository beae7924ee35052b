//! `ashlar array`: what can be said.

use crate::arguments::DeviceArgument;
use ashlar_array::Level;
use ashlar_units::Bytes;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Subcommand)]
pub enum ArrayCommand {
    /// Make an array on files or devices. What they hold is lost. A stack file then names it as a layer of kind raid.
    Create(Create),
    /// How arrays fare: those of a pool, or those on the given devices.
    Status {
        #[command(flatten)]
        at: At,
    },
    /// Read and verify everything, parity too, and change nothing. Exit code 1 if something was wrong.
    Check {
        #[command(flatten)]
        work: Work,
    },
    /// Read and verify everything, parity too, and repair what can be repaired. Exit code 1 if something is lost.
    Scrub {
        #[command(flatten)]
        work: Work,
    },
    /// Put a device in the place of a member, and fill it. Exit code 1 if blocks were lost.
    Replace {
        /// The member's number, as `ashlar array status` shows it.
        #[arg(long, value_name = "N")]
        member: usize,
        /// The new device. A regular file is taken at its present size, or made with the given one.
        #[arg(long, value_name = "PATH[,size=SIZE]")]
        with: DeviceArgument,
        /// Overwrite what it holds.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        work: Work,
    },
    /// Go on with a rebuild that was stopped. Exit code 1 if blocks were lost.
    Rebuild {
        #[command(flatten)]
        work: Work,
    },
}

#[derive(Args)]
pub struct Create {
    /// raid0, raid1, raid4, raid5 or raid6.
    #[arg(long, value_parser = Level::from_str)]
    pub level: Level,
    /// A member: a file or block device. A regular file is taken at its present size, or made with the given one.
    #[arg(long = "device", value_name = "PATH[,size=SIZE]", required = true)]
    pub devices: Vec<DeviceArgument>,
    /// Stripe unit on a member, a multiple of 4 KiB: of 1 MiB, 1008 KiB are data and 16 KiB checksums.
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub unit: Bytes,
    /// Journal on each member.
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    pub journal: Bytes,
    /// Overwrite what the devices hold.
    #[arg(long)]
    pub force: bool,
}

/// Which array.
#[derive(Args)]
pub struct At {
    /// The members of an array that no pool uses at the moment; all of them. Without it the arrays of the pool are meant.
    #[arg(long = "device", value_name = "PATH")]
    pub devices: Vec<PathBuf>,
    /// With --device: some members are gone. They must be rebuilt afterwards.
    #[arg(long, requires = "devices")]
    pub degraded: bool,
    /// The array of a pool that has several: the name of its layer.
    #[arg(long, value_name = "LAYER", conflicts_with = "devices")]
    pub array: Option<String>,
}

#[derive(Args)]
pub struct Work {
    #[command(flatten)]
    pub at: At,
    /// Bytes of each member in a second, at most. Default: as fast as users of the array allow.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<Bytes>,
}
