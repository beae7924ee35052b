//! Lists in the pool's directory: TOML files of what there is, by names. One process at a time changes a list.

use crate::config;
use crate::output::Failure;
use serde::Serialize;
use std::path::Path;

/// A list `NAME.toml`, and `NAME.lock` beside it.
pub struct ListFile<T> {
    /// What is listed.
    pub name: &'static str,
    /// Reads its text.
    pub parse: fn(&str) -> Result<T, String>,
}

impl<T: Serialize + Default> ListFile<T> {
    /// Reads the list; without a file it is empty.
    pub fn read(&self, directory: &Path) -> Result<T, Failure> {
        let path = directory.join(self.name).with_added_extension("toml");
        match std::fs::read_to_string(&path) {
            Ok(text) => (self.parse)(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
            Err(error) => Err(Failure::new(format!("{}: {error}", path.display()))),
        }
    }

    /// Changes the list; nobody else does at the same time.
    pub fn change<R>(&self, directory: &Path, change: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        let fail = |error: std::io::Error| Failure::new(format!("{}: {error}", directory.display()));
        std::fs::create_dir_all(directory).map_err(fail)?;
        let path = directory.join(self.name);
        let lock = config::lock_file(&path.with_added_extension("lock")).map_err(fail)?;
        lock.lock().map_err(fail)?;
        let mut list = self.read(directory)?;
        let outcome = change(&mut list)?;
        let text = toml::to_string_pretty(&list).map_err(|error| Failure::new(error.to_string()))?;
        config::replace(&path.with_added_extension("toml"), &text)?;
        Ok(outcome)
    }
}
