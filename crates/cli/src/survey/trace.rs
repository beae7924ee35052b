//! Surveys of traces.

use super::arguments::Reading;
use crate::device::REQUESTS;
use crate::output::Failure;
use ashlar_columns::{is_parquet, read_parquet};
use ashlar_emulated::Operation;
use ashlar_estimate::lsm::{Counting, Traced};
use ashlar_survey::Answer;
use ashlar_survey::answer::{CompressionAnswer, LayoutAnswer, Origin};
use ashlar_survey::listing::Troubles;
use ashlar_survey::sizes::SizesAnswer;
use ashlar_survey::source::Kind;
use ashlar_survey::tally::Mode;
use ashlar_survey::trace::{Analyser, Ask, Request, parse_line};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Longest line of a trace.
const LINE_LEN_MAX: u64 = 4096;
/// Requests from one sign of life to the next.
const PROGRESS: u64 = 1 << 14;

/// Whether a path names a trace.
pub fn is_trace(path: &Path) -> bool {
    let known = |extension: &str| ["parquet", "jsonl", "blkparse"].contains(&extension);
    path.is_file() && path.extension().and_then(|extension| extension.to_str()).is_some_and(known)
}

/// Reads all of a trace.
pub fn answer(path: &Path, reading: &Reading) -> Result<Answer, Failure> {
    let fail = |error: String| Failure::new(format!("{}: {error}", path.display())).with_code(2);
    let began = Instant::now();
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let mut analyser = Analyser::default();
    read(path, file, &mut |request| {
        analyser.see(request);
        Ok(())
    })
    .map_err(fail)?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Answer {
        path: path.to_string_lossy().into_owned(),
        kind: Kind::Trace,
        time,
        logical_bytes: bytes,
        read_bytes: bytes,
        read_fraction: 1.0,
        missing_bytes: 0,
        seed: reading.seed,
        unit_bytes: 0,
        mode: Mode::Full,
        origin: Origin::Measured,
        seconds: began.elapsed().as_secs_f64(),
        memory_peak_bytes: 0,
        spilled_bytes: 0,
        dedup: Vec::new(),
        compression: CompressionAnswer::default(),
        sizes: SizesAnswer::default(),
        packing: None,
        layout: LayoutAnswer::default(),
        trace: Some(analyser.finish()),
        unreadable: Troubles::default(),
        changed: Troubles::default(),
        passed_over: Troubles::default(),
        notes: Vec::new(),
    })
}

/// What is told each request of a trace, and may refuse to go on.
type See<'a> = dyn FnMut(&Request) -> Result<(), String> + 'a;

/// Reads a trace of any kind that is known.
fn read(path: &Path, file: File, see: &mut See<'_>) -> Result<(), String> {
    if is_parquet(path) {
        read_parquet(&REQUESTS, file, |asked: Asked| see(&asked.request()))
    } else {
        lines(BufReader::new(file), see)
    }
}

/// Counts how often each block of some bytes is written, and how many different ones in windows of so many writes.
/// `progress` is told now and then that work goes on.
pub fn writes(path: &Path, block: u64, window: u64, progress: &mut dyn FnMut()) -> Result<Traced, Failure> {
    let fail = |error: String| Failure::new(format!("{}: {error}", path.display())).with_code(2);
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    let mut counting = Counting::new(window);
    let mut requests = 0u64;
    read(path, file, &mut |request| {
        requests += 1;
        if requests.is_multiple_of(PROGRESS) {
            progress();
        }
        if !matches!(request.ask, Ask::Write) || request.len == 0 || !request.is_possible() {
            return Ok(());
        }
        let end = request.offset + request.len;
        (request.offset / block..=(end - 1) / block)
            .try_for_each(|key| counting.see(key).map_err(|refused| refused.to_string()))
    })
    .map_err(fail)?;
    counting.finish(&path.to_string_lossy()).map_err(|refused| fail(refused.to_string()))
}

/// A [`Record`](ashlar_emulated::Record) of which numbers may be beyond belief: one does not spoil a trace.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    at_ns: Number,
    op: Operation,
    #[serde(default)]
    offset: Number,
    #[serde(default)]
    len: Number,
    #[serde(default)]
    fua: bool,
    #[serde(default)]
    depth: Number,
    #[serde(default)]
    response_ns: Number,
    #[serde(default)]
    queue_ns: Number,
    #[serde(default)]
    overhead_ns: Number,
    #[serde(default)]
    seek_ns: Number,
    #[serde(default)]
    rotation_ns: Number,
    #[serde(default)]
    transfer_ns: Number,
    #[serde(default)]
    late_ns: Number,
}

impl Asked {
    fn request(&self) -> Request {
        let ask = match self.op {
            Operation::Read => Ask::Read,
            Operation::Write => Ask::Write,
            Operation::Flush => Ask::Flush,
            Operation::Discard => Ask::Discard,
        };
        let Asked { at_ns, offset, len, depth, response_ns, queue_ns, .. } = self;
        let Asked { overhead_ns, seek_ns, rotation_ns, transfer_ns, late_ns, .. } = self;
        let others = [depth, response_ns, queue_ns, overhead_ns, seek_ns, rotation_ns, transfer_ns, late_ns];
        let (Some(at_ns), Some(offset), Some(len)) = (at_ns.0, offset.0, len.0) else { return Request::IMPOSSIBLE };
        if others.iter().any(|number| number.0.is_none()) {
            return Request::IMPOSSIBLE;
        }
        Request { at_ns, ask, offset, len, fua: self.fua, content: None }
    }
}

/// A whole number; `None` if it is below zero or beyond 64 bits.
#[derive(Clone, Copy)]
struct Number(Option<u64>);

impl Default for Number {
    fn default() -> Number {
        Number(Some(0))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }
            fn visit_u64<E>(self, number: u64) -> Result<Number, E> {
                Ok(Number(Some(number)))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Number, E> {
                Ok(Number(u64::try_from(number).ok()))
            }
            /// What has too many digits for 64 bits comes so.
            fn visit_f64<E: Error>(self, number: f64) -> Result<Number, E> {
                if number.abs() < 2f64.powi(63) {
                    return Err(E::invalid_type(Unexpected::Float(number), &self));
                }
                Ok(Number(None))
            }
        }
        from.deserialize_any(Whole)
    }
}

/// Lines of JSON, or of the FIU traces.
fn lines(mut from: impl BufRead, see: &mut See<'_>) -> Result<(), String> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let len = (&mut from).take(LINE_LEN_MAX).read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        if len == 0 {
            break;
        }
        let found = if line.starts_with(b"{") {
            serde_json::from_slice(&line).map(|asked: Asked| asked.request()).map_err(|error| error.to_string())
        } else {
            parse_line(&String::from_utf8_lossy(&line))
        };
        see(&found.map_err(|error| format!("line {number} is no record: {error}"))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_lines_are_read() {
        let mut analyser = Analyser::default();
        let text = "{\"at_ns\":9,\"op\":\"write\",\"len\":4096}\n9 1 cp 8 8 R 8 0 00112233445566778899aabbccddeeff\n";
        let mut see = |request: &Request| {
            analyser.see(request);
            Ok(())
        };
        lines(text.as_bytes(), &mut see).expect("two lines");
        // Impossible numbers are counted; what is no number, or has another name, is no record.
        for number in ["-5", "18446744073709551616", "18446744073709551615", "1e30", "-1e30"] {
            let text = format!("{{\"at_ns\":{number},\"op\":\"read\",\"len\":4096}}\n");
            lines(text.as_bytes(), &mut see).unwrap_or_else(|error| panic!("{number}: {error}"));
        }
        for wrong in ["{\"at_ns\":1.5,\"op\":\"read\"}", "{\"at_ns\":\"x\",\"op\":\"read\"}", "{\"at\":1}"] {
            lines(wrong.as_bytes(), &mut see).expect_err(wrong);
        }
        let error = lines("{}\n".as_bytes(), &mut see).expect_err("no record");
        assert!(error.contains("line 1"), "{error}");
        let answer = analyser.finish();
        assert_eq!((answer.reads.requests, answer.writes.requests, answer.impossible), (1, 1, 5));
    }
}
