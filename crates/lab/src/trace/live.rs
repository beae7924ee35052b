//! Traces what runs, from its beginning or from now on, until it ends or somebody says to stop.

use super::bpf::{Bpf, Room, this_process};
use super::counts::{Cause, Counts};
use super::door::Door;
use super::file::{TraceFile, home};
use super::flags::CLOSE_ON_EXEC;
use super::host::{Host, Past, Proc, Seen, State};
use super::strace::{self, Live};
use super::tracker::Tracker;
use crate::sorter::nameless;
use ashlar_units::Bytes;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Between looks at what was told.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a command may take to end by itself after Ctrl-C; then it is asked to, and at last left alone.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// Between two words about progress.
const WORD: Duration = Duration::from_millis(100);

/// What is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A command that is started, with its children.
    Command {
        /// Its name and arguments.
        words: Vec<OsString>,
        /// Its standard output goes to standard error.
        quiet: bool,
    },
    /// A process that runs, and the children that it will have.
    Process(u32),
    /// Everybody but this process.
    Everybody,
}

/// How to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By programs in the kernel.
    Bpf,
    /// By strace.
    Strace,
}

/// What came of it.
#[derive(Debug)]
pub struct Traced {
    /// What is in the file, and what is not.
    pub counts: Counts,
    /// How the command ended, if there was one and it did.
    pub exit: Option<ExitStatus>,
    /// Seconds from the first to the last look.
    pub seconds: f64,
}

/// How a trace is made.
pub struct Options<'a> {
    /// The file.
    pub to: &'a Path,
    /// Only what is below this directory.
    pub only: Option<&'a str>,
    /// Memory for sorting, bytes.
    pub memory: usize,
    /// Memory for what the kernel tells, bytes.
    pub ring_len: u64,
    /// Becomes true when the trace is to end.
    pub stop: &'a AtomicBool,
    /// Is told the counts so far, and how much waits to be made into records, a few times a second.
    pub progress: &'a dyn Fn(&Counts, Bytes),
}

/// The processes of this machine; the first that is asked for may have begun in a state that is known.
pub struct Started {
    first: Option<State>,
}

impl Host for Started {
    fn process(&mut self, process: u32) -> Option<State> {
        self.first.take().or_else(|| Proc.process(process))
    }
    fn descriptor(&mut self, process: u32, fd: u32) -> Option<Seen> {
        Proc.descriptor(process, fd)
    }
    fn size(&mut self, path: &str) -> Option<u64> {
        Proc.size(path)
    }
}

/// A directory that nobody else had or can enter.
pub(super) fn fresh_directory(what: &str) -> io::Result<PathBuf> {
    let (process, number) = (std::process::id(), FRESH.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(format!("ashlar-{what}-{process}-{number}"));
    let made = DirBuilder::new().mode(0o700).create(&path);
    made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(path)
}

/// Number of the next directory.
static FRESH: AtomicU32 = AtomicU32::new(0);

/// What the tracker was given.
pub(super) struct Drained {
    /// There was something.
    pub busy: bool,
    /// No record begins before this time that is made from now on, if that is known.
    pub settled_ns: Option<u64>,
    /// What was put aside, of which records are still to be made.
    pub waiting: Bytes,
}

/// Where events come from.
pub(super) trait Source {
    /// Gives the tracker what is there.
    fn drain(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Drained>;
    /// Whether nothing will come any more, once everything that is there was taken.
    fn is_over(&mut self) -> io::Result<bool>;
    /// Somebody wants it to be over, for so long already.
    fn stop(&mut self, waited: Duration) -> io::Result<()>;
    /// Ends the trace, and takes what is still there.
    fn finish(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Option<ExitStatus>>;
}

/// Traces what is asked of a mount of ours, as its server tells: `heard` gives what there is since the last time, and is told
/// whether to stop.
pub fn of_door(
    mount: &Path,
    heard: impl FnMut(bool) -> io::Result<ashlar_fuse::Heard> + 'static,
    options: &Options,
) -> io::Result<Traced> {
    let file = TraceFile::create(options.to, options.memory)?;
    let tracker = Tracker::new(Started { first: None }, options.only);
    run(&mut Door::new(mount, heard), tracker, file, options)
}

/// Traces.
pub fn trace(subject: &Subject, method: Method, options: &Options) -> io::Result<Traced> {
    // Made first: what cannot be written need not be run.
    let file = TraceFile::create(options.to, options.memory)?;
    let mut first = match (subject, method) {
        (Subject::Command { .. }, Method::Strace) => this_process(),
        _ => None,
    };
    if let Some(state) = &mut first {
        state.descriptors.retain(|(_, seen)| seen.flags & CLOSE_ON_EXEC == 0);
    }
    let mut tracker = Tracker::new(Started { first }, options.only);
    let room = || io::Result::Ok(Room { ring_len: options.ring_len, aside: nameless(home(options.to))? });
    let mut source: Box<dyn Source> = match (method, subject) {
        (Method::Bpf, Subject::Command { words, quiet }) => {
            let (name, arguments) = words.split_first().ok_or_else(|| io::Error::other("there is no command"))?;
            let mut command = Command::new(name);
            command.args(arguments);
            if *quiet {
                command.stdout(io::stderr());
            }
            Box::new(Bpf::command(command, room()?, &mut tracker)?)
        }
        (Method::Bpf, Subject::Process(process)) => Box::new(Bpf::process(*process, room()?, &mut tracker)?),
        (Method::Bpf, Subject::Everybody) => Box::new(Bpf::everybody(room()?, &mut tracker)?),
        (Method::Strace, subject) => Box::new(Live::start(subject, &mut tracker)?),
    };
    run(&mut *source, tracker, file, options).map_err(|error| match (error.kind(), error.raw_os_error()) {
        // What waits to become records lies beside the trace, in a file that has no name to tell.
        (io::ErrorKind::StorageFull, Some(_)) => {
            io::Error::new(error.kind(), format!("{}: {error}", options.to.display()))
        }
        _ => error,
    })
}

fn run(
    source: &mut dyn Source,
    mut tracker: Tracker<Started>,
    mut file: TraceFile,
    options: &Options,
) -> io::Result<Traced> {
    let began = Instant::now();
    let (mut word, mut stopping) = (began, None);
    loop {
        // Asked before the last look, so that nothing is left behind.
        let over = source.is_over()?;
        let Drained { busy, settled_ns, waiting } = source.drain(&mut tracker)?;
        put(&mut tracker, &mut file)?;
        settled_ns.map_or(Ok(()), |at_ns| file.settle(at_ns))?;
        let now = Instant::now();
        if now - word >= WORD {
            word = now;
            (options.progress)(tracker.counts(), waiting);
        }
        if over && !busy {
            break;
        }
        if options.stop.load(Ordering::Relaxed) {
            let since = *stopping.get_or_insert(now);
            source.stop(now - since)?;
        }
        if !busy {
            std::thread::sleep(PAUSE);
        }
    }
    let exit = source.finish(&mut tracker)?;
    let seconds = began.elapsed().as_secs_f64();
    put(&mut tracker, &mut file)?;
    file.finish()?;
    Ok(Traced { counts: tracker.counts().clone(), exit, seconds })
}

/// Moves records from the tracker into the file.
fn put<H: Host>(tracker: &mut Tracker<H>, file: &mut TraceFile) -> io::Result<()> {
    let mut moved = 0;
    tracker.take().try_for_each(|record| file.put(record).map(|late| moved += u64::from(late)))?;
    tracker.count(Cause::ClockStep, moved);
    Ok(())
}

/// Makes a trace of what strace wrote some time ago, begun in `directory`.
pub fn recorded(from: &Path, directory: PathBuf, options: &Options) -> io::Result<Traced> {
    let began = Instant::now();
    let lines = BufReader::with_capacity(1 << 18, File::open(from)?);
    let mut file = TraceFile::create(options.to, options.memory)?;
    let mut tracker = Tracker::new(Past { directory }, options.only);
    let mut word = began;
    strace::read(lines, &mut tracker, |tracker| {
        put(tracker, &mut file)?;
        if tracker.counts().records % 1024 == 0 && word.elapsed() >= WORD {
            word = Instant::now();
            (options.progress)(tracker.counts(), Bytes(0));
        }
        if options.stop.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    })
    .or_else(|error| if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) })?;
    let counts = tracker.counts().clone();
    if counts.records == 0 && counts.of(Cause::UnreadableLine) > 0 && counts.of(Cause::OtherCall) == 0 {
        return Err(io::Error::other("it is not what `strace -f -ttt -T -o FILE` writes"));
    }
    file.finish()?;
    Ok(Traced { counts, exit: None, seconds: began.elapsed().as_secs_f64() })
}
