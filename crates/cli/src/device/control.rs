//! The control socket of a served device: faults, power, counters and a trace, while it runs.

use super::trace::Taps;
use crate::framing::{self, Line, send};
use crate::output::{Failure, Output};
use crate::request::Done;
use ashlar_block::{BlockDevice, Counters};
use ashlar_env::real::Real;
use ashlar_faults::{CutReport, Fault, FaultStatus, Faulty, Injection};
use ashlar_nbd::Address;
use ashlar_units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What can be asked of a served device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Inject a fault.
    Fault {
        fault: Fault,
    },
    /// List faults.
    Faults,
    /// End one fault, or all.
    Clear {
        number: Option<u64>,
    },
    PowerCut,
    Restore,
    Stats,
    Log,
    /// Send every request that is done, a record a line, after the answer.
    Trace,
}

/// What a served device answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Fault(FaultStatus),
    Faults(Vec<FaultStatus>),
    Cut(CutReport),
    Stats(Stats),
    Log(Vec<Injection>),
    Done(Done),
}

/// What passed a device since it is served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// What it is.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// False after a power cut, until `restore`.
    pub powered: bool,
    /// Bytes that a power cut could take now.
    pub volatile_bytes: u64,
    /// Faults that are there.
    pub faults: u64,
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Completed flushes.
    pub flushes: u64,
    /// Completed discards.
    pub discards: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Nanoseconds that operations took, summed.
    pub busy_ns: u64,
}

/// A fault as people see it.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct OneFault(FaultStatus);

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Faults(Vec<FaultStatus>);

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct Injections(Vec<Injection>);

#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct PowerCut(CutReport);

impl fmt::Display for OneFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OneFault(FaultStatus { number, fault, injected, spent, bad_blocks }) = self;
        write!(f, "{number:>3}  {fault}: {injected} injected")?;
        if let Some(blocks) = bad_blocks {
            write!(f, ", {blocks} blocks bad")?;
        }
        writeln!(f, "{}", if *spent { ", spent" } else { "" })
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            writeln!(f, "no faults")?;
        }
        self.0.iter().try_for_each(|fault| OneFault(fault.clone()).fmt(f))
    }
}

impl fmt::Display for Injections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Injection { at_ns, fault, name, op, lba, blocks } in &self.0 {
            let (seconds, op) = (*at_ns as f64 / 1e9, op.name());
            writeln!(f, "{seconds:>14.6} s  fault {fault} ({name})  {op} of {blocks} blocks at lba {lba}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PowerCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CutReport { medium, writes, bytes, survived_bytes } = self.0;
        match medium {
            true => writeln!(
                f,
                "the power is cut: of {writes} writes that no flush covered, {} in all, {} reached the medium; `restore` \
                 brings it back",
                Bytes(bytes),
                Bytes(survived_bytes)
            ),
            false => writeln!(
                f,
                "the power is cut, and nothing was lost, since no volatile cache is declared (`fault power-cut`); `restore` \
                 brings it back"
            ),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = if self.powered { "on" } else { "cut" };
        writeln!(f, "device    {} of {}", Bytes(self.size), self.device)?;
        writeln!(f, "power     {power}, {} not durable", Bytes(self.volatile_bytes))?;
        writeln!(f, "faults    {}", self.faults)?;
        writeln!(f, "reads     {}, {}", self.reads, Bytes(self.read_bytes))?;
        writeln!(f, "writes    {}, {}", self.writes, Bytes(self.written_bytes))?;
        writeln!(f, "flushes   {}", self.flushes)?;
        writeln!(f, "discards  {}", self.discards)?;
        writeln!(f, "errors    {}", self.errors)
    }
}

/// Where the control socket of an export is, if nothing else is said.
pub fn beside(exported: &Path) -> PathBuf {
    let mut path = OsString::from(exported);
    path.push(".control");
    path.into()
}

/// The default control socket: beside the first unix socket, else beside the directory of the file.
pub fn default_socket(nbd: &[Address], file: Option<&Path>) -> Option<PathBuf> {
    let socket = nbd.iter().find_map(|address| match address {
        Address::Unix(path) => Some(path.as_path()),
        Address::Tcp(_) => None,
    });
    socket.or_else(|| file?.parent().filter(|directory| !directory.as_os_str().is_empty())).map(beside)
}

/// The server's side.
pub struct Control {
    path: PathBuf,
    shared: Arc<Shared>,
}

struct Shared {
    faulty: Arc<Faulty>,
    real: Arc<Real>,
    taps: Arc<Taps>,
}

impl Control {
    /// Listens at `path`.
    pub fn listen(path: &Path, faulty: Arc<Faulty>, real: Arc<Real>, taps: Arc<Taps>) -> Result<Control, Failure> {
        let listener = framing::listen(path, "choose another place with --control PATH")?;
        let shared = Arc::new(Shared { faulty, real, taps });
        framing::serve(listener, &shared, Shared::converse)?;
        Ok(Control { path: path.into(), shared })
    }

    /// Listens no more, ends traces, and waits until they are sent and answers are given.
    pub fn close(self) {
        let _ = std::fs::remove_file(&self.path);
        self.shared.taps.end();
        let began = std::time::Instant::now();
        while Arc::strong_count(&self.shared) > 1 && began.elapsed() < framing::PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Shared {
    fn converse(&self, request: Result<Request, String>, mut stream: UnixStream) {
        let answer = match request {
            Ok(Request::Trace) => {
                let tap = self.taps.open();
                send(&mut stream, &Line::Answer(Answer::Done(Done { done: "tracing".into() })));
                return tap.serve(&mut stream);
            }
            Ok(request) => self.answer(request).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        send(&mut stream, &answer.map_or_else(Line::Failure, Line::Answer));
    }

    fn answer(&self, request: Request) -> Result<Answer, ashlar_block::Error> {
        let faulty = self.faulty.clone();
        let done = |done: String| Ok(Answer::Done(Done { done }));
        match request {
            Request::Fault { fault } => {
                let number = faulty.inject(fault)?;
                let mut faults = faulty.faults().into_iter();
                match faults.find(|fault| fault.number == number) {
                    Some(status) => Ok(Answer::Fault(status)),
                    None => done(format!("fault {number} was cleared at once")),
                }
            }
            Request::Faults => Ok(Answer::Faults(faulty.faults())),
            Request::Clear { number } => {
                let cleared = self.real.block_on(async move { faulty.clear(number).await })?;
                done(format!("cleared {cleared} {}", if cleared == 1 { "fault" } else { "faults" }))
            }
            Request::PowerCut => Ok(Answer::Cut(self.real.block_on(async move { faulty.cut_power().await })?)),
            Request::Restore => {
                let restored = self.real.block_on(async move { faulty.restore().await });
                done(if restored { "the power is back" } else { "the power was on" }.into())
            }
            Request::Stats => Ok(Answer::Stats(stats(&faulty))),
            Request::Log => Ok(Answer::Log(faulty.log())),
            Request::Trace => done("tracing".into()),
        }
    }
}

fn stats(faulty: &Faulty) -> Stats {
    let Counters { reads, read_bytes, writes, written_bytes, flushes, discards, errors, busy_ns } = faulty.counters();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Stats {
        device: BlockDevice::name(faulty),
        size: BlockDevice::geometry(faulty).capacity.to_bytes().0,
        powered: faulty.is_powered(),
        volatile_bytes: faulty.held().0,
        faults: faulty.faults().len() as u64,
        reads: count(reads),
        read_bytes: count(read_bytes),
        writes: count(writes),
        written_bytes: count(written_bytes),
        flushes: count(flushes),
        discards: count(discards),
        errors: count(errors),
        busy_ns: count(busy_ns),
    }
}

/// What people write after `ashlar device control SOCKET`.
pub fn command(text: &str) -> Result<Request, Failure> {
    let (name, rest) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), ""));
    let rest = rest.trim();
    let alone = |request: Request| match rest {
        "" => Ok(request),
        _ => Err(Failure::new(format!("`{name}` takes nothing; leave {rest:?} out"))),
    };
    match name {
        "fault" => Ok(Request::Fault { fault: rest.parse().map_err(|error| Failure::new(format!("{error}")))? }),
        "clear" if rest.is_empty() => Ok(Request::Clear { number: None }),
        "clear" => {
            let number = rest.parse();
            let number = number.map_err(|_| Failure::new(format!("clear {rest:?}: write `clear`, or `clear 3`")))?;
            Ok(Request::Clear { number: Some(number) })
        }
        "faults" => alone(Request::Faults),
        "power-cut" => alone(Request::PowerCut),
        "restore" => alone(Request::Restore),
        "stats" => alone(Request::Stats),
        "log" => alone(Request::Log),
        _ => Err(Failure::new(format!(
            "there is no command {name:?}; there are: fault TEXT, faults, clear [NUMBER], power-cut, restore, stats, log"
        ))),
    }
}

/// A connection to the device whose export or control socket this is.
pub fn connect(path: &Path) -> Result<UnixStream, Failure> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let places = [Some(beside(path)), Some(path.to_path_buf()), directory.map(beside)];
    let mut first = None;
    for place in places.into_iter().flatten() {
        match framing::connect(&place) {
            Ok(stream) => return Ok(stream),
            Err(error) => _ = first.get_or_insert(error),
        }
    }
    let error = first.map(|error| error.to_string()).unwrap_or_default();
    Err(Failure::new(format!(
        "no device is served at {} ({error}); name the socket or file that `ashlar device serve` was given",
        path.display()
    )))
}

/// `ashlar device control SOCKET COMMAND`.
pub fn control(path: &Path, words: &[String], output: &Output) -> Result<ExitCode, Failure> {
    let request = command(&words.join(" ")).map_err(|error| match output.wants_schema() {
        true => Failure::new("each command of a device has a document of its own: say which, as `stats --json-schema`"),
        false => error,
    })?;
    let schema = match &request {
        Request::Fault { .. } => output.schema::<OneFault>(),
        Request::Faults => output.schema::<Faults>(),
        Request::PowerCut => output.schema::<PowerCut>(),
        Request::Stats => output.schema::<Stats>(),
        Request::Log => output.schema::<Injections>(),
        Request::Clear { .. } | Request::Restore | Request::Trace => output.schema::<Done>(),
    };
    if let Some(code) = schema {
        return Ok(code);
    }
    let (answer, _) = framing::ask(connect(path)?, "the device", &request, &|_, _| {})?;
    match answer {
        Answer::Fault(fault) => output.print(&OneFault(fault)),
        Answer::Faults(faults) => output.print(&Faults(faults)),
        Answer::Cut(report) => output.print(&PowerCut(report)),
        Answer::Stats(stats) => output.print(&stats),
        Answer::Log(log) => output.print(&Injections(log)),
        Answer::Done(done) => output.print(&done),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        let read = |text: &str| command(text).map_err(|error| error.to_string());
        let fault = "lse at 2GiB..2GiB+64KiB".parse().expect("a fault");
        assert_eq!(read("fault lse at 2GiB..2GiB+64KiB"), Ok(Request::Fault { fault }));
        assert_eq!(read(" clear 3 "), Ok(Request::Clear { number: Some(3) }));
        assert_eq!(read("clear"), Ok(Request::Clear { number: None }));
        assert_eq!(read("log"), Ok(Request::Log));
        for (text, expected) in [
            ("fault", "there are: lse"),
            ("clear all", "`clear 3`"),
            ("stats now", "takes nothing"),
            ("trace", "no command \"trace\""),
            ("", "fault TEXT, faults"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn control_sockets_lie_beside_what_is_served() {
        let socket = |nbd: &[&str], file: Option<&str>| {
            let nbd: Vec<Address> = nbd.iter().map(|text| text.parse().expect("an address")).collect();
            default_socket(&nbd, file.map(Path::new))
        };
        assert_eq!(socket(&["tcp:127.0.0.1:1", "unix:/run/d.sock"], None), Some("/run/d.sock.control".into()));
        assert_eq!(socket(&[], Some("./dev/disk0")), Some("./dev.control".into()));
        assert_eq!(socket(&["tcp:127.0.0.1:1"], None), None);
    }
}
