//! `ashlar lab trace`, through the front door.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

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

#[test]
fn a_program_is_seen_by_the_kernel() {
    let scratch = Scratch::new("bpf");
    let probe = scratch.trace(&["--method", "bpf", "--", "true"]);
    if probe.status.code() == Some(2) {
        let said = String::from_utf8_lossy(&probe.stdout);
        assert!(said.contains("takes no BPF programs"), "{said}");
        eprintln!("skipped: {said}");
        return;
    }
    if has("python3") {
        checked(&scratch, "bpf");
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
