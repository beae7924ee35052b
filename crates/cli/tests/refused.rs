//! Command lines that are refused, and what is said then.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn ashlar(arguments: &[&str], stdout: Stdio) -> Output {
    let program = env!("CARGO_BIN_EXE_ashlar");
    Command::new(program).args(arguments).stdin(Stdio::null()).stdout(stdout).output().expect("it runs")
}

fn refused(arguments: &[&str], code: i32, said: &str) {
    let output = ashlar(arguments, Stdio::piped());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(code) && error.contains(said), "{arguments:?}: {output:?}");
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ashlar-refused-{name}-{}", std::process::id()))
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let directory = scratch("pool");
    let pool = directory.to_str().expect("text");
    let device = format!("{pool}.img,size=64MiB");
    for compression in ["gzip", "zstd:99"] {
        let create = ["pool", "create", pool, "--device", &device, "--compression", compression];
        refused(&create, 2, "write off, lz4 or zstd:LEVEL");
    }
    refused(&["pool", "create", pool, "--device", ""], 2, "write PATH or PATH,size=SIZE");
    refused(&["--pool", pool, "up", "--memory", "10"], 2, "at least 64 MiB");
    refused(&["--pool", pool, "up", "--memory", "1000TiB"], 2, "than this machine has");
    assert!(!directory.exists(), "nothing is made");
}

#[test]
fn a_pool_is_a_directory() {
    let file = scratch("file");
    File::create(&file).expect("made");
    refused(&["--pool", file.to_str().expect("text"), "up"], 1, "is a file, and a pool is a directory");
    std::fs::remove_file(file).expect("it is there");
}

#[test]
fn help_that_nobody_got_is_no_success() {
    for arguments in [&["help"][..], &["--help"], &["up", "--help"], &["help", "pool", "create"], &["--version"]] {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        let output = ashlar(arguments, full.into());
        assert!(output.status.code() == Some(2) && !output.stderr.is_empty(), "{arguments:?}: {output:?}");
        assert!(ashlar(arguments, Stdio::piped()).status.success(), "{arguments:?}");
    }
}

/// A log may lie on a disk that is full, or be a pipe that nobody reads.
#[test]
fn who_cannot_say_what_is_wrong_ends_as_always() {
    let full = File::options().write(true).open("/dev/full").expect("it is there");
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    for nobody in [Stdio::from(full), Stdio::from(closed)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.args(["--pool", "/nonexistent/ashlar", "fs", "list"]).stdin(Stdio::null()).stderr(nobody);
        let status = command.status().expect("it runs");
        assert_eq!(status.code(), Some(1), "{status}");
    }
}
