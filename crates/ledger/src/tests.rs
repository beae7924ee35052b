//! A ledger under many writers, after crashes, and with what others put into it.

use super::*;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;

/// A file of a test's own, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("ashlar-ledger-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }
    fn ledger(&self) -> Ledger {
        Ledger::open(self.0.join("state/ledger.jsonl"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn prediction(subject: &str, value: f64) -> Prediction {
    Prediction {
        subject: subject.into(),
        quantity: "ratio".into(),
        unit: "ratio".into(),
        value: Some(value),
        low: value - 0.1,
        high: value + 0.1,
        confidence: 0.95,
        model: "guess".into(),
        model_version: 1,
        kind: Kind::Sampled,
        inputs: Inputs::from([("seed".into(), 7.into())]),
        fingerprint: String::new(),
    }
}

fn measurement(subject: &str, value: f64) -> Measurement {
    let (quantity, unit, how) = ("ratio".into(), "ratio".into(), "full scan".into());
    Measurement { subject: subject.into(), quantity, unit, value, how, kind: None }
}

fn all(ledger: &Ledger) -> (Vec<Entry>, Read) {
    let mut entries = Vec::new();
    let read = ledger.read(|entry| {
        entries.push(entry);
        Ok(())
    });
    (entries, read.expect("readable"))
}

fn append(ledger: &Ledger, bytes: &[u8]) {
    OpenOptions::new().append(true).open(ledger.path()).and_then(|mut file| file.write_all(bytes)).expect("appended");
}

#[test]
fn what_is_written_is_read_and_scored() {
    let scratch = Scratch::new("scored");
    let ledger = scratch.ledger();
    assert_eq!(all(&ledger).1, Read::default());
    let id = ledger.predict(prediction("/a", 0.5)).expect("written");
    ledger.predict(prediction("/a", 0.9)).expect("written");
    ledger.predict(prediction("/b", 0.9)).expect("written");
    ledger.measure(measurement("/a", 0.55)).expect("written");
    ledger.measure(measurement("/a", 0.7)).expect("nobody waits for it any more");
    assert_eq!(ledger.find(&id[..6]).expect("found").id, id);
    assert!(ledger.find("zz").is_err());
    let score = score(&ledger).expect("scored");
    assert_eq!(score.scored.iter().map(|one| one.inside).collect::<Vec<_>>(), [true, false]);
    assert!((score.scored[0].relative_error.expect("a value") + 0.0909).abs() < 1e-4);
    let model = &score.models[0];
    assert_eq!((model.predictions, model.measured, model.inside, score.unjoined), (3, 2, 1, 1));
    assert!((model.inside_claimed - 1.9).abs() < 1e-9);
}

#[test]
fn a_measurement_joins_only_what_was_predicted_before_it_in_its_unit() {
    let scratch = Scratch::new("joined");
    let ledger = scratch.ledger();
    ledger.measure(measurement("/a", 0.5)).expect("written");
    ledger.predict(prediction("/a", 0.5)).expect("written");
    ledger.measure(Measurement { unit: "percent".into(), ..measurement("/a", 50.0) }).expect("written");
    let score = score(&ledger).expect("scored");
    assert_eq!((score.scored.len(), score.unjoined), (0, 2));
    assert!(score.models[0].inside_claimed.is_sign_positive());
}

#[test]
fn what_was_emulated_is_not_called_measured() {
    let scratch = Scratch::new("emulated");
    let ledger = scratch.ledger();
    for (subject, kind, how) in
        [("/a", Some(Kind::Emulated), "simulation"), ("/b", None, "emulated: of before"), ("/c", None, "full scan")]
    {
        ledger.predict(prediction(subject, 0.5)).expect("written");
        ledger.measure(Measurement { kind, how: how.into(), ..measurement(subject, 0.5) }).expect("written");
    }
    let score = score(&ledger).expect("scored");
    let kinds: Vec<Kind> = score.scored.iter().map(|one| one.measured_kind).collect();
    assert_eq!(kinds, [Kind::Emulated, Kind::Emulated, Kind::Measured]);
    assert_eq!((score.models[0].measured, score.models[0].emulated, score.models[0].inside), (1, 2, 3));
    let modelled = Measurement { kind: Some(Kind::Modelled), ..measurement("/a", 0.5) };
    assert!(ledger.measure(modelled).is_err(), "a model measures nothing");
}

#[test]
fn many_writers_lose_nothing() {
    let scratch = Scratch::new("writers");
    let ledger = scratch.ledger();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let ledger = &ledger;
            scope.spawn(move || {
                for number in 0..25 {
                    ledger.predict(prediction(&format!("/{writer}/{number}"), 0.5)).expect("written");
                }
            });
        }
    });
    let (entries, read) = all(&ledger);
    assert_eq!((read.records, read.torn_count), (100, 0));
    assert_eq!(entries.iter().map(|entry| &entry.id).collect::<BTreeSet<_>>().len(), 100);
    assert_eq!(entries.iter().map(|entry| entry.record.about().0).collect::<BTreeSet<_>>().len(), 100);
}

#[test]
fn a_torn_line_is_passed_over_wherever_it_was_cut() {
    let scratch = Scratch::new("torn");
    let ledger = scratch.ledger();
    ledger.predict(prediction("/first", 0.5)).expect("written");
    let line = std::fs::read(ledger.path()).expect("there");
    for cut in [1, 17, line.len() / 2, line.len() - 1] {
        std::fs::write(ledger.path(), &line).expect("written");
        append(&ledger, &line[..cut]);
        assert_eq!(all(&ledger).1, Read { records: 1, torn: vec![Torn { line: 2 }], torn_count: 1 });
        ledger.predict(prediction("/second", 0.5)).expect("written");
        let (entries, read) = all(&ledger);
        assert_eq!((entries[1].record.about().0, read.torn), ("/second", vec![Torn { line: 2 }]));
        assert!(std::fs::read(ledger.path()).expect("there").starts_with(&[&line[..], &line[..cut]].concat()));
    }
}

#[test]
fn what_is_no_record_is_named_by_its_line() {
    let scratch = Scratch::new("hostile");
    let ledger = scratch.ledger();
    ledger.predict(prediction("/first", 0.5)).expect("written");
    let line = std::fs::read_to_string(ledger.path()).expect("there");
    let long = format!("{}\n", "x".repeat(LINE_LEN_MAX));
    let nested = line.replace("\"seed\":7", &format!("\"seed\":{}", "[".repeat(60_000)));
    for (bad, expected) in [
        ("\n", "EOF"),
        ("{}\n", "missing field"),
        (long.as_str(), "longer than"),
        (&nested, "recursion limit"),
        (&line.replace("\"format\":1", "\"format\":2"), "newer version"),
        (&line.replace("\"low\":0.4", "\"low\":0.6"), "does not hold"),
        (&line.replace("\"low\":0.4", "\"low\":1e999"), "out of range"),
        (&line.replace("0.95", "1.5"), "confidence"),
        (&line.replace("/first", ""), "subject is empty"),
    ] {
        std::fs::write(ledger.path(), format!("{line}{bad}{line}")).expect("written");
        let error = ledger.read(|_| Ok(())).expect_err(expected).to_string();
        assert!(error.contains("line 2") && error.contains(expected) && error.contains("remove that line"), "{error}");
    }
}

#[test]
fn what_cannot_be_kept_is_refused_before_it_is_written() {
    let scratch = Scratch::new("refused");
    let ledger = scratch.ledger();
    let nan = Prediction { value: Some(f64::NAN), ..prediction("/a", 0.5) };
    let backwards = Prediction { low: 1.0, high: 0.0, value: None, ..prediction("/a", 0.5) };
    let long = prediction(&"x".repeat(LINE_LEN_MAX), 0.5);
    for bad in [nan, backwards, long] {
        ledger.predict(bad).expect_err("refused");
    }
    assert!(!ledger.path().exists());
    let directory = Ledger::open(&scratch.0);
    std::fs::create_dir_all(directory.path()).expect("made");
    assert!(directory.predict(prediction("/a", 0.5)).expect_err("a directory").to_string().contains("ASHLAR_LEDGER"));
    assert!(directory.read(|_| Ok(())).expect_err("a directory").to_string().contains("no regular file"));
}

#[test]
fn fingerprints_follow_the_inputs_and_not_their_order() {
    let of = |text: &str| fingerprint(&serde_json::from_str(text).expect("inputs"));
    assert_eq!(of(r#"{"a": {"x": 1, "y": 2}, "b": 3}"#), of(r#"{"b": 3, "a": {"y": 2, "x": 1}}"#));
    let different =
        [r#"{"a": 1}"#, r#"{"a": 2}"#, r#"{"a": "1"}"#, r#"{"a": [1]}"#, r#"{"a": [1, 2]}"#, r#"{"a": [12]}"#];
    assert_eq!(different.map(of).into_iter().collect::<BTreeSet<_>>().len(), different.len());
}
