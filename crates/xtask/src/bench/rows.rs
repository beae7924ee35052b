//! What is measured, row by row, in the order in which it is done. A row that a later one needs is done even if it is not
//! asked for.

use crate::bench::contender::Contender;
use crate::bench::steps::{self, Beside, Place};
use std::time::Duration;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Time of the whole row, or of one operation; less is better.
    Seconds,
    /// Operations per second; more is better.
    PerSecond,
    /// Mebibytes, of a server; less is better.
    Mebibytes,
    /// Files; less is better.
    Files,
}

impl Unit {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::PerSecond => "/s",
            Unit::Mebibytes => "MiB",
            Unit::Files => "files",
        }
    }
    /// How many times worse `figure` is than `other`.
    pub fn times_worse(self, figure: f64, other: f64) -> f64 {
        if self == Unit::PerSecond { other / figure } else { figure / other }
    }
}

/// With whom a row is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// ext4.
    Ext4,
    /// The best of those in the kernel.
    BestKernel,
    /// libfuse's `passthrough_hp`.
    PassthroughHp,
}

impl Reference {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Reference::Ext4 => "ext4",
            Reference::BestKernel => "best kernel",
            Reference::PassthroughHp => "passthrough_hp",
        }
    }
    /// Whether it may be this contender.
    pub fn admits(self, contender: &Contender) -> bool {
        match self {
            Reference::Ext4 => contender.name == "ext4",
            Reference::BestKernel => contender.in_kernel(),
            Reference::PassthroughHp => contender.name == "passthrough_hp",
        }
    }
}

/// What ashlar should reach: at most so many times worse than the reference.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// With whom.
    pub reference: Reference,
    /// How many times worse it may be.
    pub times: f64,
}

/// How a row comes to its figure.
#[derive(Clone, Copy)]
pub enum Measure {
    /// The time that this takes.
    Time(fn(&Place) -> Result<(), String>),
    /// It knows itself; a time, or operations per second.
    Figure(fn(&Place) -> Result<f64, String>),
    /// It is read from the server after all other rows.
    Server,
}

/// One row.
pub struct Row {
    /// Its name in tables and for `--only`.
    pub name: &'static str,
    /// What its figures count.
    pub unit: Unit,
    /// It begins mounted anew, with empty caches, in the server too.
    pub cold: bool,
    /// Rows that must have been done before it.
    pub needs: &'static [&'static str],
    /// What to reach.
    pub bar: Option<Bar>,
    /// What to do.
    pub measure: Measure,
}

/// Names of the rows about the server.
pub const PEAK_MEMORY: &str = "server: peak memory";
/// See [`PEAK_MEMORY`].
pub const OPEN_FILES: &str = "server: open files";
/// What makes a file system old, before all other rows.
const HISTORY: &str = "pull a history";
const COPY: &str = "copy of what was pulled";

const fn ext4(times: f64) -> Option<Bar> {
    Some(Bar { reference: Reference::Ext4, times })
}
/// Four fifths of the speed.
const FOUR_FIFTHS: f64 = 1.25;
const STREAM: Option<Bar> = Some(Bar { reference: Reference::BestKernel, times: FOUR_FIFTHS });
const RANDOM_READ: Option<Bar> = Some(Bar { reference: Reference::PassthroughHp, times: FOUR_FIFTHS });

const fn time(name: &'static str, bar: Option<Bar>, what: fn(&Place) -> Result<(), String>) -> Row {
    Row { name, unit: Unit::Seconds, cold: false, needs: &[], bar, measure: Measure::Time(what) }
}
/// A time that the row takes itself.
const fn figure(name: &'static str, bar: Option<Bar>, what: fn(&Place) -> Result<f64, String>) -> Row {
    Row { name, unit: Unit::Seconds, cold: false, needs: &[], bar, measure: Measure::Figure(what) }
}
const fn rate(name: &'static str, bar: Option<Bar>, what: fn(&Place) -> Result<f64, String>) -> Row {
    Row { name, unit: Unit::PerSecond, cold: false, needs: &[], bar, measure: Measure::Figure(what) }
}
const fn server(name: &'static str, unit: Unit) -> Row {
    Row { name, unit, cold: false, needs: &[], bar: None, measure: Measure::Server }
}
impl Row {
    /// Whether fio must be installed for it.
    pub fn uses_fio(&self) -> bool {
        self.name.starts_with("fio")
    }
    /// Whether it is about a file system that grew old with a history, and a repository must be given.
    pub fn uses_history(&self) -> bool {
        self.name == HISTORY || self.needs.contains(&HISTORY)
    }
    const fn cold(mut self) -> Row {
        self.cold = true;
        self
    }
    const fn needs(mut self, names: &'static [&'static str]) -> Row {
        self.needs = names;
        self
    }
}

/// How long writers append.
const APPEND_TIME: Duration = Duration::from_secs(2);

/// All rows. Trees go, and servers are started anew, before more files come: one that keeps a file open for each inode is
/// near its limit. The bars are those that the project set itself, from what the best peer of each row reached.
pub static ROWS: [Row; 45] = [
    time(HISTORY, None, steps::pull_history),
    time("find cold, aged", None, |place| steps::find(place, "aged")).cold().needs(&[HISTORY]),
    time("grep -r cold, aged", None, |place| steps::grep(place, "aged")).cold().needs(&[HISTORY]),
    time(COPY, None, steps::copy_history).needs(&[HISTORY]),
    time("find cold, copied", None, |place| steps::find(place, "copy")).cold().needs(&[HISTORY, COPY]),
    time("grep -r cold, copied", None, |place| steps::grep(place, "copy")).cold().needs(&[HISTORY, COPY]),
    time("untar", ext4(3.0), |place| place.shell("mkdir $M/t && tar xf $TREE -C $M/t && sync -f $M")),
    time("find cold", ext4(2.4), |place| steps::find(place, "t")).cold().needs(&["untar"]),
    figure("find warm", None, steps::find_warm).needs(&["find cold"]),
    time("grep -r cold", ext4(1.4), |place| steps::grep(place, "t")).cold().needs(&["untar"]),
    figure("grep -r warm", ext4(3.0), steps::grep_warm).needs(&["grep -r cold"]),
    figure("rename tree", None, |place| steps::rename(place, "t", "t2")).needs(&["untar"]),
    time("rm -rf", ext4(3.0), |place| place.shell("rm -rf $M/t && sync -f $M")).needs(&["untar"]),
    figure("remove a tree, until it is gone", None, |place| steps::remove_tree(place, true)),
    figure("remove a tree, until there is room", None, |place| steps::remove_tree(place, false)),
    time("git clone", ext4(2.0), |place| place.shell("git clone -q --no-hardlinks $REPOSITORY $M/clone")).cold(),
    figure("git status warm", ext4(1.4), steps::git_status).needs(&["git clone"]),
    time("rm -rf of the clone, cold", None, |place| place.shell("rm -rf $M/clone && sync -f $M"))
        .cold()
        .needs(&["git clone"]),
    time("create 10,000 files", ext4(2.0), steps::create).cold(),
    figure("rename a file", None, |place| steps::rename(place, "small/0", "small/0b")).needs(&["create 10,000 files"]),
    figure("rename 10,000 files", None, |place| steps::rename(place, "small", "other")).needs(&["create 10,000 files"]),
    time("delete 10,000 files", None, steps::delete).needs(&["create 10,000 files"]),
    time("write 64 MiB", None, |place| place.write("medium", 64 << 20)),
    time("write 1 GiB", STREAM, |place| place.write("big", 1 << 30)),
    time("read 1 GiB cold", STREAM, |place| place.read("big", 1 << 30)).cold().needs(&["write 1 GiB"]),
    time("overwrite 10,000 x 4 B, one fsync", ext4(1.0), |place| steps::overwrite(place, 10_000, 1))
        .cold()
        .needs(&["write 1 GiB"]),
    time("overwrite 10,000 x 4 B, 100 fsyncs", ext4(1.0), |place| steps::overwrite(place, 100, 2))
        .cold()
        .needs(&["write 1 GiB"]),
    time("read 1 GiB cold, overwritten", None, |place| place.shell("dd if=$M/big of=/dev/null bs=1M status=none"))
        .cold()
        .needs(&["overwrite 10,000 x 4 B, one fsync"]),
    figure("read 4 KiB beside a stream", None, |place| steps::beside_stream(place, Beside::Reads))
        .cold()
        .needs(&["write 1 GiB"]),
    figure("create + fsync beside a stream", None, |place| steps::beside_stream(place, Beside::Syncs))
        .cold()
        .needs(&["write 1 GiB"]),
    time("unlink 64 MiB", None, |place| place.unlink("medium")).needs(&["write 64 MiB"]),
    time("unlink 1 GiB", None, |place| place.unlink("big")).needs(&["write 1 GiB"]),
    figure("unlink 64 MiB, not cached", None, |place| steps::unlink_uncached(place, 64 << 20)),
    figure("unlink 1 GiB, not cached", None, |place| steps::unlink_uncached(place, 1 << 30)),
    rate("append 4 KiB + fsync, 1 writer", ext4(1.0), |place| steps::append(place, 1, APPEND_TIME)),
    rate("append 4 KiB + fsync, 2 writers", ext4(1.0), |place| steps::append(place, 2, APPEND_TIME)),
    rate("append 4 KiB + fsync, 4 writers", ext4(1.0), |place| steps::append(place, 4, APPEND_TIME)),
    rate("append 4 KiB + fsync, 8 writers", ext4(1.0), |place| steps::append(place, 8, APPEND_TIME)),
    time("fio: lay out 1 GiB", None, |place| place.write("fio", 1 << 30)),
    rate("fio randread 4 KiB, depth 1", None, |place| steps::fio(place, "randread", 1))
        .cold()
        .needs(&["fio: lay out 1 GiB"]),
    rate("fio randread 4 KiB, depth 32", RANDOM_READ, |place| steps::fio(place, "randread", 32))
        .cold()
        .needs(&["fio: lay out 1 GiB"]),
    rate("fio randwrite 4 KiB, depth 1", None, |place| steps::fio(place, "randwrite", 1))
        .needs(&["fio: lay out 1 GiB"]),
    rate("fio randwrite 4 KiB, depth 32", None, |place| steps::fio(place, "randwrite", 32))
        .needs(&["fio: lay out 1 GiB"]),
    server(PEAK_MEMORY, Unit::Mebibytes),
    server(OPEN_FILES, Unit::Files),
];

/// Which rows are shown and which are only done, for a choice of names; all for none. With `aged` there is a history, which
/// is pulled in any case.
pub fn choose(only: &[String], aged: bool) -> Result<(Vec<bool>, Vec<bool>), String> {
    let matches = |row: &Row, name: &String| row.name.contains(name.as_str());
    let needs_history = |name: &&String| ROWS.iter().filter(|row| matches(row, name)).all(Row::uses_history);
    if let Some(unknown) = only.iter().find(|name| ROWS.iter().all(|row| !matches(row, name))) {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        return Err(format!("no row has {unknown:?} in its name; there are: {}", names.join("; ")));
    }
    if let Some(name) = only.iter().find(needs_history).filter(|_| !aged) {
        return Err(format!("{name:?} needs the history of a git repository: give one with --aged PATH"));
    }
    let wanted = |row: &Row| only.is_empty() || only.iter().any(|name| matches(row, name));
    let shown: Vec<bool> = ROWS.iter().map(|row| wanted(row) && (aged || !row.uses_history())).collect();
    let mut done = shown.clone();
    done[0] |= aged;
    for index in (0..ROWS.len()).rev() {
        if done[index] {
            for (earlier, row) in ROWS.iter().enumerate() {
                done[earlier] |= ROWS[index].needs.contains(&row.name);
            }
        }
    }
    Ok((shown, done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_need_earlier_rows() {
        for (index, row) in ROWS.iter().enumerate() {
            for need in row.needs {
                assert!(ROWS[..index].iter().any(|earlier| earlier.name == *need), "{}: no {need} before it", row.name);
            }
        }
    }

    #[test]
    fn a_chosen_row_brings_what_it_needs() {
        let (shown, done) = choose(&["grep -r warm".into()], false).expect("a row");
        let names = |chosen: &[bool]| -> Vec<&str> {
            ROWS.iter().zip(chosen).filter(|(_, chosen)| **chosen).map(|(row, _)| row.name).collect()
        };
        assert_eq!(names(&shown), ["grep -r warm"]);
        assert_eq!(names(&done), ["untar", "grep -r cold", "grep -r warm"]);
        assert!(choose(&["no such row".into()], false).is_err());
    }

    #[test]
    fn an_aged_file_system_pulls_a_history_first() {
        assert_eq!(ROWS[0].name, HISTORY);
        let names = |chosen: &[bool]| -> Vec<&str> {
            ROWS.iter().zip(chosen).filter(|(_, chosen)| **chosen).map(|(row, _)| row.name).collect()
        };
        let (shown, done) = choose(&["untar".into(), "find cold, copied".into()], true).expect("rows");
        assert_eq!(names(&shown), ["find cold, copied", "untar"]);
        assert_eq!(names(&done), [HISTORY, COPY, "find cold, copied", "untar"]);
        let (shown, done) = choose(&[], false).expect("rows");
        assert!(
            ROWS.iter()
                .zip(shown.iter().zip(done))
                .all(|(row, (shown, done))| *shown == done && done != row.uses_history())
        );
        assert!(choose(&["aged".into()], false).is_err());
    }
}
