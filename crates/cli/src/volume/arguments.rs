//! `ashlar volume`: what can be said.

use crate::arguments::{DeviceArgument, Exported};
use ashlar_array::Level;
use ashlar_units::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use std::str::FromStr;

#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Make a volume on files or devices of its own. What they hold is lost.
    Create(VolumeCreate),
    /// List volumes.
    List,
    /// Serve a volume over NBD, as a file in a mount, or both, until Ctrl-C.
    Serve(VolumeServe),
    /// Read and verify everything in a volume that is not served: pointers, data and the map of free space. Exit code 1 if
    /// something is wrong.
    Check {
        /// Its name.
        name: String,
    },
    /// Take a volume from the list. What its devices hold stays, until something else is made on them with --force.
    Rm {
        /// Its name.
        name: String,
    },
}

/// What lays out a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VolumeEngine {
    /// Small updates wait in staging, and move next to their neighbours on the disk, many at a time; docs/proximal.md
    Proximal,
}

#[derive(Args)]
pub struct VolumeCreate {
    /// Its name: 3 to 63 lower-case letters, digits, '.' and '-'.
    pub name: String,
    /// How it is laid out.
    #[arg(long, value_enum)]
    pub engine: VolumeEngine,
    /// A file or block device for the data; several with --array. A regular file is taken at its present size, or made with the
    /// given one.
    #[arg(long = "device", value_name = "PATH[,size=SIZE]", required = true)]
    pub devices: Vec<DeviceArgument>,
    /// Make an array of the devices: raid0, raid1, raid4, raid5 or raid6; raid4(4+1) also says how many devices that must be, with
    /// data and with redundancy.
    #[arg(long, value_name = "LEVEL")]
    pub array: Option<ArrayArgument>,
    /// A file or block device for staging: flash, about 1.5 % of the data. It is the only home of what is staged.
    #[arg(long, value_name = "PATH[,size=SIZE]")]
    pub staging: DeviceArgument,
    /// How large the volume is; it is thin. Default: 89 % of the devices.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Bytes>,
    /// Most data that are staged. Default: half of the staging device.
    #[arg(long, value_name = "SIZE")]
    pub staged: Option<Bytes>,
    /// Overwrite what the devices hold.
    #[arg(long)]
    pub force: bool,
}

#[derive(Args)]
pub struct VolumeServe {
    /// Its name.
    pub name: String,
    #[command(flatten)]
    pub exported: Exported,
    /// Threads that serve. Default: one per processor, at most 64.
    #[arg(long)]
    pub threads: Option<usize>,
}

/// `LEVEL`, or `LEVEL(DATA+REDUNDANCY)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayArgument {
    pub level: Level,
    /// Members that it must have.
    pub members: Option<usize>,
}

impl FromStr for ArrayArgument {
    type Err = String;
    fn from_str(text: &str) -> Result<ArrayArgument, String> {
        let help = || format!("{text:?} is no array: write a level with its members, as in raid4(4+1), or raid4 alone");
        let Some((level, members)) = text.split_once('(') else {
            return Ok(ArrayArgument { level: text.parse()?, members: None });
        };
        let level: Level = level.trim().parse()?;
        let (data, redundancy) =
            members.trim_end().strip_suffix(')').and_then(|m| m.split_once('+')).ok_or_else(help)?;
        let number =
            |text: &str| text.trim().parse::<usize>().ok().filter(|number| *number <= 1 << 10).ok_or_else(help);
        let (data, redundancy) = (number(data)?, number(redundancy)?);
        let members = data + redundancy;
        if data == 0 || level.parity(members.max(1)) != redundancy {
            let has = level.parity(members.max(1));
            return Err(format!("a {level} of {members} has {has} of them for redundancy, and not {redundancy}"));
        }
        Ok(ArrayArgument { level, members: Some(members) })
    }
}
