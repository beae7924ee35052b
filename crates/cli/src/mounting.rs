//! The helpers of mount(8) and umount(8): what `mount -t fuse.ashlar`, /etc/fstab and systemd's mount units call.
//!
//! The program is one when it is called `mount.fuse.ashlar` or `umount.fuse.ashlar`, as a link in /sbin.

use crate::arguments::{Mount, Serving};
use crate::client;
use crate::request::Request;
use crate::up;
use ashlar_env::say;
use ashlar_fuse::{Flags, Users};
use ashlar_lab::mounts;
use ashlar_units::Bytes;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What mount(8) and umount(8) exit with when it failed.
const FAILED: u8 = 32;
/// What they exit with when they were called wrongly.
const USAGE: u8 = 1;

/// Options that are for mount(8), fstab or systemd.
const OTHERS: [&str; 11] =
    ["defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "nogroup"];
/// How such options begin, too.
const OTHERS_BEGIN: [&str; 5] = ["x-", "X-", "comment=", "user=", "uhelper="];

/// Mounts a file system of a pool.
#[derive(Parser)]
struct MountHelper {
    /// Directory of the pool.
    pool: PathBuf,
    /// Where.
    at: PathBuf,
    /// fs=NAME (main), memory=SIZE (512MiB), threads=N, write-through; ro, nosuid, nodev, noexec, noatime, sync; remount.
    #[arg(short, value_delimiter = ',')]
    options: Vec<String>,
    /// Pass over options that nobody knows.
    #[arg(short)]
    sloppy: bool,
    /// Do nothing.
    #[arg(short)]
    fake: bool,
    #[command(flatten)]
    ignored: Ignored,
}

/// Unmounts one.
#[derive(Parser)]
struct UmountHelper {
    /// Where it is mounted.
    at: PathBuf,
    /// Detach it now; it ends when its last user leaves.
    #[arg(short)]
    lazy: bool,
    /// Its users get errors.
    #[arg(short)]
    force: bool,
    #[command(flatten)]
    ignored: Ignored,
}

/// What mount(8) and umount(8) pass on besides, and is passed over.
#[derive(clap::Args)]
struct Ignored {
    /// No entry in /etc/mtab.
    #[arg(short)]
    n: bool,
    /// Say more.
    #[arg(short)]
    verbose: bool,
    /// Passed over: nothing becomes read-only because it cannot be unmounted.
    #[arg(short)]
    r: bool,
    /// A namespace.
    #[arg(short = 'N')]
    namespace: Option<String>,
    /// The type of the file system.
    #[arg(short)]
    type_: Option<String>,
}

/// What `-o` says.
#[derive(Debug, PartialEq)]
struct Words {
    fs: String,
    remount: bool,
    serving: Serving,
}

impl Words {
    fn read<'a>(words: impl IntoIterator<Item = &'a str>, sloppy: bool) -> Result<Words, String> {
        let (options, memory) = (Flags::default(), Bytes::mib(512));
        let serving = Serving { write_through: false, options, source: None, memory, threads: None };
        let mut read = Words { fs: "main".into(), remount: false, serving };
        for word in words {
            match word.split_once('=') {
                Some(("fs", name)) => read.fs = name.into(),
                Some(("memory", size)) => {
                    read.serving.memory = size.parse().map_err(|error| format!("{word}: {error}"))?;
                }
                Some(("threads", number)) => {
                    read.serving.threads = Some(number.parse().map_err(|error| format!("{word}: {error}"))?);
                }
                None if word == "write-through" => read.serving.write_through = true,
                None if word == "remount" => read.remount = true,
                None if word.is_empty() || OTHERS.contains(&word) || read.serving.options.take(word) => {}
                _ if sloppy || OTHERS_BEGIN.iter().any(|begin| word.starts_with(begin)) => {}
                _ => {
                    let flags = word.parse::<Flags>().err().map(|error| error.to_string()).unwrap_or_default();
                    return Err(format!("{flags}; and fs=NAME, memory=SIZE, threads=N, write-through, remount"));
                }
            }
        }
        Ok(read)
    }
}

/// One of the helpers.
pub enum Helper {
    Mount,
    Umount,
}

impl Helper {
    /// The one that the program is called as.
    pub fn called() -> Option<Helper> {
        let called = std::env::args_os().next()?;
        match Path::new(&called).file_name()?.to_str()? {
            "mount.fuse.ashlar" => Some(Helper::Mount),
            "umount.fuse.ashlar" => Some(Helper::Umount),
            _ => None,
        }
    }

    /// Does what is asked, and says what is wrong.
    pub fn run(self) -> ExitCode {
        let done = match self {
            Helper::Mount => parse::<MountHelper>("mount.fuse.ashlar").and_then(MountHelper::run),
            Helper::Umount => parse::<UmountHelper>("umount.fuse.ashlar").and_then(UmountHelper::run),
        };
        done.unwrap_or_else(|(text, code)| {
            match code {
                0 => say::output(text), // what was asked for with --help
                _ => say::error(text),
            }
            ExitCode::from(code)
        })
    }
}

/// What went wrong, and what to exit with.
type Wrong = (String, u8);

fn failed(failure: impl fmt::Display) -> Wrong {
    (format!("ashlar: {failure}"), FAILED)
}

fn parse<T: Parser + FromArgMatches + CommandFactory>(name: &'static str) -> Result<T, Wrong> {
    let command = T::command().name(name).version(env!("CARGO_PKG_VERSION"));
    let wrong = |error: clap::Error| (error.to_string(), if error.use_stderr() { USAGE } else { 0 });
    T::from_arg_matches(&command.try_get_matches().map_err(wrong)?).map_err(wrong)
}

impl MountHelper {
    fn run(self) -> Result<ExitCode, Wrong> {
        let words = Words::read(self.options.iter().map(String::as_str), self.sloppy);
        let words = words.map_err(|text| (format!("ashlar: {text}"), USAGE))?;
        if self.fake {
            return Ok(ExitCode::SUCCESS);
        }
        if words.remount {
            ashlar_fuse::remount(&self.at, words.serving.options).map_err(failed)?;
            return Ok(ExitCode::SUCCESS);
        }
        // By the source mount(8) knows what is mounted already of what fstab lists.
        let serving = Serving { source: Some(self.pool.display().to_string()), ..words.serving };
        let mount = Mount { name: words.fs, at: self.at, serving };
        let directory = up::absolute(&self.pool);
        directory.and_then(|directory| up::mount_by_any(&directory, mount)).map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl UmountHelper {
    fn run(self) -> Result<ExitCode, Wrong> {
        let users = match (self.force, self.lazy) {
            (true, _) => Users::Fail,
            (false, true) => Users::GoOn,
            (false, false) => Users::None,
        };
        let mounts = mounts::mounts().map_err(failed)?;
        let pool = mounts.into_iter().rfind(|mount| mount.point == self.at).map(|mount| mount.source);
        ashlar_fuse::unmount(&self.at, users).map_err(failed)?;
        // If nothing is mounted any more the server ends, and whoever asks it waits until all is written.
        if let Some(pool) = pool.filter(|pool| pool.is_absolute())
            && let Ok(Some(server)) = client::connect(&pool)
        {
            client::converse(server, &Request::FsList, &|_, _| {}).map_err(failed)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ashlar_fuzz::config;
    use proptest::prelude::*;

    #[test]
    fn words_are_ours_the_kernels_or_somebody_elses() {
        let read = |text: &str, sloppy| Words::read(text.split(','), sloppy);
        let plain = read("defaults,nofail,_netdev,x-systemd.automount,comment=a,rw", false).unwrap();
        assert_eq!(
            (plain.fs.as_str(), plain.serving.memory, plain.serving.options),
            ("main", Bytes::mib(512), Flags::default())
        );
        let all = read("ro,fs=a@b,memory=1GiB,threads=3,write-through,remount,nodev", false).unwrap();
        let (options, memory, threads) = ("ro,nodev".parse().unwrap(), Bytes::mib(1024), Some(3));
        let serving = Serving { write_through: true, options, source: None, memory, threads };
        assert_eq!(all, Words { fs: "a@b".into(), remount: true, serving });
        let unknown = read("fs=a,frob=1", false).unwrap_err();
        assert!(unknown.starts_with("\"frob=1\" is no flag") && unknown.contains("memory=SIZE"), "{unknown}");
        assert!(read("frob=1", true).is_ok());
        assert!(read("memory=much", true).unwrap_err().starts_with("memory=much: "));
        assert!(read("threads=-1", false).unwrap_err().starts_with("threads=-1: "));
    }

    proptest! {
        #![proptest_config(config(256))]
        #[test]
        fn any_words_are_read_or_refused(text in "([a-z-]{0,9}(=.{0,9})?,?){0,9}", sloppy: bool) {
            let _ = Words::read(text.split(','), sloppy);
        }
    }

    #[test]
    fn command_lines_are_those_of_mount_and_umount() {
        let read = |line: &str| MountHelper::try_parse_from(line.split(' '));
        let helper = read("mount.fuse.ashlar /p /m -sfnv -o rw,fs=a -N /ns -t fuse.ashlar").unwrap();
        assert!(helper.sloppy && helper.fake && helper.options == ["rw", "fs=a"] && helper.at == Path::new("/m"));
        assert!(read("mount.fuse.ashlar /p").is_err());
        let helper = UmountHelper::try_parse_from("umount.fuse.ashlar /m -n -l -f -r -v -t fuse.ashlar".split(' '));
        assert!(helper.is_ok_and(|helper| helper.lazy && helper.force));
    }
}
