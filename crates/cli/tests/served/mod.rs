//! Block devices that the program serves.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Beginning and ending take moments.
const PATIENCE: Duration = Duration::from_secs(30);

/// A directory of a test's own, gone at its end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-device-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("made");
        Scratch(path)
    }
    pub fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
    /// `device serve`, or that of another verb, with these options, over NBD at a socket here.
    pub fn serve(&self, verb: &str, options: &[&str], socket: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command
            .current_dir(&self.0)
            .args([verb, "serve"])
            .args(options)
            .arg("--nbd")
            .arg(format!("unix:{}", self.at(socket)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that serves.
pub struct Served(Child);

impl Served {
    pub fn start(mut command: Command, socket: &str) -> Served {
        let served = Served(command.spawn().expect("it runs"));
        let began = Instant::now();
        while !Path::new(socket).exists() {
            assert!(began.elapsed() < PATIENCE, "it serves");
            std::thread::sleep(Duration::from_millis(5));
        }
        served
    }
    /// Ctrl-C; whether it ended well, and what it said.
    pub fn interrupt(mut self) -> (bool, String) {
        let status = Command::new("kill").arg("-INT").arg(self.0.id().to_string()).status().expect("it runs");
        assert!(status.success());
        let ended = self.0.wait().expect("it ends");
        let mut said = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        (ended.success(), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a command that must fail says.
pub fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
