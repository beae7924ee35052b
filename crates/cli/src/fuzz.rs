//! Fuzz targets of what people and programs hand to the command: descriptions of pools, requests, arguments. See
//! `ashlar_fuzz`.

use crate::arguments::DeviceArgument;
use crate::config::{PoolConfig, compression, parse};
use crate::device::{ControlRequest, control_command};
use crate::framing::{self, Line};
use crate::request::{Answer, How, Request};
use crate::volume::arguments::ArrayArgument;
use ashlar_fuzz::{bounded, config, damaged, hostile, noise};
use ashlar_layers::Stack;
use ashlar_vfs::Engine;
use proptest::prelude::*;
use std::path::PathBuf;

fn request() -> impl Strategy<Value = Request> {
    let name = || ".{0,20}";
    prop_oneof![
        Just(Request::Status),
        name().prop_map(|name| Request::FsStatus { name }),
        any::<bool>().prop_map(|repair| Request::Check { repair }),
        (name(), any::<bool>()).prop_map(|(name, betr)| {
            let engine = if betr { Engine::Betr } else { Engine::Files };
            Request::FsCreate { name, engine, inline: Some(16 << 10) }
        }),
        Just(Request::FsList),
        (name(), name()).prop_map(|(from, to)| Request::FsRename { from, to }),
        name().prop_map(|name| Request::FsDestroy { name }),
        name().prop_map(|name| Request::SnapshotCreate { name }),
        Just(Request::SnapshotList),
        Just(Request::PoolTrim),
        name().prop_map(|name| Request::SnapshotDestroy { name }),
        (name(), name()).prop_map(|(name, to)| Request::SnapshotClone { name, to }),
        (name(), name()).prop_map(|(name, at)| Request::Mount {
            name,
            at: PathBuf::from(at),
            how: How { write_through: true, ..How::default() }
        }),
        Just(Request::Down),
    ]
}

fn json(request: &Request) -> Vec<u8> {
    serde_json::to_vec(request).expect("a request can be written")
}

const ANSWERS: [&str; 4] = [
    r#"{"Progress":[3,7]}"#,
    r#"{"Answer":{"Status":{"pid":1,"pool":"/p","mount":"/m","fs":"main","capacity":9,"used":5,"free":4,"memory":1,
        "memory_limit":2,"generation":3,"moved":0,"requests":7,"bytes_read":8,"bytes_written":9,
        "operations":[{"name":"lookup","count":1,"median_ns":2,"p99_ns":3}]}}}"#,
    r#"{"Answer":{"Check":{"nodes":1,"extents":2,"bytes":3,"damaged":[{"volume":"v","file":null,"offset":1,"len":2,
        "error":"e"}],"inconsistent":["s"]}}}"#,
    r#"{"Failure":"no"}"#,
];

const CONTROL: [&str; 5] =
    ["fault lse at 1MiB..2MiB times 3", "fault power-cut window 1MiB whole", "clear 7", "power-cut", "faults"];

const DESCRIPTIONS: [&str; 2] = [
    "compression = \"lz4\"\nmedium = \"flash\"\ndevices = [\"a\"]\n[layer.a.file]\npath = \"a.img\"\nbuffered = true\n",
    "compression = \"zstd:3\"\ndevices = [\"c\"]\n[layer.c.checked]\nof = \"j\"\n[layer.j.joined]\nof = [\"m\"]\n\
     [layer.m.memory]\nsize = \"1GiB\"\n",
];

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn control_requests(request in request(), hostile in hostile(request().prop_map(|request| json(&request))), depth in 0..30_000usize) {
        prop_assert_eq!(framing::read::<Request>(&json(&request)[..]).expect("valid"), request);
        let deep = "[{\"a\":".repeat(depth);
        for bytes in [&hostile[..], deep.as_bytes()] {
            let _ = bounded(1 << 20, || framing::read::<Request>(bytes));
        }
        // A client that never ends its line is cut off.
        prop_assert!(bounded(1 << 20, || framing::read::<Request>(std::io::repeat(b' '))).is_err());
    }

    #[test]
    fn device_commands(command in prop::sample::select(&CONTROL[..]), words in "(fault|clear|stats|log)( [a-z0-9.+-]{1,8}){0,5}", hostile in hostile(prop::sample::select(&CONTROL[..]).prop_map(|text| text.as_bytes().to_vec()))) {
        let request = control_command(command).expect("valid");
        let line = serde_json::to_vec(&request).expect("it can be written");
        prop_assert_eq!(framing::read::<ControlRequest>(&line[..]).expect("valid"), request);
        for text in [&words[..], &String::from_utf8_lossy(&hostile)] {
            let _ = bounded(1 << 16, || control_command(text).is_ok());
            let json = format!("{{\"Fault\":{{\"fault\":{text:?}}}}}");
            let _ = bounded(1 << 18, || framing::read::<ControlRequest>(json.as_bytes()).is_ok());
        }
    }

    #[test]
    fn daemon_answers(hostile in hostile(prop::sample::select(&ANSWERS[..]).prop_map(|line| line.as_bytes().to_vec()))) {
        let text = String::from_utf8_lossy(&hostile);
        bounded(1 << 20, || match serde_json::from_str::<Line<Answer>>(&text) {
            Ok(Line::Answer(Answer::Status(status))) => assert!(!status.to_string().is_empty()),
            Ok(Line::Answer(Answer::Check(report))) => assert!(!report.to_string().is_empty()),
            _ => {}
        });
    }

    #[test]
    fn pool_descriptions(hostile in damaged(prop::sample::select(&DESCRIPTIONS[..]).prop_map(|text| text.as_bytes().to_vec())), level in any::<i32>()) {
        for text in DESCRIPTIONS {
            let description = parse(text).expect("valid");
            let stack = Stack { devices: description.devices.clone(), layer: description.layer.clone() };
            prop_assert_eq!(PoolConfig::new(&description.compression, description.medium, stack), description);
        }
        let text = String::from_utf8_lossy(&hostile);
        if let Ok(description) = bounded(1 << 20, || parse(&text)) {
            let written = toml::to_string_pretty(&description).expect("what was read can be written");
            prop_assert_eq!(parse(&written).expect("and read again"), description.clone());
            let _ = compression(&description.compression);
        }
        prop_assert_eq!(compression(&format!("zstd:{level}")).is_ok(), (1..=22).contains(&level));
    }

    #[test]
    fn device_arguments(text in "[a-z/,=0-9.GiBTs]{0,60}|raid[0-9]\\([0-9]{1,22}\\+[0-9]{1,22}\\)?", hostile in hostile(noise(20))) {
        for text in [&text[..], &String::from_utf8_lossy(&hostile)] {
            let _ = bounded(1 << 14, || text.parse::<DeviceArgument>().is_ok());
            let _ = bounded(1 << 14, || text.parse::<ArrayArgument>().is_ok());
        }
    }
}
