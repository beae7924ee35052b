//! What the rows do to a mounted file system.

use crate::bench::scratch::{read_data, write_data};
use crate::bench::{check_interrupt, quiet, said};
use rustix::fs::Advice;
use std::fs::{self, File};
use std::io::Write;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SMALL_FILES: usize = 10_000;
const SMALL_LEN: usize = 200;
const OVERWRITES: u64 = 10_000;
const BLOCK_LEN: usize = 4096;
/// Who is slower than this at one row has failed it.
const SCRIPT_SECONDS_MAX: &str = "300";
/// How often something is renamed there and back.
const RENAMES: u32 = 10;
/// Longer than the second in which git compares times; see [`git_status`].
const GIT_SECOND: Duration = Duration::from_millis(1100);

/// A git repository, and some of its commits, oldest first.
pub struct History {
    repository: PathBuf,
    commits: Vec<String>,
}

impl History {
    /// So many commits of the first line of a repository, evenly spaced, the newest last.
    pub fn of(repository: &Path, pulls: NonZero<usize>) -> Result<History, String> {
        let mut list = Command::new("git");
        let all = said(list.arg("-C").arg(repository).args(["rev-list", "--first-parent", "--reverse", "HEAD"]))?;
        let repository = fs::canonicalize(repository).map_err(fail(repository))?;
        let all: Vec<&str> = all.lines().collect();
        let pulls = pulls.get().min(all.len());
        let commits = (1..=pulls).map(|pull| all[all.len() * pull / pulls - 1].to_string()).collect();
        Ok(History { repository, commits })
    }

    /// What it is, for people.
    pub fn said(&self) -> String {
        format!("{} pulls of {}", self.commits.len(), self.repository.display())
    }
}

/// Where rows happen, and from what.
#[derive(Clone)]
pub struct Place<'a> {
    /// The mount point.
    pub mount: PathBuf,
    /// A tar file.
    pub tree: PathBuf,
    /// A bare git repository with the same tree.
    pub repository: PathBuf,
    /// What makes a file system old.
    pub history: Option<&'a History>,
    /// Bytes that do not compress.
    pub data: &'a [u8],
    /// What removes a tree.
    pub remover: Remover,
}

/// What removes a tree, as a shell takes it: the fastest that a file system has.
#[derive(Clone, Debug, Default)]
pub struct Remover {
    /// Returns when it is gone.
    pub gone: String,
    /// Returns when its room is back.
    pub room: String,
}

impl Place<'_> {
    fn at(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }
    /// A shell script in which `$M` is the mount point.
    pub fn shell(&self, script: &str) -> Result<(), String> {
        // In the foreground, so that Ctrl-C reaches the script.
        let mut shell = Command::new("timeout");
        shell
            .arg("--foreground")
            .arg(SCRIPT_SECONDS_MAX)
            .args(["sh", "-ec"])
            .arg(script)
            .env("M", &self.mount)
            .env("TREE", &self.tree);
        let done = quiet(shell.env("REPOSITORY", &self.repository));
        done.map_err(|error| error.replace("exit status: 124", "it took too long"))
    }
    /// Writes a file that does not compress, and waits until it is durable.
    pub fn write(&self, name: &str, len: u64) -> Result<(), String> {
        write_data(&self.at(name), len, self.data)
    }
    /// Reads what [`Place::write`] wrote.
    pub fn read(&self, name: &str, len: u64) -> Result<(), String> {
        read_data(&self.at(name), len, self.data)
    }
    /// Removes a file.
    pub fn unlink(&self, name: &str) -> Result<(), String> {
        fs::remove_file(self.at(name)).map_err(|error| format!("unlink {name}: {error}"))
    }
    fn sync(&self) -> Result<(), String> {
        quiet(Command::new("sync").arg("-f").arg(&self.mount))
    }
}

fn fail(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Removes a new tree with the fastest that there is, until it is gone or until its room is back and that is durable.
pub fn remove_tree(place: &Place, until_gone: bool) -> Result<f64, String> {
    place.shell("mkdir $M/r && tar xf $TREE -C $M/r && sync -f $M")?;
    let began = Instant::now();
    match until_gone {
        true => place.shell(&format!("{} $M/r", place.remover.gone))?,
        false => place.shell(&format!("{} $M/r && sync -f $M", place.remover.room))?,
    }
    let took = began.elapsed().as_secs_f64();
    // What goes on behind the scenes belongs to no other row.
    place.shell("while [ -e $M/.ashlar-removed ]; do sleep 0.01; done; sync -f $M")?;
    Ok(took)
}

/// Pulls one commit after the other, as somebody who follows a project each day.
pub fn pull_history(place: &Place) -> Result<(), String> {
    let History { repository, commits } = place.history.ok_or("there is no history")?;
    place.shell("git init -q $M/aged && git -C $M/aged config gc.auto 0")?;
    for commit in commits {
        check_interrupt()?;
        let mut fetch = Command::new("git");
        fetch.arg("-C").arg(place.at("aged")).args(["fetch", "-q"]);
        // Any commit may be asked for, not only those that have names.
        fetch.arg("--upload-pack=git -c uploadpack.allowAnySHA1InWant=true upload-pack").arg(repository).arg(commit);
        quiet(&mut fetch)?;
        place.shell("git -C $M/aged reset -q --hard FETCH_HEAD && sync -f $M")?;
    }
    Ok(())
}

/// Copies the files that were pulled last, in the order in which they are listed.
pub fn copy_history(place: &Place) -> Result<(), String> {
    place.shell("mkdir $M/copy && tar -C $M/aged --exclude=./.git -cf - . | tar -C $M/copy -xf - && sync -f $M")
}

/// Visits every file and its attributes, but for those of git.
pub fn find(place: &Place, tree: &str) -> Result<(), String> {
    place.shell(&format!("find $M/{tree} -name .git -prune -o -type f -size +0 > /dev/null"))
}

/// Reads every file but for those of git. What it looks for is nowhere, so that it cannot stop early.
pub fn grep(place: &Place, tree: &str) -> Result<(), String> {
    let grep = format!("grep -rq --exclude-dir=.git no-such-text-anywhere $M/{tree}");
    place.shell(&format!("code=0; {grep} || code=$?; test $code -eq 1"))
}

/// Seconds of the second of two: the first may leave work behind, such as times of access to be written.
fn again(place: &Place, act: fn(&Place) -> Result<(), String>) -> Result<f64, String> {
    act(place)?;
    place.sync()?;
    let began = Instant::now();
    act(place)?;
    Ok(began.elapsed().as_secs_f64())
}

/// Seconds of [`find`] with everything in memory.
pub fn find_warm(place: &Place) -> Result<f64, String> {
    again(place, |place| find(place, "t"))
}

/// Seconds of [`grep`] with everything in memory.
pub fn grep_warm(place: &Place) -> Result<f64, String> {
    again(place, |place| grep(place, "t"))
}

/// Seconds of one rename, there or back.
pub fn rename(place: &Place, from: &str, to: &str) -> Result<f64, String> {
    let (tree, other) = (place.at(from), place.at(to));
    let began = Instant::now();
    for _ in 0..RENAMES {
        fs::rename(&tree, &other).and_then(|()| fs::rename(&other, &tree)).map_err(fail(&tree))?;
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(2 * RENAMES))
}

/// Seconds of `git status` with everything in memory, and git's index up to date.
///
/// Git compares times in whole seconds: a file that was written in the same second as the index may have changed since, so
/// its contents are read, each time until the index is written in a later second. How many files that concerns is up to
/// when the clone began, so that second is waited for.
pub fn git_status(place: &Place) -> Result<f64, String> {
    std::thread::sleep(GIT_SECOND);
    again(place, |place| place.shell("cd $M/clone && test -z \"$(git status --porcelain)\""))
}

/// Seconds of removing a file of which nothing is in the page cache: the kernel frees cached pages in the call.
pub fn unlink_uncached(place: &Place, len: u64) -> Result<f64, String> {
    place.write("gone", len)?;
    let path = place.at("gone");
    let file = File::open(&path).map_err(fail(&path))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| fail(&path)(error.into()))?;
    drop(file);
    let began = Instant::now();
    place.unlink("gone")?;
    Ok(began.elapsed().as_secs_f64())
}

/// Makes small files in one directory.
pub fn create(place: &Place) -> Result<(), String> {
    let directory = place.at("small");
    fs::create_dir(&directory).map_err(fail(&directory))?;
    for index in 0..SMALL_FILES {
        check_interrupt()?;
        let path = directory.join(index.to_string());
        fs::write(&path, &place.data[index * SMALL_LEN..][..SMALL_LEN]).map_err(fail(&path))?;
    }
    place.sync()
}

/// Removes them.
pub fn delete(place: &Place) -> Result<(), String> {
    let directory = place.at("small");
    for index in 0..SMALL_FILES {
        check_interrupt()?;
        let path = directory.join(index.to_string());
        fs::remove_file(&path).map_err(fail(&path))?;
    }
    fs::remove_dir(&directory).map_err(fail(&directory))?;
    place.sync()
}

/// Overwrites four bytes at a time in random places of a large file, with an fsync after every so many.
pub fn overwrite(place: &Place, fsync_after: u64, seed: u64) -> Result<(), String> {
    let path = place.at("big");
    let file = File::options().write(true).open(&path).map_err(fail(&path))?;
    let len = file.metadata().map_err(fail(&path))?.len();
    let mut random = seed;
    for index in 1..=OVERWRITES {
        check_interrupt()?;
        random = next_random(random);
        file.write_all_at(b"four", random % (len - 4)).map_err(fail(&path))?;
        if index % fsync_after == 0 {
            file.sync_all().map_err(fail(&path))?;
        }
    }
    Ok(())
}

/// SplitMix64.
fn next_random(state: u64) -> u64 {
    let mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Each writer appends to a file of its own and waits until that is durable, again and again. Operations per second of all.
pub fn append(place: &Place, writers: usize, time: Duration) -> Result<f64, String> {
    let done = AtomicU64::new(0);
    let began = Instant::now();
    let write = |writer: usize| -> Result<(), String> {
        let path = place.at(&format!("log-{writers}-{writer}"));
        let mut file = File::options().create(true).append(true).open(&path).map_err(fail(&path))?;
        let mut pieces = place.data.chunks(BLOCK_LEN).skip(writer * 1000).cycle();
        while began.elapsed() < time {
            check_interrupt()?;
            file.write_all(pieces.next().unwrap_or_default()).map_err(fail(&path))?;
            file.sync_all().map_err(fail(&path))?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let write = &write;
        let threads: Vec<_> = (0..writers).map(|writer| scope.spawn(move || write(writer))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a writer panicked".to_string())?)
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
}

/// What somebody does beside a stream of a GiB.
#[derive(Clone, Copy)]
pub enum Beside {
    /// Reads 4 KiB at random places of a file that is not in memory.
    Reads,
    /// Makes files of 4 KiB and waits for each until it is durable.
    Syncs,
}

/// Seconds that each time takes in the mean, while a GiB is written and made durable.
pub fn beside_stream(place: &Place, beside: Beside) -> Result<f64, String> {
    let path = place.at("big");
    let big = File::open(&path).map_err(fail(&path))?;
    rustix::fs::fadvise(&big, 0, None, Advice::Random).map_err(|error| fail(&path)(error.into()))?;
    let blocks = big.metadata().map_err(fail(&path))?.len() / BLOCK_LEN as u64;
    let (directory, mut random) = (place.at("beside"), 1);
    fs::create_dir(&directory).map_err(fail(&directory))?;
    let mut once = |index: u64| -> Result<(), String> {
        match beside {
            Beside::Reads => {
                random = next_random(random);
                let at = random % blocks * BLOCK_LEN as u64;
                big.read_exact_at(&mut [0; BLOCK_LEN], at).map_err(fail(&path))
            }
            Beside::Syncs => {
                let path = directory.join(index.to_string());
                let mut file = File::create(&path).map_err(fail(&path))?;
                file.write_all(&place.data[..BLOCK_LEN]).and_then(|()| file.sync_all()).map_err(fail(&path))
            }
        }
    };
    let mean = std::thread::scope(|scope| {
        let stream = scope.spawn(|| place.write("stream", 1 << 30));
        let (began, mut done) = (Instant::now(), 0);
        while done == 0 || !stream.is_finished() {
            check_interrupt()?;
            once(done)?;
            done += 1;
        }
        let mean = began.elapsed().as_secs_f64() / done as f64;
        stream.join().map_err(|_| "the stream panicked".to_string())??;
        Ok::<f64, String>(mean)
    })?;
    place.shell("rm -r $M/stream $M/beside && sync -f $M")?;
    Ok(mean)
}

/// Operations per second of fio with direct I/O on a file of the mount.
pub fn fio(place: &Place, operation: &str, depth: u32) -> Result<f64, String> {
    let file = format!("--filename={}", place.at("fio").display());
    let options = ["--direct=1", "--ioengine=libaio", "--bs=4k", "--norandommap", "--runtime=3"].map(String::from);
    crate::bench::fio(options.into_iter().chain([file]), operation, depth)
}
