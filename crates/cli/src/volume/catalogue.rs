//! The list of volumes: `volumes.toml` in the pool's directory.

use crate::list::ListFile;
use crate::output::Failure;
use ashlar_layers::Stack;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// A volume, as the list has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// What it is, down to its devices.
    pub stack: Stack,
}

/// Volumes by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    #[serde(default)]
    pub volume: BTreeMap<String, Spec>,
}

/// The file.
pub const LIST: ListFile<Catalogue> = ListFile { name: "volumes", parse };

/// Reads the text of `volumes.toml`.
pub fn parse(text: &str) -> Result<Catalogue, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// What a volume is.
pub fn find(directory: &Path, name: &str) -> Result<Spec, Failure> {
    LIST.read(directory)?.volume.remove(name).ok_or_else(|| missing(name))
}

pub fn missing(name: &str) -> Failure {
    Failure::new(format!("there is no volume {name:?}; `ashlar volume list` names all"))
}

#[cfg(test)]
mod tests {
    use super::{Catalogue, Spec, parse};
    use ashlar_layers::Stack;

    #[test]
    fn lists_of_volumes() {
        let stack = Stack::of_files(&["/dev/sdb".into()]);
        let catalogue = Catalogue { volume: [("vm1".to_string(), Spec { created: 7, stack })].into() };
        assert_eq!(parse(&toml::to_string_pretty(&catalogue).expect("text")), Ok(catalogue));
        assert_eq!(parse(""), Ok(Catalogue::default()));
        for wrong in ["[volume.vm1]\ncreated = 1", "[x]", "[volume.vm1]\ncreated = 1\nstack = { devices = 1 }"] {
            parse(wrong).expect_err(wrong);
        }
    }
}
