//! Every command tells the schema of its document, whatever else is missing on its command line.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

/// What prints no document, or one of several.
const WITHOUT: [&str; 6] = ["completions", "man", "device serve", "volume serve", "device control", "prove mark"];

fn ashlar(words: &[String]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ashlar"));
    // Nothing is looked for there.
    command.args(words).current_dir("/").env_remove("ASHLAR_POOL").stdin(Stdio::null());
    command.output().expect("it runs")
}

/// The commands below this one that do something, by what the help says.
fn commands(path: &[String], found: &mut Vec<Vec<String>>) {
    let help = ashlar(&[path, &["--help".into()]].concat());
    let help = String::from_utf8(help.stdout).expect("text");
    let list = help.split_once("\nCommands:\n").map_or("", |(_, behind)| behind.split("\n\n").next().unwrap_or(""));
    let is_name = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let names = list.lines().filter(is_name).filter_map(|line| line.split_whitespace().next());
    let below: Vec<Vec<String>> =
        names.filter(|name| *name != "help").map(|name| [path, &[name.to_string()]].concat()).collect();
    if below.is_empty() {
        found.push(path.to_vec());
    }
    below.iter().for_each(|path| commands(path, found));
}

#[test]
fn every_command_tells_its_schema() {
    let mut all = Vec::new();
    commands(&[], &mut all);
    assert!(all.len() > 60, "{all:?}");
    for path in all {
        let output = ashlar(&[&path[..], &["--json-schema".into()]].concat());
        let schema: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let told = schema.is_some_and(|schema| schema["$schema"].is_string());
        let none = WITHOUT.contains(&path.join(" ").as_str());
        assert_eq!((told, output.status.success()), (!none, !none), "{path:?}: {output:?}");
    }
}
