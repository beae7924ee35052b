//! `ashlar plan estimate` and `ashlar ledger`, through the front door.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A directory of a test's own with a ledger, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-plan-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("made");
        Scratch(path)
    }

    fn ashlar(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        command.args(arguments).env("ASHLAR_LEDGER", self.0.join("ledger.jsonl")).stdin(Stdio::null());
        command.output().expect("it runs")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.ashlar(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("one document")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SIZES: &str = "300 1000\n5000 300\n200000 10\n";

/// Every estimator, with inputs that take moments.
fn estimators(scratch: &Scratch) -> Vec<(&'static str, Vec<String>)> {
    let sizes = scratch.0.join("sizes");
    std::fs::write(&sizes, SIZES).expect("written");
    let accesses = scratch.0.join("accesses");
    std::fs::write(&accesses, "a\nb\nc\na\nb\nd\n").expect("written");
    let split = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
    vec![
        ("lsm", split("--keys 1e7 --item 1000 --distribution zipf:0.99")),
        ("endurance", split("--capacity 64GB --cycles 3000 --written-per-day 20GB")),
        ("fleet", split("--model MLC-B --drives 200 --simulated 2000")),
        ("loss", split("--layout raid6:8 --layout single+cdp:11 --error 20")),
        ("scrub", split("--disks 200")),
        ("environment", split("--temperature 25 --humidity 50")),
        ("layout", split("--drive wd-re3 --data 1GiB --updates-per-scan 10000")),
        (
            "packing",
            vec![sizes.display().to_string(), format!("--accesses={}", accesses.display()), "--support=0.1".into()],
        ),
    ]
}

#[test]
fn every_estimator_answers_records_explains_and_draws() {
    let scratch = Scratch::new("all");
    for (name, arguments) in estimators(&scratch) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let figure = scratch.0.join(format!("{name}.svg"));
        let figure = figure.to_str().expect("a path");
        let all = [&["plan", "estimate", name], &arguments[..], &["--explain", "--figure", figure]].concat();
        let answer = scratch.json(&all);
        assert_eq!((&answer["estimator"], &answer["kind"]), (&Value::from(name), &Value::from("modelled")));
        for list in ["predictions", "assumptions", "sensitivity", "explanation", "ledger"] {
            assert!(answer[list].as_array().is_some_and(|list| !list.is_empty()), "{name}: {list}");
        }
        assert!(answer["inputs"].as_object().is_some_and(|inputs| inputs.len() > 2), "{name}");
        assert!(answer["dominant_assumption"].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        let id = answer["ledger"][0]["id"].as_str().expect("an id");
        let record = scratch.json(&["ledger", "show", id]);
        assert_eq!((&record["subject"], &record["value"]), (&answer["subject"], &answer["predictions"][0]["value"]));
        assert!(std::fs::read_to_string(figure).expect("drawn").starts_with("<svg"), "{name}");
        // For people: everything is said, and the same inputs give the same numbers.
        let text = scratch.ashlar(&all).stdout;
        let text = String::from_utf8(text).expect("text");
        for word in ["dominant assumption: ", "assumed:", "how:", "source: ", "inputs: ", "ledger: "] {
            assert!(text.contains(word), "{name}: {word}");
        }
        let again = scratch.json(&all);
        assert_eq!(again["predictions"], answer["predictions"], "{name}");
        let schema = scratch.json(&[&["plan", "estimate", name], &arguments[..], &["--json-schema"]].concat());
        assert!(schema["properties"]["predictions"].is_object(), "{name}");
        let explained = scratch.json(&["explain", name]);
        assert!(explained["text"].as_str().is_some_and(|text| text.contains("FAST")), "{name}");
    }
}

/// What a schema says is always there is there, with `--explain` and without.
#[test]
fn documents_have_all_that_their_schemas_require() {
    let scratch = Scratch::new("required");
    let data = scratch.0.join("data");
    std::fs::write(&data, SIZES.repeat(1000)).expect("written");
    let data = data.display().to_string();
    let survey = ["dedup", "chunking"].map(|name| (name, vec![data.clone()]));
    for (name, arguments) in estimators(&scratch).into_iter().chain(survey) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let all = [&["plan", "estimate", name], &arguments[..]].concat();
        let schema = scratch.json(&[&all[..], &["--json-schema"]].concat());
        let required = schema["required"].as_array().expect("a list");
        for more in [&[][..], &["--explain"]] {
            let answer = scratch.json(&[&all[..], more].concat());
            let missing: Vec<&Value> =
                required.iter().filter(|field| answer.get(field.as_str().expect("a name")).is_none()).collect();
            assert!(missing.is_empty(), "{name} {more:?}: {missing:?}");
            assert_eq!(answer.get("explanation").is_some(), !more.is_empty(), "{name}");
        }
    }
}

#[test]
fn what_reads_data_is_explained_too() {
    let scratch = Scratch::new("explained");
    for (name, formula) in [("dedup", "C(j,i) p^i (1-p)^(j-i) x_j"), ("chunking", "breaking-apart")] {
        let explained = scratch.json(&["explain", name]);
        let text = explained["text"].as_str().expect("a text");
        assert!(text.contains("FAST") && text.contains(formula), "{text}");
    }
}

#[test]
fn lsm_has_the_document_that_scripts_read() {
    let scratch = Scratch::new("lsm");
    let arguments = [
        "plan",
        "estimate",
        "lsm",
        "--design",
        "leveldb",
        "--keys",
        "100000000",
        "--item",
        "1000",
        "--distribution",
        "uniform",
    ];
    let answer = scratch.json(&arguments);
    let near =
        |value: &Value, expected: f64| assert!((value.as_f64().expect("a number") - expected).abs() < 0.01, "{value}");
    near(&answer["write_amplification"]["total"], 25.83);
    near(&answer["write_amplification"]["levels"][3]["write_amplification"], 4.776);
    near(&answer["optimized"]["write_amplification"]["total"], 23.671);
    assert_eq!(answer["optimized"]["sizes"].as_array().map(Vec::len), Some(4));
}

#[test]
fn lsm_takes_its_popularity_from_a_trace() {
    let scratch = Scratch::new("traced");
    let file = scratch.0.join("trace.jsonl");
    // Block 0 is written as often as all 1000 others together; what is read does not count.
    let write = |block: u64| format!("{{\"at_ns\":1,\"op\":\"write\",\"offset\":{},\"len\":4096}}\n", block * 4096);
    let read = "{\"at_ns\":1,\"op\":\"read\",\"offset\":409600000,\"len\":4096}\n".to_string();
    let lines: Vec<String> = (1..=1000).flat_map(|block| [write(block), write(0), read.clone()]).collect();
    std::fs::write(&file, lines.concat()).expect("written");
    let trace = format!("trace:{}", file.display());
    let arguments = ["plan", "estimate", "lsm", "--distribution", &trace, "--memtable", "200KiB", "--level1", "1MiB"];
    let answer = scratch.json(&[&arguments[..], &["--explain"]].concat());
    let inputs = &answer["inputs"];
    assert_eq!((&inputs["keys"], &inputs["item"]), (&Value::from(1001.0), &Value::from(4096.0)));
    assert_eq!((&inputs["trace_requests"], &inputs["trace_keys"]), (&Value::from(2000), &Value::from(1001)));
    assert_eq!(inputs["distribution"], Value::from(trace.clone()));
    let total = |answer: &Value| answer["write_amplification"]["total"].as_f64().expect("a number");
    let explained = answer["explanation"].to_string();
    // 50 writes hold 25 of the others and block 0.
    assert!(explained.contains("26 and ") && explained.contains("of 50"), "{explained}");
    let uniform = scratch.json(&[
        "plan",
        "estimate",
        "lsm",
        "--keys",
        "1001",
        "--item",
        "4096",
        "--memtable",
        "200KiB",
        "--level1",
        "1MiB",
    ]);
    assert!(total(&answer) < 0.8 * total(&uniform), "{} {}", total(&answer), total(&uniform));
    let more = scratch.json(&[&arguments[..], &["--keys", "1e6"]].concat());
    assert!(total(&more) > total(&answer));
}

#[test]
fn packing_says_which_files_are_used_together() {
    let scratch = Scratch::new("together");
    let arguments = estimators(&scratch).into_iter().find(|(name, _)| *name == "packing").expect("packing").1;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = scratch.json(&[&["plan", "estimate", "packing"], &arguments[..]].concat());
    assert_eq!(answer["grouping"]["largest"][0]["files"], serde_json::json!(["a", "b"]));
    let alone = scratch.json(&["plan", "estimate", "packing", arguments[0]]);
    assert!(alone.get("grouping").is_none());
}

#[test]
fn what_was_measured_is_scored() {
    let scratch = Scratch::new("scored");
    let answer = scratch.json(&["plan", "estimate", "lsm", "--keys", "1e6"]);
    let id = answer["ledger"][0]["id"].as_str().expect("an id").to_string();
    assert_eq!(scratch.json(&["ledger", "score"])["scored"], Value::Array(Vec::new()));
    scratch.json(&["ledger", "measure", &id, "--value", "13.1", "--how", "a test"]);
    let score = scratch.json(&["ledger", "score"]);
    assert_eq!(
        (&score["scored"][0]["prediction"], &score["scored"][0]["inside"]),
        (&Value::from(id), &Value::from(true))
    );
    assert_eq!(score["models"][0]["model"], "lsm");
    assert_eq!(scratch.json(&["ledger", "--limit", "2"])["records"].as_array().map(Vec::len), Some(2));
}

#[test]
fn nonsense_ends_with_2_and_says_what_would_do() {
    let scratch = Scratch::new("nonsense");
    let missing = scratch.0.join("missing");
    let bad = scratch.0.join("bad");
    std::fs::write(&bad, "10 2\nx\n").expect("written");
    let first = scratch.0.join("first");
    std::fs::write(&first, "-5 1\n4096 10\n").expect("written");
    let (missing, bad) = (missing.to_str().expect("a path"), bad.to_str().expect("a path"));
    let first = first.to_str().expect("a path");
    let traces = [missing, bad].map(|file| format!("trace:{file}"));
    for (arguments, expected) in [
        (vec!["lsm", "--keys", "1"], "it must be from 2"),
        (vec!["lsm", "--keys", "nan"], "it must be from 2"),
        (vec!["lsm", "--keys", "1e7", "--distribution", "zipf:x"], "write uniform"),
        (vec!["lsm"], "--keys"),
        (vec!["lsm", "--distribution", "trace:"], "trace:FILE"),
        (vec!["lsm", "--distribution", &traces[0]], "No such file"),
        (vec!["lsm", "--distribution", &traces[1]], "line 1"),
        (vec!["fleet", "--model", "QLC"], "MLC-A"),
        (vec!["fleet", "--model", "MLC-A", "--years", "90"], "it must be from"),
        (vec!["lsm", "--keys", "1e7", "--design", "cola", "--simulate"], "leveldb"),
        (vec!["loss", "--layout", "raid7:3"], "raid6:12"),
        (vec!["endurance", "--capacity", "1GB", "--written-per-day", "1GB", "--chip", "x"], "mlc-32gb-50nm"),
        (vec!["loss", "--layout", "raid6:8", "--error", "0.01"], "percent, is 0.01; it must be from 0.1 to 100"),
        (vec!["loss", "--layout", "raid6:8", "--afr", "300"], "percent, is 300; it must be from 1e-4 to 200"),
        (vec!["loss", "--layout", "raid6:8", "--scrub-days=-1"], "takes -1 days"),
        (vec!["loss", "--layout", "raid6:8", "--years", "1e300"], "is 1e300; it"),
        (vec!["environment", "--temperature", "20", "--humidity", "30", "--mechanical-afr", "120"], "is 120; it"),
        (vec!["scrub", "--months", "1200"], "is 1200; it must be from 0.03333 to 244"),
        (vec!["scrub", "--rate", "40GB"], "it must be from"),
        (vec!["environment", "--history", bad], "row 2"),
        (vec!["packing", missing], "No such file"),
        (vec!["packing", bad], "row 2"),
        (vec!["packing", first], "row 1"),
    ] {
        let output = scratch.ashlar(&[&["plan", "estimate"], &arguments[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn an_answer_does_not_need_a_ledger() {
    let scratch = Scratch::new("none");
    std::fs::create_dir(scratch.0.join("ledger.jsonl")).expect("in the way");
    let answer = scratch.json(&["plan", "estimate", "environment", "--temperature", "25", "--humidity", "50"]);
    assert_eq!(answer["ledger"][0]["id"], Value::Null);
    let output = scratch.ashlar(&["plan", "estimate", "environment", "--temperature", "25", "--humidity", "50"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("ASHLAR_LEDGER"));
    assert_eq!(scratch.ashlar(&["ledger"]).status.code(), Some(2));
}

#[test]
fn an_answer_that_nobody_got_is_no_success() {
    let scratch = Scratch::new("full");
    for arguments in [["layers", "--json"].as_slice(), &["completions", "bash"], &["man"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is on every Linux");
        let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
        let output = command.args(arguments).current_dir(&scratch.0).stdout(full).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("No space left on device"), "{said}");
    }
}
