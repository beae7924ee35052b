//! Surveys of traces.

use super::arguments::Reading;
use crate::device::REQUESTS;
use crate::output::Failure;
use ashlar_columns::{is_parquet, read_parquet};
use ashlar_emulated::{Operation, Record};
use ashlar_estimate::lsm::{Counting, Traced};
use ashlar_survey::Answer;
use ashlar_survey::answer::{CompressionAnswer, LayoutAnswer, Origin};
use ashlar_survey::listing::Troubles;
use ashlar_survey::sizes::SizesAnswer;
use ashlar_survey::source::Kind;
use ashlar_survey::tally::Mode;
use ashlar_survey::trace::{Analyser, Ask, Request, parse_line};
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
        read_parquet(&REQUESTS, file, |record| see(&request(&record)))
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

fn request(record: &Record) -> Request {
    let ask = match record.op {
        Operation::Read => Ask::Read,
        Operation::Write => Ask::Write,
        Operation::Flush => Ask::Flush,
        Operation::Discard => Ask::Discard,
    };
    let Record { at_ns, offset, len, fua, .. } = *record;
    Request { at_ns, ask, offset, len, fua, content: None }
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
            serde_json::from_slice(&line).map(|record: Record| request(&record)).map_err(|error| error.to_string())
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
        let error = lines("{}\n".as_bytes(), &mut see).expect_err("no record");
        assert!(error.contains("line 1"), "{error}");
        let answer = analyser.finish();
        assert_eq!((answer.reads.requests, answer.writes.requests), (1, 1));
    }
}
