//! Stands, by what the command line says.

use super::arguments::StandArguments;
use crate::output::Failure;
use ashlar_lab::stand::StandOptions;

impl StandArguments {
    /// How the stand is made; servers are this program.
    pub fn options(&self, seed: u64) -> Result<StandOptions, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::new(error.to_string()))?;
        // An unknown model is told before anything is made.
        let found = self.device.as_deref().map(crate::device::find).transpose();
        found.map_err(|failure| failure.with_code(2))?;
        let given = StandOptions::new(self.place.clone(), program);
        Ok(StandOptions {
            device: self.device.clone(),
            mkfs_options: self.mkfs_options.clone(),
            mount_options: self.mount_options.clone(),
            in_place: self.in_place,
            drop_caches: self.drop_caches,
            scratch: self.scratch.clone().unwrap_or(given.scratch),
            seed,
            ..given
        })
    }
}
