//! Chunks in, chunks out: the same bytes, in shorter chunks; hostile ones are refused.

use super::{CUT, Rechunk, SIGNED_MAX};
use bytes::Bytes;
use proptest::prelude::*;

/// What comes out for a body that arrives in pieces that end at `cuts`.
fn through(body: &[u8], cuts: &[usize]) -> Result<Vec<u8>, String> {
    let mut rechunk = Rechunk::new();
    let mut out = Vec::new();
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).chain([0, body.len()]).collect();
    cuts.sort_unstable();
    for pair in cuts.windows(2) {
        let piece = Bytes::copy_from_slice(&body[pair[0]..pair[1]]);
        rechunk.take(piece, |bytes| out.extend_from_slice(&bytes)).map_err(|wrong| wrong.to_string())?;
    }
    Ok(out)
}

/// The bytes of a stream of chunks, its longest chunk, and what follows the last: written apart from the code under test.
fn decode(mut body: &[u8]) -> (Vec<u8>, usize, Vec<u8>) {
    let (mut data, mut longest) = (Vec::new(), 0);
    loop {
        let line_end = body.windows(2).position(|two| two == b"\r\n").expect("a line");
        let line = std::str::from_utf8(&body[..line_end]).expect("text");
        let size = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16).expect("a size");
        body = &body[line_end + 2..];
        if size == 0 {
            return (data, longest, body.to_vec());
        }
        longest = longest.max(size);
        data.extend_from_slice(&body[..size]);
        assert_eq!(&body[size..size + 2], b"\r\n");
        body = &body[size + 2..];
    }
}

fn encode(chunks: &[(usize, bool)], trailers: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (number, (size, signed)) in chunks.iter().enumerate().map(|(number, (size, signed))| (number, (*size, *signed)))
    {
        let signature = if signed { format!(";chunk-signature={}", "a".repeat(64)) } else { String::new() };
        body.extend_from_slice(format!("{size:x}{signature}\r\n").as_bytes());
        body.extend((0..size).map(|at| (at * 7 + number) as u8));
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    body
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn the_same_bytes_in_shorter_chunks(
        chunks in proptest::collection::vec((1..600_000usize, any::<bool>()), 0..5),
        cuts in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let body = encode(&chunks, "x-amz-checksum-crc32:AAAAAA==\r\n");
        let out = through(&body, &cuts).expect("valid chunks");
        let (data, longest, rest) = decode(&out);
        let (expected, _, expected_rest) = decode(&body);
        prop_assert!(data == expected);
        prop_assert_eq!(rest, expected_rest);
        let signed = chunks.iter().filter(|(_, signed)| *signed).map(|(size, _)| *size).max().unwrap_or(0);
        prop_assert!(longest <= signed.max(CUT as usize));
    }

    /// Whatever comes, what goes out is no longer than what came by more than the lines of cut chunks.
    #[test]
    fn noise_is_refused_or_passes(body in proptest::collection::vec(any::<u8>(), 0..2000), cuts in any::<[usize; 3]>()) {
        if let Ok(out) = through(&body, &cuts) {
            prop_assert!(out.len() <= body.len() + 16);
        }
    }
}

#[test]
fn hostile_chunks() {
    let long = "1".repeat(17);
    for (body, says) in [
        (format!("{:x};chunk-signature=a\r\n", SIGNED_MAX + 1), "longer than 4 MiB"),
        (format!("{long}\r\n"), "no hexadecimal number"),
        ("\r\n".into(), "no hexadecimal number"),
        ("+1\r\n".into(), "no hexadecimal number"),
        ("3\nabc".into(), "CR LF"),
        ("3\r\nabcd\r\n".into(), "longer than announced"),
        ("0".repeat(300), "too long"),
    ] {
        let wrong = through(body.as_bytes(), &[1, 5]).expect_err(&body);
        assert!(wrong.contains(says), "{body}: {wrong}");
    }
    // A chunk of 2^63 bytes is fine as long as nobody has to hold it.
    let out = through(b"7fffffffffffffff\r\nabc", &[]).expect("the beginning of a long chunk");
    assert_eq!(out, b"40000\r\nabc");
}
