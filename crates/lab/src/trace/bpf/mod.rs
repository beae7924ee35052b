//! Tracing by programs in the kernel: all processes, or some with their children, at a cost that a compiler hardly feels.
//!
//! Needs     root, x86-64, Linux 5.8. Calls of 32-bit programs are taken for others: do not trace these.
//! Promises  what could not be told is counted.

mod decode;
mod programs;
mod tracepoint;

use super::counts::Cause;
use super::event::Event;
use super::host::{Proc, State, processes, threads};
use super::live::{Source, Started};
use super::tracker::Tracker;
use ashlar_env::bpf::Ring;
use decode::{Told, arguments, by_number, decode};
use programs::{Programs, Whom};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};
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
    ring: Ring,
    began_ns: u64,
    subject: Subject,
    exit: Option<ExitStatus>,
    lost: u64,
    counted: Instant,
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
    fn load(whom: Whom, ring_len: u64) -> io::Result<(Programs, Ring)> {
        supported()?;
        let len = u32::try_from(ring_len.clamp(1 << 16, 1 << 30).next_power_of_two()).unwrap_or(1 << 30);
        let programs = Programs::load(whom, len, &Fork::find()?)?;
        let ring = Ring::new(&programs.ring)?;
        Ok((programs, ring))
    }

    fn new((programs, ring): (Programs, Ring), subject: Subject) -> Bpf {
        Bpf { programs, ring, began_ns: now_ns(), subject, exit: None, lost: 0, counted: Instant::now() }
    }

    /// Whether the kernel lets us; the error says why not.
    pub fn check() -> io::Result<()> {
        supported()?;
        ashlar_env::bpf::check()?;
        Fork::find().map(drop)
    }

    /// Starts a command and traces it.
    pub fn command(mut command: Command, ring_len: u64, tracker: &mut Tracker<Started>) -> io::Result<Bpf> {
        let starter = gettid().as_raw_nonzero().get() as u32;
        let loaded = Bpf::load(Whom::Set { starter }, ring_len)?;
        let mut bpf = Bpf::new(loaded, Subject::Everybody);
        // The command's process is a copy of this one.
        tracker.adopt(std::process::id(), &[starter]);
        bpf.subject = Subject::Child(command.spawn()?);
        Ok(bpf)
    }

    /// Traces a process that runs, and the children that it will have.
    pub fn process(process: u32, ring_len: u64, tracker: &mut Tracker<Started>) -> io::Result<Bpf> {
        let loaded = Bpf::load(Whom::Set { starter: 0 }, ring_len)?;
        loaded.0.processes.set(&process.to_ne_bytes(), &1u32.to_ne_bytes())?;
        tracker.adopt(process, &threads(process));
        Ok(Bpf::new(loaded, Subject::Process(process)))
    }

    /// Traces everybody but this process.
    pub fn everybody(ring_len: u64, tracker: &mut Tracker<Started>) -> io::Result<Bpf> {
        let this = std::process::id();
        let loaded = Bpf::load(Whom::All { but: this }, ring_len)?;
        let bpf = Bpf::new(loaded, Subject::Everybody);
        for process in processes().into_iter().filter(|process| *process != this) {
            tracker.adopt(process, &threads(process));
        }
        Ok(bpf)
    }

    fn count_lost(&mut self, tracker: &mut Tracker<Started>) -> io::Result<()> {
        let lost = self.programs.lost()?;
        tracker.count(Cause::Lost, lost.saturating_sub(self.lost));
        (self.lost, self.counted) = (lost, Instant::now());
        Ok(())
    }

    fn gone(&self, event: &Event, tracker: &Tracker<Started>) {
        if let Some(process) = event.process
            && !tracker.has_process(process)
        {
            // Somebody else may get its number. Where everybody is traced, nobody is set.
            let _ = self.programs.processes.remove(&process.to_ne_bytes());
        }
    }
}

impl Source for Bpf {
    fn drain(&mut self, tracker: &mut Tracker<Started>) -> io::Result<bool> {
        let (mut ends, mut damaged) = (Vec::new(), 0);
        let began_ns = self.began_ns;
        let count = self.ring.drain(|bytes| match decode(bytes, began_ns) {
            Some(Told::Event(event)) => {
                if event.what == super::event::What::Exit {
                    ends.push(event.clone());
                }
                tracker.event(event);
            }
            Some(Told::Within(event, call)) => {
                ends.push(event.clone());
                if let Some(call) = call {
                    tracker.unfinished(event.thread, call, None);
                }
                tracker.event(event);
            }
            None => damaged += 1,
        });
        ends.iter().for_each(|end| self.gone(end, tracker));
        tracker.count(Cause::Lost, damaged);
        if self.counted.elapsed() >= COUNTING {
            self.count_lost(tracker)?;
        }
        Ok(count > 0)
    }

    fn is_over(&mut self) -> io::Result<bool> {
        Ok(match &mut self.subject {
            Subject::Child(child) => {
                self.exit = child.try_wait()?;
                self.exit.is_some()
            }
            Subject::Process(process) => !std::path::Path::new(&format!("/proc/{process}")).exists(),
            Subject::Everybody => false,
        })
    }

    fn stop(&mut self, waited: Duration) -> io::Result<bool> {
        let Subject::Child(child) = &self.subject else { return Ok(true) };
        if waited >= super::live::PATIENCE
            && let Some(pid) = Pid::from_raw(child.id() as i32)
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        Ok(waited >= 5 * super::live::PATIENCE)
    }

    fn finish(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Option<ExitStatus>> {
        self.drain(tracker)?;
        self.count_lost(tracker)?;
        self.programs.detach();
        for thread in self.programs.pending.keys() {
            let Ok(entry) = self.programs.pending.get(&thread) else { continue };
            let (Some(thread), Some(number)) =
                (thread.first_chunk(), entry.get(8..16).and_then(|bytes| bytes.first_chunk()))
            else {
                continue;
            };
            if let Some(call) = by_number(u64::from_ne_bytes(*number)) {
                let arguments = entry.get(16..).map(arguments);
                tracker.unfinished(u32::from_ne_bytes(*thread), call, arguments);
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
