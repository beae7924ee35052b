//! Files that stand for devices, as commands are given them.

use crate::arguments::DeviceArgument;
use crate::config;
use crate::output::Failure;
use ashlar_devices::is_same;
use ashlar_units::Bytes;
use std::path::{Path, PathBuf};

/// Device files of a command. Those that it made go with it, unless it says that they stay: so a command that failed can be
/// given again, with another size.
#[derive(Default)]
pub struct DeviceFiles(Vec<PathBuf>);

impl DeviceFiles {
    /// Where a device is. A file is made if it is missing and a size is given; one that is there must have this size.
    pub fn path(&mut self, device: &DeviceArgument) -> Result<PathBuf, Failure> {
        let path = std::path::absolute(&device.path).map_err(|error| Failure::new(error.to_string()))?;
        if config::make_file(&path, device.size)? {
            self.0.push(path.clone());
        } else if let Some(size) = device.size {
            refuse_other_size(&path, size)?;
        }
        Ok(path)
    }

    /// Where several are.
    pub fn paths(&mut self, devices: &[DeviceArgument]) -> Result<Vec<PathBuf>, Failure> {
        let paths: Vec<PathBuf> = devices.iter().map(|device| self.path(device)).collect::<Result<_, _>>()?;
        let twice =
            paths.iter().enumerate().find(|(index, path)| paths[..*index].iter().any(|other| is_same(other, path)));
        match twice {
            Some((_, path)) => Err(Failure::new(format!("{} is named twice; name each device once", path.display()))),
            None => Ok(paths),
        }
    }

    /// There is something on them now.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

/// Nothing gives a size to what is there already.
fn refuse_other_size(path: &Path, size: Bytes) -> Result<(), Failure> {
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|error| Failure::new(format!("cannot examine {shown}: {error}")))?;
    if !found.is_file() {
        return Err(Failure::new(format!("{shown} is no file, and has the size that it has: leave size= away")));
    }
    if found.len() != size.0 {
        let message = format!(
            "{shown} is there already and has {} ({} bytes), not {size}: leave size= away to take it as it is, or name \
             another file",
            Bytes(found.len()),
            found.len()
        );
        return Err(Failure::new(message));
    }
    Ok(())
}

impl Drop for DeviceFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // What cannot be removed is an empty file.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Where a device is, for those who must keep the file whatever comes, since it may be in use after an error.
pub fn device_file(device: &DeviceArgument) -> Result<PathBuf, Failure> {
    let mut files = DeviceFiles::default();
    let path = files.path(device)?;
    files.keep();
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_once_and_as_large_as_it_is() {
        let at = std::env::temp_dir().join(format!("ashlar-named-{}", std::process::id()));
        let device = |text: String| text.parse::<DeviceArgument>().expect("a device");
        let devices = [
            device(format!("{},size=1MiB", at.display())),
            device(format!("{}/./{}", at.parent().expect("a directory").display(), at.file_name().unwrap().display())),
        ];
        let mut files = DeviceFiles::default();
        assert_eq!(files.paths(&devices[..1]).expect("one device").len(), 1);
        let again = |size: &str| DeviceFiles::default().path(&device(format!("{},size={size}", at.display())));
        assert!(again("1MiB").is_ok());
        let refused = again("2MiB").expect_err("it has another size").to_string();
        assert!(refused.contains("has 1 MiB (1048576 bytes), not 2 MiB: leave size= away"), "{refused}");
        let refused = DeviceFiles::default().paths(&devices).expect_err("the same twice").to_string();
        drop(files);
        assert!(refused.contains("is named twice") && !at.exists(), "{refused}");
        assert!("".parse::<DeviceArgument>().is_err() && ",size=1MiB".parse::<DeviceArgument>().is_err());
    }
}
