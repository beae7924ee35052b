//! `ashlar prove schedule` and `ashlar prove replay`, as scripts see them.

use std::path::{Path, PathBuf};
use std::process::Command;

fn ashlar(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_ashlar")).args(arguments).output().expect("the program runs");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        let path = std::env::temp_dir().join(format!("ashlar-schedule-test-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn replay(path: &Path) -> (Option<i32>, serde_json::Value) {
    let (code, said) = ashlar(&["prove", "replay", "--json", path.to_str().expect("text")]);
    (code, serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")))
}

#[test]
fn what_is_found_replays() {
    let directory = Directory::new();
    let path = directory.0.join("t.json");
    let trace = path.to_str().expect("text");
    let bug = ["--bug", "same-node-twice", "--seed", "1", "--iterations", "5000", "--json", "-o", trace];
    let (code, said) = ashlar(&[&["prove", "schedule", "replication"], &bug[..]].concat());
    assert_eq!(code, Some(1), "seed 1: {said}");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let message = &report["violation"]["message"];
    assert!(message.as_str().is_some_and(|message| message.contains("nodes hold its data")), "{said}");
    assert_eq!(report["replay"], format!("ashlar prove replay {trace}"));

    let (code, again) = replay(&path);
    assert_eq!((code, &again["message"]), (Some(1), message));

    // The same choices on a system without the bug are another run.
    let text = std::fs::read_to_string(&path).expect("the trace");
    std::fs::write(&path, text.replace("\"bug\": \"same-node-twice\"", "\"bug\": null")).expect("written");
    let (code, other) = replay(&path);
    assert_eq!((code, other["message"].is_null(), other["diverged"].is_string()), (Some(2), true, true), "{other}");
}

#[test]
fn what_holds_and_what_cannot_be_tried_have_codes_of_their_own() {
    for (arguments, expected) in [
        (&["replication", "--iterations", "200", "--scheduler", "random"][..], 0),
        (&["lost-update", "--scheduler", "exhaustive"], 0),
        (&["lost-update", "--bug", "no-look"], 2),
        (&["nothing"], 2),
        (&["replication", "--scheduler", "best"], 2),
        (&[], 2),
        (&["--list"], 0),
    ] {
        let (code, said) = ashlar(&[&["prove", "schedule"], arguments].concat());
        assert_eq!(code, Some(expected), "{arguments:?}: {said}");
    }
    assert_eq!(ashlar(&["prove", "replay", "/nowhere"]).0, Some(2));
    for schema in [&["schedule", "pool"][..], &["schedule", "--list"], &["replay", "/nowhere"]] {
        let (code, said) = ashlar(&[&["prove"], schema, &["--json-schema"]].concat());
        assert_eq!(code, Some(0), "{schema:?}: {said}");
        assert!(serde_json::from_str::<serde_json::Value>(&said).is_ok_and(|schema| schema.is_object()), "{said}");
    }
}
