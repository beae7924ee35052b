//! Presets are complete, and do what they claim; descriptions that cannot be are refused.

use ashlar_models::{ModelFile, SpecError, calibrate, presets};

#[test]
fn every_parameter_of_a_preset_has_a_source() {
    for file in presets() {
        file.build(0).unwrap_or_else(|error| panic!("{}: {error}", file.name));
        let mut names: Vec<String> = file.parameters().into_iter().map(|(name, _)| name).collect();
        assert!(names.len() > 5);
        names.sort();
        let sources: Vec<String> = file.sources.keys().cloned().collect();
        assert_eq!(names, sources, "{}", file.name);
    }
}

#[test]
fn every_preset_reproduces_what_it_claims() {
    for file in presets() {
        for row in calibrate(&file).unwrap() {
            assert!(row.holds(), "{}: {row:?} is off by {:.1} %", file.name, row.error() * 100.0);
        }
    }
}

/// Refused with a name and a law.
fn refused(preset: &str, from: &str, to: &str, name: &str) {
    let file = ModelFile::preset(preset).unwrap();
    let text = toml::to_string(&file).unwrap();
    assert!(text.contains(from), "{from:?} is in\n{text}");
    match ModelFile::parse(&text.replacen(from, to, 1)) {
        Err(SpecError::Impossible { name: found, law, .. }) => {
            assert_eq!(found, name);
            assert!(law.len() > 20, "{law}");
        }
        other => panic!("{to}: {other:?}"),
    }
}

#[test]
fn impossible_disks_are_refused() {
    let disk = "cheetah-15k5";
    refused(disk, "rpm = 15000.0", "rpm = 0.0", "rpm");
    refused(disk, "rpm = 15000.0", "rpm = nan", "rpm");
    refused(disk, "surfaces = 8", "surfaces = 0", "surfaces");
    refused(disk, "capacity = \"300GB\"", "capacity = \"301GB\"", "capacity");
    refused(disk, "capacity = \"300GB\"", "capacity = \"lots\"", "capacity");
    refused(disk, "read_settle_ms = 0.713", "read_settle_ms = 4.0", "seek.read_settle_ms");
    refused(disk, "write_settle_ms = 1.073", "write_settle_ms = 0.5", "seek.write_settle_ms");
    refused("wd-re3", "same_track_ms = 0.0", "same_track_ms = 1.0", "seek.same_track_ms");
    refused(disk, "settle_cylinders = 65", "settle_cylinders = 70000", "seek.settle_cylinders");
    refused(disk, "track_skew_ms = 0.72", "track_skew_ms = 4.5", "track_skew_ms");
    refused(disk, "command_us = 0.0", "command_us = -1.0", "command_us");
    refused(disk, "depth = 32", "depth = 0", "queue.depth");
    refused(disk, "idle_w = 12.8", "idle_w = 20.0", "power.idle_w");
    refused(disk, "spin_up_j = 360.0", "spin_up_j = 1.0", "power.spin_up_j");
}

#[test]
fn unknown_names_are_refused() {
    let text = toml::to_string(&ModelFile::preset("wd-re3").unwrap()).unwrap();
    let error = ModelFile::parse(&text.replace("surfaces = 6", "surfces = 6")).unwrap_err().to_string();
    assert!(error.contains("surfces"), "{error}");
    let error = ModelFile::preset("floppy").unwrap_err().to_string();
    assert!(error.contains("floppy") && error.contains("wd-re3"), "{error}");
}
