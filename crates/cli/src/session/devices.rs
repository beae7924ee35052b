//! What a pool stands on: devices that are added or became larger, and arrays.

use super::Session;
use crate::array::{self, ArrayRequest};
use crate::config;
use crate::output::Failure;
use crate::request::Answer;
use ashlar_array::{Array, MemberState, Pace};
use ashlar_block::{Error, Kind};
use ashlar_devices::is_same;
use ashlar_env::{Env, Task, say};
use ashlar_layers::Stack;
use ashlar_pool::Enlarged;
use ashlar_units::Bytes;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

impl Session {
    /// Bytes that regular files of the pool take from their file systems.
    pub(super) fn file_bytes(&self) -> u64 {
        let Ok(description) = config::read(&self.directory) else { return 0 };
        let files = description.files(&self.directory).filter_map(|path| std::fs::metadata(path).ok());
        files.filter(|file| file.is_file()).map(|file| file.blocks() * 512).sum()
    }

    /// Adds a device, and writes it into the pool's description.
    pub(super) fn grow(&self, path: &Path, force: bool) -> Result<(), Failure> {
        let mut description = config::read(&self.directory)?;
        if description.files(&self.directory).any(|own| is_same(&own, path)) {
            let help = "name another device, or none to take what it became larger by";
            return Err(Failure::new(format!("{} belongs to this pool already; {help}", path.display())));
        }
        let (stack, base, env) = (Stack::of_files(&[path.into()]), self.directory.clone(), self.real.env());
        let device = self.real.block_on(async move { stack.build(&base, &env).await })?.devices.remove(0);
        description.add_file(path);
        let directory = self.directory.clone();
        let list = move || {
            let written = config::write(&directory, &description);
            written.map_err(|failure| Error::new(Kind::Failed, failure.to_string()))
        };
        self.run(|pool| async move { pool.grow(device, force, list).await })?;
        Ok(())
    }

    /// Takes what devices became larger by; says what it was.
    pub(super) fn enlarge(&self) -> Result<String, Failure> {
        let Enlarged { taken, left, least } = self.run(|pool| async move { pool.enlarge().await })?;
        let list = |ends: &[(String, Bytes)]| {
            ends.iter().map(|(name, size)| format!("{size} more of {name}")).collect::<Vec<_>>().join(", ")
        };
        match (taken.is_empty(), left.is_empty()) {
            (false, _) => Ok(format!("took {}", list(&taken))),
            (true, false) => Err(Failure::new(format!(
                "there is {}, and the pool takes at least {least} at once: make it larger, or add a device with --device",
                list(&left)
            ))),
            (true, true) => Err(Failure::new(
                "no device is larger than what the pool has of it: enlarge one first (truncate -s, lvextend, or where the \
                 disk comes from), or add one with --device",
            )),
        }
    }

    /// Asks one of the arrays below the pool. A member that is replaced gets its place in the pool's description.
    pub(super) fn ask_array(
        &self,
        name: Option<&str>,
        request: ArrayRequest,
        progress: impl Fn(u64, u64) + Send + Sync + 'static,
    ) -> Result<Answer, Failure> {
        let known = || self.arrays.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let chosen: Vec<&(String, Arc<Array>)> =
            self.arrays.iter().filter(|(known, _)| name.is_none_or(|name| name == known)).collect();
        if request == ArrayRequest::Status {
            return Ok(Answer::Arrays(array::Arrays(chosen.iter().map(|(_, array)| array.status()).collect())));
        }
        let (layer, array) = match chosen[..] {
            [one] => one.clone(),
            [] if self.arrays.is_empty() => return Err(Failure::new("the pool stands on no array")),
            [] => return Err(Failure::new(format!("there is no such array; there are: {}", known()))),
            _ => return Err(Failure::new(format!("which array? --array names one of: {}", known()))),
        };
        let env = self.real.env();
        if let ArrayRequest::Replace { member, path, force, rate } = request {
            let turn = self.changing.lock();
            let mut description = config::read(&self.directory)?;
            let name = description.member_name(&layer);
            let new = {
                let (array, name, path) = (array.clone(), name.clone(), path.clone());
                self.real.block_on(async move { array::replace(&env, &array, member, (name, &path), force).await })
            };
            new?;
            let failed = array.status().members.iter().filter(|member| member.state == MemberState::Failed).count();
            description.replace_member(&layer, &name, &array.members_in_use(), failed == 0, &path);
            config::write(&self.directory, &description)?;
            drop(turn);
            return self.ask_array(Some(&layer), ArrayRequest::Rebuild { rate }, progress);
        }
        let stop = std::sync::atomic::AtomicBool::new(false);
        let answer = self.real.block_on(async move { array::perform(&env, &array, request, &stop, progress).await });
        Ok(answer?)
    }
}

/// Goes on with a rebuild that an earlier process began.
pub fn go_on(env: &Env, name: &str, array: &Arc<Array>) -> Option<Task<()>> {
    let unfinished = array.status().members.iter().any(|member| member.state == MemberState::Rebuilding);
    let (name, array) = (name.to_string(), array.clone());
    unfinished.then(|| {
        env.spawn_aside(async move {
            let never = std::sync::atomic::AtomicBool::new(false);
            match array.rebuild(Pace::default(), &never, |_| ()).await {
                Ok(rebuilt) if rebuilt.lost > 0 => {
                    say::error(format_args!(
                        "ashlar: rebuilding {name} lost {} blocks: {:?}",
                        rebuilt.lost, rebuilt.blocks
                    ));
                }
                Ok(_) => {}
                Err(error) => say::error(format_args!("ashlar: rebuilding {name}: {error}")),
            }
        })
    })
}
