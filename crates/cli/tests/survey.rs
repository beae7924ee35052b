//! `ashlar survey`, through the front door: what was not read shows in the exit code.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A directory of a test's own, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-survey-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("made");
        Scratch(path)
    }

    /// Surveys a file of these bytes: the exit code and the document.
    fn survey(&self, name: &str, bytes: &[u8]) -> (Option<i32>, Value) {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).expect("written");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.arg("survey").arg(&path).args(["--full", "--json", "--no-ledger"]).stdin(Stdio::null());
        let output = command.output().expect("it runs");
        let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code(), document)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn impossible_records_of_a_trace_are_counted_and_left_out() {
    let scratch = Scratch::new("trace");
    let line = |at_ns: &str| format!("{{\"at_ns\":{at_ns},\"op\":\"read\",\"offset\":0,\"len\":4096}}\n");
    let good: String = (0..10).map(|second| line(&(second * 1_000_000_000u64).to_string())).collect();
    let (code, document) = scratch.survey("good.jsonl", good.as_bytes());
    assert_eq!((code, &document["trace"]["impossible"]), (Some(0), &Value::from(0)));
    for number in ["-5", "18446744073709551615", "18446744073709551616"] {
        let (code, document) = scratch.survey("bad.jsonl", (good.clone() + &line(number)).as_bytes());
        let trace = &document["trace"];
        assert_eq!((code, &trace["requests"], &trace["impossible"]), (Some(1), &10.into(), &1.into()), "{number}");
        assert_eq!(trace["seconds"], 9.0, "{number}");
    }
}

/// An image of 1 MiB with clusters of 4 KiB, of which the file ends within the first table: nothing of the guest is known.
#[test]
fn an_image_without_its_tables_was_not_read() {
    let scratch = Scratch::new("qcow2");
    let mut image = vec![0u8; 4096 + 100];
    let fields: [(usize, &[u8]); 7] = [
        (0, b"QFI\xfb"),
        (4, &3u32.to_be_bytes()),
        (20, &12u32.to_be_bytes()),
        (24, &(1u64 << 20).to_be_bytes()),
        (36, &1u32.to_be_bytes()),
        (40, &4096u64.to_be_bytes()),
        (4096, &(8192u64 | 1 << 63).to_be_bytes()),
    ];
    fields.into_iter().for_each(|(at, bytes)| image[at..at + bytes.len()].copy_from_slice(bytes));
    let (code, document) = scratch.survey("image.qcow2", &image);
    assert_eq!((code, &document["missing_bytes"]), (Some(1), &Value::from(1 << 20)));
    assert_eq!((&document["read_fraction"], &document["unreadable"]["count"]), (&Value::from(0.0), &Value::from(1)));
}
