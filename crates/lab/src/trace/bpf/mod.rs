//! Tracing by programs in the kernel: all processes, or some with their children, at a cost that a compiler hardly feels.
//!
//! Needs     root, x86-64, Linux 5.8. Calls of 32-bit programs are taken for others: do not trace these.
//! Promises  what could not be told is counted.

mod decode;
mod programs;
mod taker;
mod tracepoint;

use super::counts::Cause;
use super::event::What;
use super::host::{Proc, State, processes, threads};
use super::live::{Drained, Source, Started};
use super::tracker::Tracker;
use ashlar_env::bpf::Ring;
use ashlar_units::Bytes;
use decode::{Told, by_number, decode};
use programs::{Programs, Whom, Within, within};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
use taker::{Backlog, Note};
use tracepoint::Fork;

/// What is traced.
enum Subject {
    Child(Child),
    Process(u32),
    Everybody,
}

/// Events of programs in the kernel.
pub struct Bpf {
    programs: Programs,
    backlog: Backlog,
    began_ns: u64,
    subject: Subject,
    exit: Option<ExitStatus>,
    lost: u64,
    counted: Instant,
    ended: Option<Ended>,
    /// Bytes of files that were opened for appending, by the thread and when its call began; until that is told.
    ends: HashMap<(u32, u64), u64>,
}

/// What was left when nothing was to be told any more.
struct Ended {
    /// Calls that had not returned, with their arguments if these are known.
    unfinished: Vec<(Within, Option<[u64; 6]>)>,
    lost: u64,
}

/// How much memory the kernel takes for what it tells, and where that is put aside.
pub struct Room {
    /// Bytes; rounded up to a power of two.
    pub ring_len: u64,
    /// A file for this alone.
    pub aside: File,
}

/// Between two looks at what was lost.
const COUNTING: Duration = Duration::from_millis(200);

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn supported() -> io::Result<()> {
    if cfg!(target_arch = "x86_64") {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::Unsupported, "only on x86-64"))
    }
}

impl Bpf {
    fn load(whom: Whom, ring_len: u64) -> io::Result<Programs> {
        supported()?;
        let len = u32::try_from(ring_len.clamp(1 << 16, 1 << 30).next_power_of_two()).unwrap_or(1 << 30);
        Programs::load(whom, len, &Fork::find()?)
    }

    /// Takes what programs tell from now on.
    fn new(programs: Programs, aside: File) -> io::Result<Bpf> {
        let began_ns = now_ns();
        let backlog = Backlog::start(Ring::new(&programs.ring)?, programs.threads.clone(), aside)?;
        let (subject, counted) = (Subject::Everybody, Instant::now());
        Ok(Bpf {
            programs,
            backlog,
            began_ns,
            subject,
            exit: None,
            lost: 0,
            counted,
            ended: None,
            ends: HashMap::new(),
        })
    }

    /// Whether the kernel lets us; the error says why not.
    pub fn check() -> io::Result<()> {
        supported()?;
        ashlar_env::bpf::check()?;
        Fork::find().map(drop)
    }

    /// Starts a command and traces it.
    pub fn command(mut command: Command, room: Room, tracker: &mut Tracker<Started>) -> io::Result<Bpf> {
        let starter = gettid().as_raw_nonzero().get() as u32;
        let mut bpf = Bpf::new(Bpf::load(Whom::Set { starter }, room.ring_len)?, room.aside)?;
        // The command's process is a copy of this one.
        tracker.adopt(std::process::id(), &[starter]);
        bpf.subject = Subject::Child(command.spawn()?);
        bpf.backlog.wait_for_the_end();
        Ok(bpf)
    }

    /// Traces a process that runs, and the children that it will have.
    pub fn process(process: u32, room: Room, tracker: &mut Tracker<Started>) -> io::Result<Bpf> {
        let mut bpf = Bpf::new(Bpf::load(Whom::Set { starter: 0 }, room.ring_len)?, room.aside)?;
        bpf.subject = Subject::Process(process);
        let mut traced = BTreeSet::new();
        // What a traced thread starts is traced: there is an end.
        while let Some(thread) = threads(process).into_iter().find(|thread| !traced.contains(thread)) {
            bpf.programs.add(thread)?;
            traced.insert(thread);
        }
        tracker.adopt(process, &threads(process));
        bpf.backlog.wait_for_others();
        Ok(bpf)
    }

    /// Traces everybody but this process.
    pub fn everybody(room: Room, tracker: &mut Tracker<Started>) -> io::Result<Bpf> {
        let this = std::process::id();
        let bpf = Bpf::new(Bpf::load(Whom::All { but: this }, room.ring_len)?, room.aside)?;
        for process in processes().into_iter().filter(|process| *process != this) {
            tracker.adopt(process, &threads(process));
        }
        bpf.backlog.wait_for_others();
        Ok(bpf)
    }

    /// Nothing is told any more, and what was told is put aside.
    fn halt(&mut self) -> io::Result<()> {
        if self.ended.is_none() {
            self.backlog.stop()?;
            let within = within(&self.programs.threads);
            let unfinished = within.map(|within| {
                let arguments = arguments_of(&within);
                (within, arguments)
            });
            self.ended = Some(Ended { unfinished: unfinished.collect(), lost: self.programs.lost()? });
            self.programs.detach();
        }
        Ok(())
    }

    fn count_lost(&mut self, tracker: &mut Tracker<Started>) -> io::Result<()> {
        let lost = self.ended.as_ref().map_or_else(|| self.programs.lost(), |ended| Ok(ended.lost))?;
        tracker.count(Cause::Lost, lost.saturating_sub(self.lost));
        (self.lost, self.counted) = (lost, Instant::now());
        Ok(())
    }
}

/// Arguments of a call that a thread is still in.
fn arguments_of(within: &Within) -> Option<[u64; 6]> {
    let text = std::fs::read_to_string(format!("/proc/{}/syscall", within.thread)).ok()?;
    let mut words = text.split_whitespace();
    let same = words.next()?.parse() == Ok(within.call);
    let mut arguments = [0; 6];
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    same.then_some(arguments)
}

impl Source for Bpf {
    fn drain(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Drained> {
        let (mut settled_ns, mut damaged) = (None, 0);
        let (began_ns, ends) = (self.began_ns, &mut self.ends);
        let busy = self.backlog.drain(|bytes| match decode(bytes, began_ns) {
            Some(Told::Event(mut event)) => {
                if let What::Call(caught) = &mut event.what {
                    caught.end = ends.remove(&(event.thread, event.at_ns));
                }
                tracker.event(event);
            }
            Some(Told::Within(event, call)) => {
                if let Some(call) = call {
                    tracker.unfinished(event.thread, call, None);
                }
                tracker.event(event);
            }
            None => match Note::read(bytes) {
                Some(Note::Settled(at_ns)) => settled_ns = Some(at_ns.saturating_sub(began_ns)),
                Some(Note::End { thread, began_ns: call_ns, bytes }) => {
                    ends.insert((thread, call_ns.saturating_sub(began_ns)), bytes);
                }
                None => damaged += 1,
            },
        })?;
        tracker.count(Cause::Lost, damaged);
        if self.counted.elapsed() >= COUNTING {
            self.count_lost(tracker)?;
        }
        Ok(Drained { busy, settled_ns, waiting: Bytes(self.backlog.waiting()) })
    }

    fn is_over(&mut self) -> io::Result<bool> {
        let over = match &mut self.subject {
            Subject::Child(child) => {
                self.exit = child.try_wait()?;
                self.exit.is_some()
            }
            Subject::Process(process) => !std::path::Path::new(&format!("/proc/{process}")).exists(),
            Subject::Everybody => false,
        };
        if over {
            self.halt()?;
        }
        Ok(over || self.ended.is_some())
    }

    fn stop(&mut self, waited: Duration) -> io::Result<()> {
        let Subject::Child(child) = &self.subject else { return self.halt() };
        if waited >= super::live::PATIENCE
            && let Some(pid) = Pid::from_raw(child.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        if waited >= 5 * super::live::PATIENCE { self.halt() } else { Ok(()) }
    }

    fn finish(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Option<ExitStatus>> {
        self.count_lost(tracker)?;
        for (within, arguments) in self.ended.take().into_iter().flat_map(|ended| ended.unfinished) {
            if let Some(call) = by_number(within.call) {
                tracker.unfinished(within.thread, call, arguments);
            }
        }
        Ok(self.exit)
    }
}

/// The host of what runs: a command begins as a copy of this process.
pub(super) fn this_process() -> Option<State> {
    use super::host::Host;
    Proc.process(std::process::id())
}
