//! The history of a git repository as `git checkout` of one commit after the other does it: what a commit changes is
//! unlinked and made anew, and at the end all files are read, as by `grep` (Conway et al., *File Systems Fated for Senescence?*,
//! FAST '17).
//!
//! Names are numbers, since histories have no others.

use super::calls::alone;
use super::{Kind, Parameter, Plan, Unit, Values, WorkloadError};
use crate::history::git::commits;
use crate::history::{Act, Builder, Header, HistoryReader, ROOT, Record};
use crate::trace::flags::{CREATE, EXCLUSIVE, WRITE};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// See the module.
pub static GIT_HISTORY: Kind = Kind {
    name: "git-history",
    what: "checks out the commits of a repository one after the other, and reads everything at the end",
    source: "Conway et al., FAST '17; the repository's own commits",
    parameters: &[
        Parameter { name: "repository", unit: Unit::Path, default: ".", what: "the repository" },
        Parameter { name: "revision", unit: Unit::Path, default: "HEAD", what: "up to which commit" },
        Parameter {
            name: "records",
            unit: Unit::Count,
            default: "1000000000",
            what: "changes at most, from the first on",
        },
        Parameter { name: "unit", unit: Unit::Bytes, default: "64KiB", what: "bytes of a call" },
    ],
    plan,
};

/// Bytes of records that are sorted in memory.
const MEMORY: usize = 64 << 20;
const HOME: &str = "/git";

/// The commits as a history, in a file that has no name any more.
fn history(repository: &Path, revision: &str) -> io::Result<HistoryReader<BufReader<File>>> {
    let directory = std::env::temp_dir();
    let mut builder = Builder::new(MEMORY, &directory);
    let never = AtomicBool::new(false);
    commits(repository, revision, &mut builder, &never, &|_| {})?;
    let path = directory.join(format!("ashlar-git-history-{}-{:p}", std::process::id(), &never));
    let header = Header { source: "git".into(), models: Vec::new(), seed: 0, capacity: 0 };
    builder.finish(&path, &header, &never)?;
    let file = File::open(&path);
    std::fs::remove_file(&path)?;
    HistoryReader::new(BufReader::new(file?)).map_err(io::Error::other)
}

/// What is there: the directory that something is in, and its size; none for a directory.
#[derive(Default)]
struct Tree(HashMap<u64, (u64, Option<u64>)>);

impl Tree {
    fn path(&self, mut id: u64) -> String {
        let mut names = Vec::new();
        // Directories above are fewer than what is there.
        while id != ROOT && names.len() <= self.0.len() {
            names.push(format!("/{id:x}"));
            id = self.0.get(&id).map_or(ROOT, |(parent, _)| *parent);
        }
        names.reverse();
        format!("{HOME}{}", names.concat())
    }
}

fn plan(values: &Values) -> Result<Plan, WorkloadError> {
    let (repository, unit) = (values.text("repository"), values.some("unit")?);
    let reader = history(Path::new(repository), values.text("revision"));
    let mut reader = reader.map_err(|error| WorkloadError(format!("repository={repository}: {error}")))?;
    let (mut tree, mut left, mut to_read) = (Tree::default(), values.whole("records"), None::<Vec<u64>>);
    let run = alone(1, values.seed(), move |caller| {
        if let Some(files) = &mut to_read {
            if let Some(id) = files.pop()
                && let Some((_, Some(size))) = tree.0.get(&id)
            {
                caller.read_file(&tree.path(id), *size, unit);
            }
            return !files.is_empty();
        }
        left = left.saturating_sub(1);
        let Some(Record { id, act, .. }) = reader.record().ok().flatten().filter(|_| left > 0) else {
            let mut files: Vec<u64> =
                tree.0.iter().filter(|(_, (_, size))| size.is_some()).map(|(id, _)| *id).collect();
            files.sort_unstable();
            to_read = Some(files);
            return true;
        };
        match act {
            Act::MakeDirectory { parent, .. } => {
                tree.0.insert(id, (parent, None));
                caller.mkdir(&tree.path(id));
            }
            Act::Create { parent, size, .. } => {
                tree.0.insert(id, (parent, Some(size)));
                let path = tree.path(id);
                let file = caller.open(&path, WRITE | CREATE | EXCLUSIVE);
                caller.write_all(&file, 0, size, unit);
                caller.fstat(&file);
                caller.close(file);
            }
            Act::Delete => {
                let path = tree.path(id);
                match tree.0.remove(&id) {
                    Some((_, None)) => caller.rmdir(&path),
                    Some(_) => {
                        caller.stat(&path);
                        caller.unlink(&path);
                    }
                    None => {}
                }
            }
            // Commits are read without renames.
            Act::Modify { .. } | Act::Move { .. } => {}
        }
        true
    });
    let setup = alone(0, values.seed(), |caller| {
        caller.mkdir(HOME);
        false
    });
    Ok(Plan { setup: vec![setup], run: vec![run] })
}
