//! Many files in a tree, as FileBench makes them.
//!
//! The directory of a file is its number divided by the width, whose digits to the base of the width are the names above it.
//! So directories have as many files as the width says, and files a depth of about ln(files) / ln(width).

use super::calls::{Caller, alone};
use super::{Stage, Values, WorkloadError};
use crate::history::synthetic::Sizes;
use ashlar_models::Chance;
use ashlar_survey::sample::{fast_hash, mix};
use std::sync::Arc;

/// ln(files) / ln(width): the *depth* of Table 1.
pub fn depth(files: u64, width: u64) -> f64 {
    (files as f64).ln() / (width as f64).ln()
}

/// Files with their sizes.
#[derive(Clone, Debug)]
pub struct FileSet {
    root: &'static str,
    pub files: u64,
    width: u64,
    sizes: Sizes,
    /// Share of the files that are there before.
    there: f64,
    unit: u64,
    seed: u64,
}

impl FileSet {
    /// Of the parameters `files`, `width`, `mean`, `shape`, `there` and `unit`.
    pub fn new(root: &'static str, values: &Values) -> Result<Arc<FileSet>, WorkloadError> {
        let (mean, shape) = (values.some("mean")? as f64, values.number("shape"));
        let width = values.some("width")?;
        if width < 2 {
            return Err(WorkloadError("width of a tree of files is at least 2".into()));
        }
        Ok(Arc::new(FileSet {
            root,
            files: values.some("files")?,
            width,
            sizes: Sizes::Gamma(mean, shape),
            there: values.number("there"),
            unit: values.some("unit")?,
            seed: values.seed(),
        }))
    }

    fn directory(&self, mut number: u64) -> String {
        let mut names = Vec::new();
        while number > 0 {
            names.push(format!("/d{:02}", number % self.width));
            number /= self.width;
        }
        names.reverse();
        format!("{}{}", self.root, names.concat())
    }

    /// The path of a file.
    pub fn path(&self, file: u64) -> String {
        format!("{}/f{file:07}", self.directory(file / self.width))
    }

    /// The size with which a file is made; the same each time.
    pub fn size(&self, file: u64) -> u64 {
        self.sizes.draw(&mut Chance::new(mix(mix(self.seed, 0x512e), file)))
    }

    /// Whether it is there before.
    pub fn is_there(&self, file: u64) -> bool {
        fast_hash(self.seed ^ 0x7e4e, file) < self.there
    }

    /// Makes directories and files, one after the other.
    pub fn setup(self: &Arc<Self>, stage: u64) -> Stage {
        let set = self.clone();
        let directories = (set.files - 1) / set.width + 1;
        let mut number = 0;
        alone(stage, set.seed, move |caller| {
            if number == directories + set.files {
                return false;
            }
            if number < directories {
                caller.mkdir(&set.directory(number));
            } else {
                let file = number - directories;
                if set.is_there(file) {
                    caller.write_file(&set.path(file), set.size(file), set.unit);
                }
            }
            number += 1;
            true
        })
    }
}

/// The files of a set that one thread works with: those whose number leaves the thread's when divided by the number of
/// threads. So threads need not ask each other which files there are.
pub struct Share {
    pub set: Arc<FileSet>,
    thread: u64,
    threads: u64,
    /// Sizes of the files, those that are not there as `None`.
    sizes: Vec<Option<u64>>,
    there: usize,
}

impl Share {
    pub fn new(set: &Arc<FileSet>, thread: u64, threads: u64) -> Result<Share, WorkloadError> {
        let own = (thread..set.files).step_by(threads as usize);
        let sizes: Vec<Option<u64>> = own.map(|file| set.is_there(file).then(|| set.size(file))).collect();
        let there = sizes.iter().flatten().count();
        if sizes.len() < 2 {
            let (files, least) = (set.files, 2 * threads);
            return Err(WorkloadError(format!(
                "{files} files are too few for {threads} threads: take {least} or more"
            )));
        }
        Ok(Share { set: set.clone(), thread, threads, sizes, there })
    }

    fn file(&self, index: usize) -> u64 {
        index as u64 * self.threads + self.thread
    }

    /// Any file that is there, or is not; `None` if there is no such file. Bounded tries, then the next one of the kind.
    fn any(&self, there: bool, chance: &mut Chance) -> Option<usize> {
        let fits = |index: &usize| self.sizes[*index].is_some() == there;
        let len = self.sizes.len();
        let at = chance.below(len as u64) as usize;
        (at..len).chain(0..at).find(fits)
    }

    /// A file that is there: path, size.
    pub fn existing(&mut self, caller: &mut Caller) -> Option<(usize, String, u64)> {
        let index = self.any(true, &mut caller.chance)?;
        Some((index, self.set.path(self.file(index)), self.sizes[index].unwrap_or(0)))
    }

    /// A file that was not there, and is from now on, of a new size.
    pub fn make(&mut self, caller: &mut Caller) -> Option<(usize, String, u64)> {
        let index = self.any(false, &mut caller.chance)?;
        let size = self.set.sizes.draw(&mut caller.chance);
        self.sizes[index] = Some(size);
        self.there += 1;
        Some((index, self.set.path(self.file(index)), size))
    }

    /// It has another size now.
    pub fn has(&mut self, index: usize, size: u64) {
        self.sizes[index] = Some(size);
    }

    /// A file that is not there any more.
    pub fn remove(&mut self, caller: &mut Caller) -> Option<String> {
        // One stays, so that there is one to read.
        let index = if self.there > 1 { self.any(true, &mut caller.chance)? } else { return None };
        self.sizes[index] = None;
        self.there -= 1;
        Some(self.set.path(self.file(index)))
    }
}
