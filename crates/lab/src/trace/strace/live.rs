//! strace, run for us: what it writes comes through a named pipe.

use super::{Reader, options};
use crate::trace::host::threads;
use crate::trace::live::{Drained, PATIENCE, Source, Started, Subject, fresh_directory};
use crate::trace::tracker::Tracker;
use ashlar_units::Bytes;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// `O_NONBLOCK`.
const NONBLOCK: i32 = 0o4000;
/// Bytes that are read at once, as many as a pipe holds.
const PIECE: usize = 64 << 10;

/// strace, as it runs.
pub struct Live {
    child: Child,
    pipe: File,
    directory: PathBuf,
    reader: Reader,
    line: Vec<u8>,
    is_command: bool,
    given_up: bool,
    exit: Option<ExitStatus>,
}

impl Live {
    /// Starts it.
    pub fn start(subject: &Subject, tracker: &mut Tracker<Started>) -> io::Result<Live> {
        let directory = fresh_directory("strace")?;
        let fifo = directory.join("calls");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let pipe = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&fifo)?;
        let mut reader = Reader::default();
        let mut command = Command::new("strace");
        command.args(options()).arg("-o").arg(&fifo);
        match subject {
            Subject::Command { words, quiet } => {
                command.arg("--").args(words);
                if *quiet {
                    command.stdout(io::stderr());
                }
            }
            Subject::Process(process) => {
                tracker.adopt(*process, &threads(*process));
                reader.knows(&threads(*process));
                command.arg("-p").arg(process.to_string());
            }
            Subject::Everybody => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "strace traces commands and processes"));
            }
        }
        let child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("strace: {error}")))?;
        let is_command = matches!(subject, Subject::Command { .. });
        Ok(Live { child, pipe, directory, reader, line: Vec::new(), is_command, given_up: false, exit: None })
    }

    /// The command that strace started.
    fn command(&self) -> Option<Pid> {
        let id = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
    }
}

impl Source for Live {
    fn drain(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Drained> {
        let mut piece = vec![0; PIECE];
        let len = match self.pipe.read(&mut piece) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let mut rest = &piece[..len];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..end]);
            self.reader.line(&self.line, tracker);
            self.line.clear();
            rest = &rest[end + 1..];
        }
        self.line.extend_from_slice(rest);
        Ok(Drained { busy: len > 0, settled_ns: None, waiting: Bytes(0) })
    }

    fn is_over(&mut self) -> io::Result<bool> {
        self.exit = self.child.try_wait()?;
        Ok(self.exit.is_some() || self.given_up)
    }

    fn stop(&mut self, waited: Duration) -> io::Result<()> {
        if !self.is_command {
            // It lets go of the process, and ends.
            if let Some(strace) = Pid::from_raw(self.child.id() as i32) {
                let _ = kill_process(strace, Signal::INT);
            }
        } else if waited >= PATIENCE
            && let Some(command) = self.command()
        {
            let _ = kill_process(command, Signal::TERM);
        }
        self.given_up = waited >= 5 * PATIENCE;
        Ok(())
    }

    fn finish(&mut self, tracker: &mut Tracker<Started>) -> io::Result<Option<ExitStatus>> {
        if self.exit.is_none() {
            self.child.kill()?;
            self.child.wait()?;
            while self.drain(tracker)?.busy {}
        }
        std::mem::take(&mut self.reader).finish(tracker);
        Ok(self.exit.filter(|_| self.is_command))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
