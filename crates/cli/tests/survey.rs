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
