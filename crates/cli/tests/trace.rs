//! `ashlar lab trace`, through the front door.

use ashlar_prove::Daemon;
use ashlar_vfs::Engine;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A directory of a test's own, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-trace-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("d")).expect("made");
        Scratch(std::fs::canonicalize(path).expect("it is there"))
    }

    fn trace(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.args(["lab", "trace", "--json", "-o", "out.jsonl", "--only", "d"]).args(arguments);
        command.current_dir(&self.0).stdin(Stdio::null()).output().expect("it runs")
    }

    /// The records as lines: what, path and other path below `d`, offset, bytes asked for and done, error.
    fn records(&self) -> Vec<String> {
        let home = format!("{}/d", self.0.display());
        let text = std::fs::read_to_string(self.0.join("out.jsonl")).expect("it was written");
        let lines = text.lines().map(|line| {
            let record: Value = serde_json::from_str(line).expect("a record");
            let text = |name: &str| record[name].as_str().expect("a text").replace(&home, "@");
            let number = |name: &str| record[name].as_u64().expect("a number");
            let [offset, len, done, error] = ["offset", "len", "done", "error"].map(number);
            format!("{} {} {} {offset}+{len}={done} e{error}", text("op"), text("path"), text("path2"))
        });
        lines.collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Does the same calls everywhere, whatever the version of any program.
const PROGRAM: &str = r#"
import os
os.chdir("d")
d = os.open("sub", os.O_RDONLY) if os.path.isdir("sub") else None
os.mkdir("sub", 0o700)
a = os.open("a", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
os.write(a, b"x" * 5000)
b = os.dup(a)
os.lseek(b, 1000, os.SEEK_SET)
os.read(a, 100)
os.pread(b, 50, 4990)
os.close(a)
if os.fork() == 0:
    os.write(b, b"y" * 10)
    os._exit(0)
os.wait()
os.write(b, b"z" * 10)
os.writev(b, [b"1" * 3, b"2" * 4])
os.fsync(b)
os.ftruncate(b, 2000)
os.close(b)
w = os.open("a", os.O_WRONLY | os.O_APPEND)
os.write(w, b"end")
os.close(w)
os.rename("a", "sub/b")
s = os.open("sub", os.O_RDONLY)
os.link("b", "./sub/../c", src_dir_fd=s)
os.symlink("../x", "l", dir_fd=s)
os.readlink("l", dir_fd=s)
try:
    os.open("no", os.O_RDONLY, dir_fd=s)
except OSError:
    pass
try:
    os.rmdir("sub")
except OSError:
    pass
os.unlink("./sub/../c")
os.truncate("sub/b", 7)
os.fchdir(s)
os.chmod("b", 0o600)
r, p = os.pipe()
os.write(p, b"pipe")
os.read(r, 4)
"#;

const EXPECTED: [&str; 26] = [
    "stat @/sub  0+0=0 e2",
    "mkdir @/sub  0+0=0 e0",
    "open @/a  0+0=0 e0",
    "write @/a  0+5000=5000 e0",
    "read @/a  1000+100=100 e0",
    "read @/a  4990+50=10 e0",
    "write @/a  1100+10=10 e0",
    "write @/a  1110+10=10 e0",
    "write @/a  1120+7=7 e0",
    "fsync @/a  0+0=0 e0",
    "truncate @/a  0+2000=0 e0",
    "close @/a  0+0=0 e0",
    "open @/a  0+0=0 e0",
    "write @/a  2000+3=3 e0",
    "close @/a  0+0=0 e0",
    "rename @/a @/sub/b 0+0=0 e0",
    "open @/sub  0+0=0 e0",
    "link @/sub/b @/c 0+0=0 e0",
    "symlink @/sub/l ../x 0+0=0 e0",
    "readlink @/sub/l  0+4096=4 e0",
    "open @/sub/no  0+0=0 e2",
    "rmdir @/sub  0+0=0 e39",
    "unlink @/c  0+0=0 e0",
    "truncate @/sub/b  0+7=0 e0",
    "chmod @/sub/b  0+0=0 e0",
    "close @/sub  0+0=0 e0",
];

/// Runs the program by a method, and looks at its calls.
fn checked(scratch: &Scratch, method: &str) -> Value {
    let output = scratch.trace(&["--method", method, "--", "python3", "-I", "-S", "-c", PROGRAM]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(scratch.records(), EXPECTED, "by {method}");
    assert_eq!(document["method"], method);
    assert_eq!(document["exit_code"], 0);
    assert_eq!(document["dropped"], serde_json::json!({}));
    document
}

fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        eprintln!("skipped: there is no {program}");
    }
    there
}

#[test]
fn a_program_is_seen_by_strace() {
    if has("python3") && has("strace") {
        checked(&Scratch::new("strace"), "strace");
    }
}

/// Whether the kernel takes programs, and there is Python.
fn has_bpf(scratch: &Scratch) -> bool {
    let probe = scratch.trace(&["--method", "bpf", "--", "true"]);
    if probe.status.code() == Some(2) {
        let said = String::from_utf8_lossy(&probe.stdout);
        assert!(said.contains("takes no BPF programs"), "{said}");
        eprintln!("skipped: {said}");
        return false;
    }
    has("python3")
}

#[test]
fn a_program_is_seen_by_the_kernel() {
    let scratch = Scratch::new("bpf");
    if has_bpf(&scratch) {
        checked(&scratch, "bpf");
    }
}

/// Two processes read their own files at offsets 0, 1, 2 and so on.
const READERS: &str = r#"
import os
child = os.fork()
f = os.open("d/" + ("child" if child == 0 else "parent"), os.O_RDWR | os.O_CREAT)
for i in range(30000):
    os.pread(f, 1, i)
if child:
    os.wait()
"#;

/// So many that records are written while the program still runs.
#[test]
fn many_calls_are_all_there_in_their_order() {
    let scratch = Scratch::new("many");
    if !has_bpf(&scratch) {
        return;
    }
    let done = scratch.trace(&["--method", "bpf", "--", "python3", "-I", "-S", "-c", READERS]);
    assert!(done.status.success(), "{done:?}");
    let document: Value = serde_json::from_slice(&done.stdout).expect("a document");
    assert_eq!((&document["dropped"], &document["remarks"]), (&serde_json::json!({}), &serde_json::json!({})));
    let text = std::fs::read_to_string(scratch.0.join("out.jsonl")).expect("it was written");
    let (mut last_ns, mut offsets) = (0, std::collections::BTreeMap::<String, Vec<u64>>::new());
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).expect("a record");
        let at_ns = record["at_ns"].as_u64().expect("a time");
        assert!(at_ns >= last_ns, "{at_ns} after {last_ns}");
        last_ns = at_ns;
        if record["op"] == "read" {
            let path = record["path"].as_str().expect("a path").rsplit('/').next().unwrap_or_default();
            offsets.entry(path.into()).or_default().push(record["offset"].as_u64().expect("an offset"));
        }
    }
    let expected: Vec<u64> = (0..30_000).collect();
    assert_eq!(offsets.keys().collect::<Vec<_>>(), ["child", "parent"]);
    assert!(offsets.values().all(|offsets| *offsets == expected));
}

/// Waits until everything is traced that is to be: the tracer then lets all others go first.
fn is_tracing(tracer: &std::process::Child) {
    const SCHED_IDLE: &str = "5";
    let stat = format!("/proc/{0}/task/{0}/stat", tracer.id());
    for _ in 0..6000 {
        let text = std::fs::read_to_string(&stat).expect("it runs");
        // The 41st field; the second one may have spaces.
        if text.rsplit(')').next().and_then(|text| text.split_whitespace().nth(38)) == Some(SCHED_IDLE) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("it traces nothing");
}

#[test]
fn what_runs_already_is_traced() {
    let scratch = Scratch::new("runs");
    if !has_bpf(&scratch) {
        return;
    }
    let program = "import os, threading; f = os.open('d/before', os.O_RDWR | os.O_CREAT); input(); \
        t = threading.Thread(target = lambda: os.pwrite(f, b'12345', 7)); t.start(); t.join(); \
        os.fork() or os._exit(os.close(f) or 0); os.wait(); input()";
    for how in ["-p", "--mount"] {
        let mut python = Command::new("python3");
        python.args(["-I", "-S", "-c", program]).current_dir(&scratch.0).stdin(Stdio::piped());
        let mut python = python.spawn().expect("it runs");
        let mut input = python.stdin.take().expect("a pipe");
        let opened = scratch.0.join("d/before");
        while !opened.exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let process = python.id().to_string();
        let what = if how == "-p" { vec![&*process, "--only", "d"] } else { vec!["d"] };
        let mut tracer = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        tracer.args(["lab", "trace", "--json", "-o", "out.jsonl", how]).args(what).current_dir(&scratch.0);
        let tracer = tracer.stdout(Stdio::piped()).spawn().expect("it runs");
        is_tracing(&tracer);
        std::io::Write::write_all(&mut input, b"\n").expect("it listens");
        // The second line is for the case that the program is waited for.
        std::io::Write::write_all(&mut input, b"\n").expect("it listens");
        assert!(python.wait().expect("it ends").success());
        if how == "--mount" {
            let told = Command::new("kill").args(["-INT", &tracer.id().to_string()]).status();
            assert!(told.expect("there is kill").success());
        }
        let done = tracer.wait_with_output().expect("it ends");
        assert!(done.status.success(), "{how}: {done:?}");
        let records = scratch.records();
        assert_eq!(records, ["write @/before  7+5=5 e0", "close @/before  0+0=0 e0"], "{how}");
        std::fs::remove_file(opened).expect("it is ours");
    }
}

#[test]
fn what_programs_of_a_shell_leave_is_the_same_by_both() {
    let scratch = Scratch::new("both");
    let probe = scratch.trace(&["--method", "bpf", "--", "true"]);
    if probe.status.code() == Some(2) || !has("strace") {
        eprintln!("skipped: it needs root and strace");
        return;
    }
    let line = "cd d; echo one > a; cat a a > b; mv a c; ln b h; ln -s b s; cp b f; (echo x >> f) & wait; rm s";
    let [by_strace, by_kernel] = ["strace", "bpf"].map(|method| {
        let done = scratch.trace(&["--method", method, "--", "sh", "-c", line]);
        assert!(done.status.success(), "{done:?}");
        let records = scratch.records();
        std::fs::remove_dir_all(scratch.0.join("d")).expect("it is ours");
        std::fs::create_dir(scratch.0.join("d")).expect("room");
        records
    });
    assert_eq!(by_strace, by_kernel);
    assert!(by_strace.iter().any(|line| line == "rename @/a @/c 0+0=0 e0"), "{by_strace:#?}");
    assert!(by_strace.iter().any(|line| line == "write @/f  8+2=2 e0"), "{by_strace:#?}");
}

#[test]
fn a_command_that_fails_is_told_and_its_trace_kept() {
    let scratch = Scratch::new("fails");
    if !has("strace") {
        return;
    }
    let done = scratch.trace(&["--method", "strace", "--", "sh", "-c", "echo out; rm d/x; exit 7"]);
    assert_eq!(done.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&done.stdout).expect("one document, without what the command says");
    assert_eq!((&document["exit_code"], &document["by_op"]["unlink"]), (&7.into(), &1.into()));
    let refused = scratch.trace(&[]);
    assert_eq!(refused.status.code(), Some(2), "nothing to trace");
    assert!(!scratch.0.join("out.jsonl.new").exists());
}

#[test]
fn what_is_not_there_is_not_traced() {
    let scratch = Scratch::new("nothing");
    std::fs::write(scratch.0.join("file"), "").expect("space");
    let refused = |arguments: &[&str], why: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.args(["lab", "trace", "-o", "out.jsonl"]).args(arguments).current_dir(&scratch.0);
        let done = command.stdin(Stdio::null()).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(why), "{arguments:?}: {said}");
    };
    refused(&["--mount", "nowhere"], "nowhere");
    refused(&["--mount", "file"], "no directory");
    refused(&["-p", "4000000000"], "no process 4000000000");
}

/// What reaches the server of a mount of ours, of names too that the kernel knew before; and it can be run.
#[test]
fn a_mount_is_traced_by_its_server() {
    if Daemon::is_skipped() {
        return;
    }
    let daemon =
        Daemon::new(Path::new(env!("CARGO_BIN_EXE_ashlar")), Engine::Files, "traced").expect("a temporary directory");
    daemon.up().unwrap_or_else(|error| panic!("{error}"));
    let mount = std::fs::canonicalize(daemon.mount()).expect("it is mounted");
    let at = |name: &str| mount.join(name);
    std::fs::create_dir(at("dir")).expect("made");
    std::fs::write(at("dir/known"), "before").expect("written");
    // What the kernel writes back of it later has a name that it does not look up.
    std::fs::File::open(at("dir/known")).and_then(|file| file.sync_all()).expect("synced");
    let scratch = Scratch::new("fuse");
    let trace = |to: &str| {
        let mut command = daemon.command(&["lab", "trace", "--json", "--method", "fuse", "-o", to, "--mount"]);
        command.arg(&mount).current_dir(&scratch.0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    let tracer = trace("out.jsonl").expect("it runs");
    // It has begun to listen when it makes the file, beside the directory `d`.
    let began = Instant::now();
    while std::fs::read_dir(&scratch.0).expect("it is there").count() < 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody listens");
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = trace("second.jsonl").and_then(Child::wait_with_output).expect("it ends");
    let refused = String::from_utf8_lossy(&second.stdout).into_owned() + &String::from_utf8_lossy(&second.stderr);
    assert!(refused.contains("somebody traces"), "{refused}");
    assert_eq!(std::fs::read_to_string(at("dir/known")).expect("there"), "before");
    std::fs::write(at("dir/new"), "12345").expect("written");
    std::fs::File::open(at("dir/new")).and_then(|file| file.sync_all()).expect("synced");
    std::fs::rename(at("dir/new"), at("moved")).expect("renamed");
    std::fs::remove_file(at("moved")).expect("removed");
    std::fs::metadata(at("none")).expect_err("there is none");
    kill_process(Pid::from_child(&tracer), Signal::INT).expect("it runs");
    let done = tracer.wait_with_output().expect("it ends");
    let report: Value = serde_json::from_slice(&done.stdout).expect("a report");
    assert_eq!(
        (&report["method"], report["dropped"].as_object().map(|map| map.len())),
        (&"fuse".into(), Some(0)),
        "{report}"
    );
    let home = mount.display().to_string();
    let lines = scratch.records().join("\n").replace(&home, "@");
    let mut rest = &lines[..];
    for expected in [
        "stat @/dir/known  0+0=0 e0",
        "open @/dir/known  0+0=0 e0",
        "read @/dir/known  0+4096=6 e0",
        "open @/dir/new  0+0=0 e0",
        "write @/dir/new  0+5=5 e0",
        "fsync @/dir/new  0+0=0 e0",
        "rename @/dir/new @/moved 0+0=0 e0",
        "unlink @/moved  0+0=0 e0",
        "stat @/none  0+0=0 e2",
    ] {
        let found = rest.find(expected).unwrap_or_else(|| panic!("no {expected} in\n{rest}\nof\n{lines}"));
        rest = &rest[found..];
    }
    daemon.down().unwrap_or_else(|error| panic!("{error}"));
}
