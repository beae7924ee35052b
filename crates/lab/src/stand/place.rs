//! What a stand stands on.

use crate::age::image::Kind;
use ashlar_units::Bytes;
use ashlar_vfs::Engine;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A file system.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    /// A directory, or an image of ext4, xfs or btrfs.
    Path(PathBuf),
    /// A new image.
    Fresh(Kind, Bytes),
    /// A new pool with a file system of an engine of ours.
    Ashlar(Engine, Bytes),
}

impl FromStr for Place {
    type Err = String;
    /// `ext4:SIZE`, `xfs:SIZE`, `btrfs:SIZE`, `ashlar:SIZE`, `ashlar-betr:SIZE`, or a path.
    fn from_str(text: &str) -> Result<Place, String> {
        let size = |text: &str| text.parse::<Bytes>().map_err(|error| error.to_string());
        match text.split_once(':') {
            Some((kind, bytes)) if !kind.contains('/') => match Engine::of_system(kind) {
                Some(engine) => Ok(Place::Ashlar(engine, size(bytes)?)),
                None => Ok(Place::Fresh(kind.parse()?, size(bytes)?)),
            },
            _ => Ok(Place::Path(text.into())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As it was read: sizes without a blank.
        let (name, size) = match self {
            Place::Path(path) => return write!(f, "{}", path.display()),
            Place::Fresh(kind, size) => (kind.name(), size),
            Place::Ashlar(engine, size) => (engine.system(), size),
        };
        write!(f, "{name}:{}", size.to_string().replace(' ', ""))
    }
}

/// How a stand is made.
#[derive(Clone, Debug)]
pub struct StandOptions {
    /// On what.
    pub place: Place,
    /// An emulated device below it: the name of a model, or a file that ends in `.toml`.
    pub device: Option<String>,
    /// Blocks full of zeros take no room in the image; for this it is served, by the emulated device or at full speed.
    pub sparse: bool,
    /// A file that gets a line of JSON for each request of the emulated device, anew with each mount.
    pub trace: Option<PathBuf>,
    /// More options for mkfs, of a new image.
    pub mkfs_options: Option<String>,
    /// More options for `mount -o`, of images.
    pub mount_options: Option<String>,
    /// Work on the image itself, and not on a copy.
    pub in_place: bool,
    /// For directories: [`super::Stand::cold`] empties the caches of the whole system. Needs root.
    pub drop_caches: bool,
    /// Where copies, new images and pools are made.
    pub scratch: PathBuf,
    /// The program `ashlar`, which serves emulated devices and pools.
    pub program: PathBuf,
    /// Decides what differs from one specimen of a model or image to the next.
    pub seed: u64,
}

impl StandOptions {
    /// A stand with nothing special about it. Copies are in the directory for temporary files.
    pub fn new(place: Place, program: PathBuf) -> StandOptions {
        StandOptions {
            place,
            device: None,
            sparse: false,
            trace: None,
            mkfs_options: None,
            mount_options: None,
            in_place: false,
            drop_caches: false,
            scratch: std::env::temp_dir(),
            program,
            seed: 0,
        }
    }

    /// What is measured, for reports and the ledger.
    pub fn described(&self) -> String {
        let mut text = self.place.to_string();
        for (what, option) in
            [(" on ", &self.device), (", mkfs ", &self.mkfs_options), (", mount ", &self.mount_options)]
        {
            option.iter().for_each(|option| text = format!("{text}{what}{option}"));
        }
        text
    }
}
