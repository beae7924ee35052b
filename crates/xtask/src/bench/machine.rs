//! Facts that a table of figures needs beside it.

use crate::bench::said;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Where and when something was measured.
pub fn facts(disk: Option<&Path>) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| -> String {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_string())
    };
    let one_line = |command: &mut Command| said(command).map_or(String::new(), |text| text.trim().to_string());
    let changed = one_line(Command::new("git").args(["status", "--porcelain", "--untracked-files=no"]));
    let commit = one_line(Command::new("git").args(["rev-parse", "--short", "HEAD"]));
    let disk = disk.map(|disk| {
        let mut find = Command::new("findmnt");
        one_line(find.args(["--noheadings", "--output", "SOURCE,FSTYPE", "--target"]).arg(disk))
    });
    json!({
        "date": one_line(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])),
        "commit": if changed.is_empty() { commit } else { format!("{commit} with changes") },
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "processor": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "disk": disk.map(|disk| disk.split_whitespace().collect::<Vec<_>>().join(", ")),
        "load": read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
    })
}

/// The facts on two lines.
pub fn heading(facts: &Value) -> String {
    let text = |name: &str| facts[name].as_str().unwrap_or("unknown").to_string();
    let disk = facts["disk"].as_str().map_or(String::new(), |disk| format!("; disk: {disk}"));
    let emulated = facts["emulated"].as_str().map_or(String::new(), |model| {
        format!(
            "\nthe disk is emulated: {model}, in real time; its times are the model's, those of processors are measured"
        )
    });
    let aged = facts["aged"].as_str().map_or(String::new(), |history| format!("\nfile systems are aged: {history}"));
    format!(
        "measured {}, commit {}; load before it: {}\n{} cores, {}, {}, Linux {}{disk}{emulated}{aged}",
        text("date"),
        text("commit"),
        text("load"),
        facts["cores"],
        text("processor"),
        text("memory"),
        text("kernel"),
    )
}
