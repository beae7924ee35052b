//! A server to talk to, and the clients that people have.

#![allow(dead_code, reason = "every test uses a part")]

use ashlar_env::real::Real;
use ashlar_s3::{Buckets, Credentials, InMemory, Limits, Options, Server};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The key of AWS's published examples, and its secret.
pub const KEY: &str = "AKIAIOSFODNN7EXAMPLE";
pub const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

/// A directory that goes with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-s3-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Scratch(path)
    }
    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// A file of `len` bytes that differ everywhere.
    pub fn file(&self, name: &str, len: usize) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, noise(len)).expect("a scratch file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes that do not repeat.
pub fn noise(len: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15u64 ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(word >> 8).to_le_bytes()[..7]);
    }
    bytes.truncate(len);
    bytes
}

/// A server of buckets in memory.
pub struct Served {
    pub real: Real,
    pub server: Option<Server>,
    pub buckets: Arc<InMemory>,
}

impl Served {
    /// One that takes the key of the examples.
    pub fn new() -> Served {
        Served::with(Options { credentials: Credentials::one(KEY, SECRET), ..Options::default() })
    }
    pub fn with_limits(limits: Limits) -> Served {
        Served::with(Options { credentials: Credentials::one(KEY, SECRET), limits, ..Options::default() })
    }
    pub fn with(options: Options) -> Served {
        let real = Real::start(2).expect("io_uring is available");
        let buckets = Arc::new(InMemory::new(real.env(), 1 << 30));
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::start(&real.env(), buckets.clone(), local, 2, options).expect("a free port");
        Served { real, server: Some(server), buckets }
    }
    pub fn address(&self) -> SocketAddr {
        self.server.as_ref().expect("it serves").address()
    }
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }
    /// Makes a bucket and gives its store.
    pub fn bucket(&self, name: &'static str) -> ashlar_objects::Store {
        let buckets = self.buckets.clone();
        self.real.block_on(async move {
            buckets.create(name).await.expect("a new bucket");
            buckets.open(name).await.expect("a bucket")
        })
    }
    /// Sends bytes as they are; what comes back until the server closes.
    pub fn raw(&self, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address()).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        // The server may refuse before it has read everything.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// Runs a line of shell with a client's settings; what it prints.
pub fn run(served: &Served, line: &str) -> String {
    let (succeeded, said) = attempt(served, line);
    assert!(succeeded, "{line}\n{said}");
    said
}

/// The same; whether it succeeded, and what it prints.
pub fn attempt(served: &Served, line: &str) -> (bool, String) {
    let output = client(served, "bash").args(["-ec", line]).output().expect("a shell");
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// A program with a client's settings.
fn client(served: &Served, program: &str) -> Command {
    let path = format!("{}:{}", clients().join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("env");
    command
        .arg(program)
        .env("PATH", path)
        .env("ENDPOINT", served.endpoint())
        .env("HOST", served.address().to_string())
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_DEFAULT_REGION", "us-east-1")
        .env("AWS_ENDPOINT_URL", served.endpoint())
        .env("AWS_MAX_ATTEMPTS", "2")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_CONFIG_FILE", "/nonexistent")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
        .env_remove("AWS_CA_BUNDLE")
        .env_remove("AWS_SESSION_TOKEN")
        .env_remove("AWS_PROFILE");
    command
}

/// The AWS CLI. Its commands share one start of the interpreter, which takes longer than most of them.
pub struct Aws {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Aws {
    pub fn new(served: &Served) -> Aws {
        let mut command = client(served, "python");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/aws.py"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("an interpreter");
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        Aws { child, answers }
    }
    /// Carries out a command; what it prints.
    pub fn run(&mut self, arguments: &[&str]) -> String {
        let (succeeded, said) = self.attempt(arguments);
        assert!(succeeded, "aws {arguments:?}\n{said}");
        said
    }
    /// The same; whether it succeeded, and what it prints.
    pub fn attempt(&mut self, arguments: &[&str]) -> (bool, String) {
        let line = arguments.join("\t") + "\n";
        self.child.stdin.as_mut().expect("piped").write_all(line.as_bytes()).expect("aws.py reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("aws.py answers");
        let (code, len) = answer.trim().split_once(' ').expect("a code and a length");
        let mut said = vec![0; len.parse().expect("a length")];
        self.answers.read_exact(&mut said).expect("as much as it says");
        (code == "0", String::from_utf8_lossy(&said).into_owned())
    }
}

impl Drop for Aws {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A Python environment with awscli and boto3, and s3cmd and rclone of the distribution: installed when they are missing.
/// Without them nothing is proven, so a registry that cannot be reached fails the test.
fn clients() -> PathBuf {
    static MADE: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(clients) = &*made {
        return clients.clone();
    }
    let clients = Path::new(env!("CARGO_TARGET_TMPDIR")).join("s3-clients-crt");
    if !clients.join("installed").exists() {
        let at = clients.display();
        // Made aside and moved: another test may do the same at this moment.
        let line = format!(
            "flock 9; test -e {at}/installed && exit 0; rm -rf {at}; python3 -m venv {at} && \
             {at}/bin/pip install -q --disable-pip-version-check 'boto3[crt]>=1.36' 'awscli>=1.37' && touch {at}/installed"
        );
        install(&format!("({line}) 9>{at}.lock"), "boto3 and awscli from PyPI into a Python environment");
    }
    let missing: Vec<&str> = ["s3cmd", "rclone"].into_iter().filter(|tool| !is_installed(tool)).collect();
    if !missing.is_empty() {
        let names = missing.join(" ");
        let line = format!(
            "(flock 9; export DEBIAN_FRONTEND=noninteractive; apt-get install -y --no-install-recommends {names} || \
             (apt-get update && apt-get install -y --no-install-recommends {names})) 9>/tmp/ashlar-apt.lock"
        );
        install(&line, "s3cmd and rclone of the distribution, as root");
    }
    made.insert(clients).clone()
}

fn is_installed(tool: &str) -> bool {
    Command::new("which").arg(tool).output().is_ok_and(|out| out.status.success())
}

fn install(line: &str, what: &str) {
    let output = Command::new("bash").args(["-c", line]).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "this test needs {what}, and they cannot be installed:\n{line}\n{said}");
}
