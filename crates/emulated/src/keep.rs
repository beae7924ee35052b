//! Wear across restarts: the state of a model as a file.
//!
//! A line `ashlar model 1`, then, compressed with zstd and its checksum: the length of the model's description (u64, little
//! endian), the description, the seed (u64), and what the model saved. The file is replaced as a whole.

use ashlar_block::{Error, Result};
use ashlar_models::{Model, ModelFile};
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"ashlar model 1\n";
const DESCRIPTION_MAX: u64 = 1 << 20;

/// Where the state of a device is kept.
pub(crate) struct Keep {
    path: PathBuf,
    description: String,
    seed: u64,
}

impl Keep {
    /// A file for this model and seed. Brings `model` into the state that it holds, if it is there.
    pub(crate) fn open(path: &Path, file: &ModelFile, seed: u64, model: &mut dyn Model) -> Result<Keep> {
        let keep = Keep { path: path.into(), description: file.description(), seed };
        let refused = |error: io::Error| {
            let mend = "remove the file to begin with a new device, or give the model and seed that it was made with";
            Error::misuse(format!("{}: {error}; {mend}", path.display()))
        };
        match File::open(path) {
            Ok(file) => keep.read(BufReader::new(file), model).map_err(refused)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::misuse(format!("{}: {error}", path.display()))),
        }
        Ok(keep)
    }

    fn read(&self, mut file: impl Read, model: &mut dyn Model) -> io::Result<()> {
        let other = |what: &str| io::Error::other(format!("this is the state of a device with another {what}"));
        let mut magic = [0; MAGIC.len()];
        if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
            return Err(io::Error::other("this is no state of an emulated device"));
        }
        let mut file = BufReader::new(zstd::Decoder::new(file)?);
        let mut number = [0; 8];
        file.read_exact(&mut number)?;
        let mut description = Vec::new();
        (&mut file).take(u64::from_le_bytes(number).min(DESCRIPTION_MAX)).read_to_end(&mut description)?;
        if description != self.description.as_bytes() {
            return Err(other("model"));
        }
        file.read_exact(&mut number)?;
        if u64::from_le_bytes(number) != self.seed {
            return Err(other("seed"));
        }
        model.restore(&mut file)?;
        // To the end, where the checksum is.
        match file.read(&mut number)? {
            0 => Ok(()),
            _ => Err(io::Error::other("the file is longer than the state")),
        }
    }

    /// Replaces the file.
    pub(crate) fn write(&self, model: &dyn Model) -> io::Result<()> {
        let new = self.path.with_added_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(MAGIC)?;
        let mut out = zstd::Encoder::new(&file, 1)?;
        out.include_checksum(true)?;
        let mut out = BufWriter::new(out);
        out.write_all(&(self.description.len() as u64).to_le_bytes())?;
        out.write_all(self.description.as_bytes())?;
        out.write_all(&self.seed.to_le_bytes())?;
        model.save(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
        file.sync_all()?;
        fs::rename(new, &self.path)
    }
}
