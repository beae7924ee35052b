//! The history of a git repository: what checking out one commit after the other does to a file system.
//!
//! A file that a commit changes is made anew, since that is what `git checkout` does: it unlinks the old one. Times are those
//! of the commits; a commit that claims to be older than its parent happens with it. Merges count by what they bring to the
//! first parent, as a `git pull` of each would.

use super::builder::Builder;
use super::record::{Act, ROOT, Record, Writing};
use ashlar_survey::sample::mix;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Longest line or path that git may hand out.
const TEXT_MAX: u64 = 1 << 13;

/// What was found in a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Commits {
    /// Commits of the first parents.
    pub commits: u64,
    /// Changes of files in them.
    pub changes: u64,
    /// Changes of submodules, which are no files, and of objects that the repository lacks.
    pub passed_over: u64,
}

/// A question to git and its answers.
struct Git {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Git {
    fn start(repository: &Path, arguments: &[&str]) -> io::Result<Git> {
        let mut command = Command::new("git");
        // Objects that are not here must not be fetched from elsewhere.
        command.env("GIT_NO_LAZY_FETCH", "1").env("GIT_OPTIONAL_LOCKS", "0");
        command.arg("-C").arg(repository).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("git: {error}")))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| io::Error::other("git has no output"))?;
        Ok(Git { child, input, output: BufReader::with_capacity(1 << 16, output) })
    }

    /// Text up to a byte, without it; `None` at the end.
    fn until(&mut self, end: u8) -> io::Result<Option<Vec<u8>>> {
        use io::Read;
        let mut text = Vec::new();
        (&mut self.output).take(TEXT_MAX).read_until(end, &mut text)?;
        match text.pop() {
            None => Ok(None),
            Some(last) if last == end => Ok(Some(text)),
            Some(_) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "git ended within a text, or a path is too long"))
            }
        }
    }

    /// Size of an object; `None` if it is not there.
    fn size(&mut self, object: &[u8]) -> io::Result<Option<u64>> {
        let input = self.input.as_mut().ok_or_else(|| io::Error::other("git has no input"))?;
        input.write_all(&[object, b"\n"].concat())?;
        let line = self.until(b'\n')?.ok_or_else(|| io::Error::other("git cat-file ended"))?;
        Ok(std::str::from_utf8(&line).ok().and_then(|line| line.parse().ok()))
    }
}

impl Drop for Git {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A change in the raw form of git: `:100644 100644 OLD NEW M`.
struct Change {
    object: Vec<u8>,
    deleted: bool,
    submodule: bool,
}

fn change(line: &[u8]) -> Option<Change> {
    let mut words = line.strip_prefix(b":")?.split(|byte| *byte == b' ');
    let (_, mode, _, object, status) = (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
    Some(Change { object: object.to_vec(), deleted: status == b"D", submodule: mode == b"160000" })
}

/// Paths by what they are called in the history.
#[derive(Default)]
struct Names {
    /// How often a path was made: each is another file.
    made: HashMap<u64, u64>,
}

impl Names {
    fn file(&self, path: &[u8]) -> u64 {
        let name = xxh3_64(path);
        mix(name, self.made.get(&name).copied().unwrap_or(0)).max(1)
    }
    /// The directory of a path, and the length of the name in it.
    fn place<'a>(&self, path: &'a [u8]) -> (&'a [u8], u64, u8) {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = slash.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]));
        (above, directory(above), name.len().clamp(1, 255) as u8)
    }
}

fn directory(path: &[u8]) -> u64 {
    if path.is_empty() { ROOT } else { mix(xxh3_64(path), 0xd1).max(1) }
}

/// Gives the history of what `revision` names to `builder`. `seen` gets the number of commits so far.
pub fn commits(
    repository: &Path,
    revision: &str,
    builder: &mut Builder,
    stop: &AtomicBool,
    seen: &dyn Fn(u64),
) -> io::Result<Commits> {
    if revision.starts_with('-') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{revision:?} is no revision")));
    }
    let log =
        ["log", "--first-parent", "-m", "--reverse", "--raw", "--no-abbrev", "--no-renames", "-z", "--format=%x01%ct"];
    let mut log = Git::start(repository, &[&log[..], &[revision, "--"]].concat())?;
    let mut sizes = Git::start(repository, &["cat-file", "--batch-check=%(objectsize)"])?;
    let (mut found, mut names, mut at_ns) = (Commits::default(), Names::default(), 0i64);
    // Directories with entries, so that those without are gone, as git has it.
    let mut entries: HashMap<u64, u64> = HashMap::new();
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("git log says {what}"));
    while let Some(text) = log.until(0)? {
        if stop.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        // A line break stands between commits and their changes.
        let text = text.strip_prefix(b"\n").unwrap_or(&text);
        if text.is_empty() {
            continue;
        }
        if let Some(time) = text.strip_prefix(b"\x01") {
            let time = std::str::from_utf8(time).ok().and_then(|time| time.trim().parse::<i64>().ok());
            let time = time.ok_or_else(|| bad("no time"))?;
            at_ns = at_ns.max(time.saturating_mul(1_000_000_000)).saturating_add(1);
            found.commits += 1;
            if found.commits.is_multiple_of(64) {
                seen(found.commits);
            }
            continue;
        }
        let change = change(text).ok_or_else(|| bad("what is no change"))?;
        let path = log.until(0)?.ok_or_else(|| bad("a change without a path"))?;
        found.changes += 1;
        let size = if change.deleted || change.submodule { None } else { sizes.size(&change.object)? };
        found.passed_over += u64::from(size.is_none() && !change.deleted);
        let old = names.file(&path);
        let was_there = names.made.get(&xxh3_64(&path)).is_some_and(|count| count % 2 == 1);
        if was_there {
            *names.made.entry(xxh3_64(&path)).or_default() += 1;
            builder.push(Record { at_ns, id: old, act: Act::Delete })?;
            leave(&path, at_ns, &mut entries, builder)?;
        }
        if let Some(size) = size {
            *names.made.entry(xxh3_64(&path)).or_default() += 1;
            enter(&path, at_ns, &mut entries, builder)?;
            let (_, parent, name_len) = names.place(&path);
            let act = Act::Create { parent, name_len, size, how: Writing::default() };
            builder.push(Record { at_ns, id: names.file(&path), act })?;
        }
    }
    let ended = log.child.wait()?;
    if !ended.success() {
        return Err(io::Error::other(format!(
            "git log failed in {}; is it a repository, and {revision} in it?",
            repository.display()
        )));
    }
    Ok(found)
}

/// Something comes into the directories above a path; those that are not there are made.
fn enter(path: &[u8], at_ns: i64, entries: &mut HashMap<u64, u64>, builder: &mut Builder) -> io::Result<()> {
    let (above, id, _) = Names::default().place(path);
    let count = entries.entry(id).or_default();
    *count += 1;
    if *count == 1 && id != ROOT {
        enter(above, at_ns, entries, builder)?;
        let (_, parent, name_len) = Names::default().place(above);
        builder.push(Record { at_ns, id, act: Act::MakeDirectory { parent, name_len } })?;
    }
    Ok(())
}

/// Something leaves them; those that are empty then are deleted.
fn leave(path: &[u8], at_ns: i64, entries: &mut HashMap<u64, u64>, builder: &mut Builder) -> io::Result<()> {
    let (above, id, _) = Names::default().place(path);
    let count = entries.entry(id).or_default();
    *count = count.saturating_sub(1);
    if *count == 0 && id != ROOT {
        builder.push(Record { at_ns, id, act: Act::Delete })?;
        leave(above, at_ns, entries, builder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(repository: &Path, arguments: &[&str], time: u64) {
        let mut command = Command::new("git");
        command.arg("-C").arg(repository).args(["-c", "user.name=n", "-c", "user.email=e"]).args(arguments);
        for name in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
            command.env(name, format!("@{time} +0000"));
        }
        let output = command.output().expect("git is there");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    #[test]
    fn commits_become_files() {
        if Command::new("git").arg("--version").output().is_err() {
            eprintln!("SKIPPED: there is no git");
            return;
        }
        let home = std::env::temp_dir().join(format!("ashlar-git-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&home);
        std::fs::create_dir_all(home.join("a/b")).expect("made");
        git(&home, &["init", "-q", "-b", "main"], 1);
        type Files<'a> = &'a [(&'a str, Option<usize>)];
        let steps: [(Files, u64); 3] = [
            (&[("top", Some(10)), ("a/b/deep\nname", Some(5000))], 1000),
            (&[("top", Some(99)), ("a/other", Some(1))], 900),
            (&[("a/b/deep\nname", None)], 2000),
        ];
        for (files, time) in steps {
            for (name, len) in files {
                match len {
                    Some(len) => std::fs::write(home.join(name), vec![b'x'; *len]).expect("space"),
                    None => std::fs::remove_file(home.join(name)).expect("it is there"),
                }
            }
            git(&home, &["add", "-A"], time);
            git(&home, &["commit", "-q", "-m", "m"], time);
        }
        let mut builder = Builder::new(1 << 20, &home);
        let found = commits(&home, "HEAD", &mut builder, &AtomicBool::new(false), &|_| {}).expect("a repository");
        assert_eq!(found, Commits { commits: 3, changes: 5, passed_over: 0 });
        let mut records = Vec::new();
        let done = builder.ordered(&AtomicBool::new(false), |record| {
            records.push(record);
            Ok(())
        });
        let (closing, tidied) = done.expect("no interruption");
        assert_eq!(tidied, super::super::Tidied::default());
        assert_eq!((closing.created, closing.deleted, closing.directories_made), (4, 3, 2));
        assert_eq!((closing.live_files, closing.live_directories, closing.written_bytes), (2, 1, 5110));
        // The second commit claims to be older than the first, and so comes with it.
        let last = records.last().expect("some").at_ns;
        assert!((999_999_999_990..=1_000_000_000_000).contains(&last), "{last}");
        let error = commits(&home, "nowhere", &mut Builder::new(0, &home), &AtomicBool::new(false), &|_| {});
        assert!(error.expect_err("no such revision").to_string().contains("nowhere"));
        std::fs::remove_dir_all(&home).expect("it is ours");
    }
}
