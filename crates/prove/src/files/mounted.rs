//! Histories in a directory of a mounted file system: tmpfs as control of the model, ours through FUSE, or any other.

use super::directory::Directory;
use super::generator::{Caller, Generator};
use super::history::{Found, Tally, examine, step};
use super::model::Model;
use super::operation::Op;
use super::tested::text;
use crate::pool::{Failure, run_history};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What a history came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountedOutcome {
    /// Operations whose answers agreed.
    pub operations: u64,
    /// Operations among them that succeeded.
    pub succeeded: u64,
    /// Operations that the file system does not support.
    pub lacking: BTreeSet<String>,
}

/// A directory in which a history ran, and what must be in it.
pub struct Mounted {
    seed: u64,
    at: PathBuf,
    model: Model,
}

impl Mounted {
    /// Runs a history of `steps` operations in a new directory in `within`. Nothing outside of it is touched, but the
    /// umask of this process is cleared.
    pub fn run(seed: u64, within: &Path, steps: u64) -> Result<(Mounted, MountedOutcome), Failure> {
        let caller = Caller { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        rustix::process::umask(rustix::fs::Mode::empty());
        let at = within.join(format!("ashlar-prove-{seed}"));
        let failed = |what: String| Failure { seed, what: format!("{}: {what}", at.display()) };
        std::fs::create_dir(&at).map_err(|error| failed(text(error)))?;
        let path = at.clone();
        let history = move |_| async move {
            let mut directory = Directory::open(&path, true).map_err(text)?;
            let mut model = Model::new(caller.uid, caller.gid);
            // Where the new directory got another mode or group than asked for, make it plain.
            let root = super::Target::At(super::Place::default());
            let mut tally = Tally::default();
            for op in [
                Op::Chmod { of: root.clone(), permissions: 0o755 },
                Op::Chown { of: root, uid: caller.uid, gid: caller.gid },
            ] {
                step(&mut directory, &mut model, &op, &mut tally).await?;
            }
            work(&mut directory, &mut model, Generator::new(seed, caller), steps, &mut tally).await?;
            examine(&mut directory, &model, &mut tally).await?;
            model.forget_handles();
            Found::Ok((model, tally))
        };
        let ((model, tally), _) = run_history(seed, history).map_err(|failure| failed(failure.what))?;
        let outcome =
            MountedOutcome { operations: tally.operations, succeeded: tally.succeeded, lacking: tally.lacking };
        Ok((Mounted { seed, at, model }, outcome))
    }

    /// Compares everything once more, as after unmounting and mounting again.
    pub fn verify(&self) -> Result<(), Failure> {
        let (at, model) = (self.at.clone(), self.model.clone());
        let look = move |_| async move {
            let mut directory = Directory::open(&at, true).map_err(text)?;
            examine(&mut directory, &model, &mut Tally::default()).await
        };
        run_history(self.seed, look).map(|_| ())
    }

    /// Removes the directory.
    pub fn remove(self) -> Result<(), Failure> {
        let failed = |what: String| Failure { seed: self.seed, what: format!("{}: {what}", self.at.display()) };
        std::fs::remove_dir_all(&self.at).map_err(|error| failed(text(error)))
    }
}

async fn work(
    directory: &mut Directory,
    model: &mut Model,
    mut generator: Generator,
    steps: u64,
    tally: &mut Tally,
) -> Found<()> {
    for number in 0..steps {
        let op = if generator.dice.one_in(40) { Op::Sync } else { generator.next(model) };
        step(directory, model, &op, tally).await.map_err(|error| format!("operation {number}: {error}"))?;
    }
    Ok(())
}

/// Runs a history in a directory of a mounted file system, and removes what it left if everything agreed.
pub fn explore_mounted(seed: u64, within: &Path, steps: u64) -> Result<MountedOutcome, Failure> {
    let (mounted, outcome) = Mounted::run(seed, within, steps)?;
    mounted.verify()?;
    mounted.remove()?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The control: where the model is wrong about Linux, this fails.
    #[test]
    fn tmpfs_agrees_with_the_model() {
        let within = Path::new("/dev/shm");
        let mut all = MountedOutcome::default();
        for seed in 0..40 {
            let outcome = explore_mounted(seed, within, 300).unwrap_or_else(|failure| panic!("{failure:?}"));
            all.operations += outcome.operations;
            all.succeeded += outcome.succeeded;
            all.lacking.extend(outcome.lacking);
        }
        println!("{} of {} operations succeeded; tmpfs lacks {:?}", all.succeeded, all.operations, all.lacking);
        assert!(all.succeeded * 2 > all.operations, "most operations fail: {all:?}");
    }
}
