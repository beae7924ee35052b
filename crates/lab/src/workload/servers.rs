//! The four servers of FileBench (FAST '10, "Evaluating Performance and Energy in File System Server Workloads", Table 1).
//!
//! Flows are those of the paper; what it leaves open is as FileBench's own scripts have it: gamma shape 1.5, widths of trees
//! 20, 20, 10^6 and 1024, ten reads for each append of the web server, 80 % of the files there at the beginning where files are made and
//! deleted, one write of the log for 3,200 reads of the database.
//!
//! Departs  FileBench's threads choose among all files and lock those in use; here each thread has files of its own in the
//!          same directories (the web server's readers share all). An append has the mean size, where FileBench draws one.

use super::calls::{Caller, Opened, Thread, alone};
use super::fileset::{FileSet, Share};
use super::{Kind, Parameter, Plan, Stage, Unit, Values, WorkloadError};
use crate::trace::flags::{APPEND, CREATE, DATA_SYNC, READ, READ_WRITE, WRITE};

const SOURCE: &str = "FAST '10 server workloads, Table 1 and section 3; FileBench's scripts where it is silent";

const fn parameter(name: &'static str, unit: Unit, default: &'static str, what: &'static str) -> Parameter {
    Parameter { name, unit, default, what }
}

const UNIT: Parameter = parameter("unit", Unit::Bytes, "1MiB", "bytes of a read or write of whole files");
const SHAPE: Parameter = parameter("shape", Unit::Shape, "1.5", "shape of the gamma distribution of sizes");
const APPENDS: Parameter = parameter("append", Unit::Bytes, "16KiB", "bytes of an append");
const FSYNC: Parameter = parameter("fsync", Unit::Share, "1", "share of deliveries and answers that are synced");
const THREADS: Parameter = parameter("threads", Unit::Count, "100", "threads");

/// Files, mean size and so on, which differ.
macro_rules! set {
    ($files:literal, $mean:literal, $width:literal, $there:literal, $loops:literal $(, $more:expr)?) => {
        &[
            parameter("files", Unit::Count, $files, "files"),
            parameter("mean", Unit::Bytes, $mean, "mean size of files"),
            parameter("width", Unit::Count, $width, "entries of a directory"),
            parameter("there", Unit::Share, $there, "share of the files that are there at the beginning"),
            parameter("loops", Unit::Count, $loops, "times that each thread does all of it"),
            SHAPE,
            UNIT,
            APPENDS,
            THREADS,
            $($more,)?
        ]
    };
}

/// The file server.
pub static FILE: Kind = Kind {
    name: "fileserver",
    what: "threads make, append to, read, delete and ask for whole files, each its own",
    source: SOURCE,
    parameters: set!("50000", "256KiB", "20", "0.8", "50"),
    plan: file,
};

/// The web server.
pub static WEB: Kind = Kind {
    name: "webserver",
    what: "threads read whole files, and append to one log after every tenth",
    source: SOURCE,
    parameters: set!("20000", "32KiB", "20", "1", "50"),
    plan: web,
};

/// The mail server.
pub static MAIL: Kind = Kind {
    name: "varmail",
    what: "threads delete, deliver, read and answer mails in one directory, with fsync",
    source: SOURCE,
    parameters: set!("50000", "16KiB", "1000000", "0.8", "50", FSYNC),
    plan: mail,
};

/// The database.
pub static DATABASE: Kind = Kind {
    name: "oltp",
    what: "many readers and few writers of small records in large files, and a log",
    source: SOURCE,
    parameters: &[
        parameter("files", Unit::Count, "10", "files"),
        parameter("size", Unit::Bytes, "512MiB", "bytes of each"),
        parameter("record", Unit::Bytes, "2KiB", "bytes of a read or write, and what places are multiples of"),
        parameter("readers", Unit::Count, "200", "threads that read"),
        parameter("writers", Unit::Count, "10", "threads that write"),
        parameter("loops", Unit::Count, "500", "reads or writes of each thread"),
        parameter("log-write", Unit::Bytes, "256KiB", "bytes of a synchronous append to the log"),
        parameter("reads-per-log-write", Unit::Count, "3200", "reads for each of them"),
    ],
    plan: database,
};

/// A thread for each share of a set, which does `step` so often.
fn shares(
    values: &Values,
    set: &std::sync::Arc<FileSet>,
    step: impl Fn(&mut Share, &mut Caller) + Clone + Send + 'static,
) -> Result<Stage, WorkloadError> {
    let threads = values.threads("threads")?;
    let each = |thread| {
        let (mut share, step) = (Share::new(set, thread, threads)?, step.clone());
        let mut left = values.whole("loops");
        Ok(Thread::new((1, thread, threads), values.seed(), move |caller| {
            step(&mut share, caller);
            left = left.saturating_sub(1);
            left > 0
        }))
    };
    (0..threads).map(each).collect()
}

fn file(values: &Values) -> Result<Plan, WorkloadError> {
    let set = FileSet::new("/file", values)?;
    let (unit, append) = (values.some("unit")?, values.whole("append"));
    let run = shares(values, &set, move |share, caller| {
        if let Some((_, path, size)) = share.make(caller) {
            caller.write_file(&path, size, unit);
        }
        if let Some((index, path, size)) = share.existing(caller) {
            let file = caller.open(&path, WRITE | APPEND);
            caller.write(&file, size, append);
            caller.close(file);
            share.has(index, size + append);
        }
        if let Some((_, path, size)) = share.existing(caller) {
            caller.read_file(&path, size, unit);
        }
        if let Some(path) = share.remove(caller) {
            caller.unlink(&path);
        }
        if let Some((_, path, _)) = share.existing(caller) {
            caller.stat(&path);
        }
    })?;
    Ok(Plan { setup: vec![set.setup(0)], run: vec![run] })
}

fn web(values: &Values) -> Result<Plan, WorkloadError> {
    const LOG: &str = "/web.log";
    const READS: u64 = 10;
    let set = FileSet::new("/web", values)?;
    let (unit, append, threads) = (values.some("unit")?, values.whole("append"), values.threads("threads")?);
    let each = |thread| {
        let (set, mut log, mut number, loops) = (set.clone(), None, 0, values.whole("loops"));
        Thread::new((1, thread, threads), values.seed(), move |caller| {
            let log = log.get_or_insert_with(|| caller.open(LOG, WRITE | APPEND));
            for _ in 0..READS {
                // All are there: nobody makes or deletes any.
                let file = caller.chance.below(set.files);
                if set.is_there(file) {
                    caller.read_file(&set.path(file), set.size(file), unit);
                }
            }
            caller.write(log, (number * threads + thread) * append, append);
            number += 1;
            if number >= loops {
                caller.close(log.clone());
            }
            number < loops
        })
    };
    let mut setup = set.setup(0);
    setup.extend(alone(2, values.seed(), |caller| {
        caller.write_file(LOG, 0, 1);
        false
    }));
    Ok(Plan { setup: vec![setup], run: vec![(0..threads).map(each).collect()] })
}

fn mail(values: &Values) -> Result<Plan, WorkloadError> {
    let set = FileSet::new("/mail", values)?;
    let (unit, append, synced) = (values.some("unit")?, values.whole("append"), values.number("fsync"));
    let sync = move |caller: &mut Caller, file: &Opened| {
        if caller.chance.unit() < synced {
            caller.fsync(file);
        }
    };
    let run = shares(values, &set, move |share, caller| {
        if let Some(path) = share.remove(caller) {
            caller.unlink(&path);
        }
        if let Some((index, path, _)) = share.make(caller) {
            let file = caller.open(&path, WRITE | CREATE);
            caller.write(&file, 0, append);
            sync(caller, &file);
            caller.close(file);
            // What is delivered has the size of an append, whatever was drawn.
            share.has(index, append);
        }
        if let Some((index, path, size)) = share.existing(caller) {
            let file = caller.open(&path, READ_WRITE | APPEND);
            caller.read_all(&file, size, unit);
            caller.write(&file, size, append);
            sync(caller, &file);
            caller.close(file);
            share.has(index, size + append);
        }
        if let Some((_, path, size)) = share.existing(caller) {
            caller.read_file(&path, size, unit);
        }
    })?;
    Ok(Plan { setup: vec![set.setup(0)], run: vec![run] })
}

fn database(values: &Values) -> Result<Plan, WorkloadError> {
    const LOG: &str = "/db/log";
    let (files, size, record) = (values.some("files")?, values.some("size")?, values.some("record")?);
    let (readers, writers) = (values.threads("readers")?, values.threads("writers")?);
    let (loops, seed, log_write) = (values.whole("loops"), values.seed(), values.whole("log-write"));
    let threads = readers + writers + 1;
    let path = |file: u64| format!("/db/f{file:04}");
    let worker = |thread| {
        let (mut left, mut opened) = (loops, Vec::new());
        let writes = thread >= readers;
        Thread::new((1, thread, threads), seed, move |caller| {
            if opened.is_empty() {
                let flags = if writes { READ_WRITE } else { READ };
                opened = (0..files).map(|file| caller.open(&path(file), flags)).collect();
                return true;
            }
            if left == 0 {
                opened.drain(..).for_each(|file| caller.close(file));
                return false;
            }
            left -= 1;
            let file = &opened[caller.chance.below(files) as usize];
            let at = caller.chance.below((size / record).max(1)) * record;
            if writes {
                caller.write(file, at, record)
            } else {
                caller.read(file, at, record)
            }
            true
        })
    };
    let log_writes = readers * loops / values.some("reads-per-log-write")?;
    let (mut written, mut log) = (0, None);
    let writer = Thread::new((1, threads - 1, threads), seed, move |caller| {
        let file = log.get_or_insert_with(|| caller.open(LOG, WRITE | APPEND | DATA_SYNC));
        if written == log_writes {
            caller.close(file.clone());
            return false;
        }
        caller.write(file, written * log_write, log_write);
        written += 1;
        true
    });
    let mut file = 0;
    let setup = alone(0, seed, move |caller| {
        if file == 0 {
            caller.mkdir("/db");
            caller.write_file(LOG, 0, 1);
        }
        caller.write_file(&path(file), size, 1 << 20);
        file += 1;
        file < files
    });
    let run = (0..readers + writers).map(worker).chain([writer]).collect();
    Ok(Plan { setup: vec![setup], run: vec![run] })
}
