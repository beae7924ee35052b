//! A line of strace.

use super::constants;
use crate::trace::calls::{Call, Memory};

/// A line, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Which thread; zero where strace did not say.
    pub thread: u32,
    /// Time of day, or since 1970, nanoseconds.
    pub at_ns: u64,
    /// What it says.
    pub says: Says<'a>,
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says<'a> {
    /// `name(arguments) = result`, of which the part from the arguments on.
    Call(&'a [u8], &'a [u8]),
    /// The same, with `<unfinished ...>` at its end.
    Begun(&'a [u8], &'a [u8]),
    /// `<... name resumed>` and what follows.
    Resumed(&'a [u8], &'a [u8]),
    /// `+++ exited with 0 +++` and the like.
    Exited,
    /// `+++ superseded by execve in pid N +++`.
    Superseded(u32),
    /// A signal, or what strace says about itself.
    Nothing,
}

/// Takes a line apart.
pub fn line(line: &[u8]) -> Option<Line<'_>> {
    if line.starts_with(b"strace: ") {
        return Some(Line { thread: 0, at_ns: 0, says: Says::Nothing });
    }
    let mut rest = line;
    let mut thread = 0;
    if let Some(after) = rest.strip_prefix(b"[pid ") {
        let end = after.iter().position(|byte| *byte == b']')?;
        thread = number_u32(after[..end].trim_ascii())?;
        rest = after[end + 1..].trim_ascii_start();
    } else if let Some((first, after)) = word(rest)
        && let Some(number) = number_u32(first)
        && after.first().is_some_and(u8::is_ascii_digit)
    {
        (thread, rest) = (number, after);
    }
    let (first, rest) = word(rest)?;
    if first == b"strace:" {
        return Some(Line { thread, at_ns: 0, says: Says::Nothing });
    }
    let at_ns = time(first)?;
    Some(Line { thread, at_ns, says: says(rest)? })
}

fn says(text: &[u8]) -> Option<Says<'_>> {
    if text.starts_with(b"--- ") {
        return Some(Says::Nothing);
    }
    if let Some(rest) = text.strip_prefix(b"+++ ") {
        let Some(rest) = rest.strip_prefix(b"superseded by execve in pid ") else { return Some(Says::Exited) };
        return Some(Says::Superseded(number_u32(word(rest)?.0)?));
    }
    if let Some(rest) = text.strip_prefix(b"<... ") {
        let (name, rest) = word(rest)?;
        // `<... read resumed>` or, where it never returned, `<... exit resumed> <unfinished ...>`.
        let end = rest.iter().position(|byte| *byte == b'>')?;
        return Some(Says::Resumed(name, &rest[end + 1..]));
    }
    let open = text.iter().position(|byte| *byte == b'(')?;
    let (name, rest) = (&text[..open], &text[open + 1..]);
    if name.is_empty() || !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        return None;
    }
    match rest.trim_ascii_end().strip_suffix(b"<unfinished ...>") {
        Some(begun) => Some(Says::Begun(name, begun)),
        None => Some(Says::Call(name, rest)),
    }
}

/// The first word, and what follows the blanks behind it.
fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ')?;
    Some((&text[..end], text[end..].trim_ascii_start())).filter(|(word, _)| !word.is_empty())
}

fn number_u32(text: &[u8]) -> Option<u32> {
    str::from_utf8(text).ok()?.parse().ok()
}

/// `1795340101.088249` or `09:28:32.123`, in nanoseconds.
fn time(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let mut seconds = 0u64;
    for piece in whole.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(digits(piece)?)?;
    }
    let scale = 10u64.checked_pow(9u32.checked_sub(part.len() as u32)?)?;
    let part = if part.is_empty() { 0 } else { digits(part)? };
    seconds.checked_mul(1_000_000_000)?.checked_add(part * scale)
}

fn digits(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// What it returned, or `-errno`; `None` if it did not.
    pub result: Option<i64>,
    /// How long it took, where strace says.
    pub latency_ns: Option<u64>,
}

/// Splits what follows `name(` into arguments and how the call ended.
pub fn arguments(text: &[u8]) -> Option<(Vec<&[u8]>, Ended)> {
    let (arguments, rest) = split(text, b')')?;
    Some((arguments, ended(rest)?))
}

/// Splits a list up to the bracket that closes it. Blanks around the parts are gone.
fn split(text: &[u8], close: u8) -> Option<(Vec<&[u8]>, &[u8])> {
    let mut parts = Vec::new();
    let (mut from, mut at, mut depth) = (0, 0, 0u32);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at = string_end(text, at)?,
            b'<' if at > from && is_annotation(text, at) => at = annotation_end(text, at)?,
            b'/' if text[at..].starts_with(b"/*") => at += 2 + find(&text[at + 2..], b"*/")? + 1,
            b'(' | b'[' | b'{' => depth += 1,
            _ if depth == 0 && *byte == close => {
                parts.push(text[from..at].trim_ascii());
                return Some((parts, &text[at + 1..]));
            }
            b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                parts.push(text[from..at].trim_ascii());
                from = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where a text ends that begins with a quotation mark: at the other one.
fn string_end(text: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Whether a descriptor's path begins here, as in `3</etc>`, and no shift.
fn is_annotation(text: &[u8], at: usize) -> bool {
    let before = text[at - 1];
    (before.is_ascii_digit() || text[..at].ends_with(b"AT_FDCWD")) && text.get(at + 1).is_some_and(|next| *next != b'<')
}

/// Where it ends. Texts of sockets have `->` in them.
fn annotation_end(text: &[u8], open: usize) -> Option<usize> {
    let mut from = open + 1;
    loop {
        let end = from + find(text.get(from..)?, b">")?;
        match text.get(end + 1) {
            None | Some(b',' | b')' | b']' | b' ' | b'}') if text[end - 1] != b'-' => return Some(end),
            _ => from = end + 1,
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// ` = 3 <0.000012>`, ` = -1 ENOENT (No such file or directory)`, ` = ?`.
fn ended(text: &[u8]) -> Option<Ended> {
    let mut text = text.trim_ascii().strip_prefix(b"=")?.trim_ascii();
    let mut latency_ns = None;
    if let Some(open) = text.iter().rposition(|byte| *byte == b'<')
        && let Some(duration) = text[open + 1..].strip_suffix(b">")
        && let Some(duration) = time(duration)
        && open > 0
    {
        (latency_ns, text) = (Some(duration), text[..open].trim_ascii_end());
    }
    let (first, rest) = word(text).unwrap_or((text, b""));
    let name = rest.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').next();
    let error = name.and_then(|name| str::from_utf8(name).ok()).and_then(constants::error);
    let result = match first {
        b"?" => error.map(|error| -error),
        b"-1" if rest.starts_with(b"E") => Some(-error.unwrap_or(i64::from(i32::MAX))),
        _ => Some(number(first)? as i64),
    };
    Some(Ended { result, latency_ns })
}

/// An argument without its name, as in `flags=CLONE_VM`.
pub fn unnamed(argument: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let end = argument.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(argument.len());
    match argument.get(end) {
        Some(b'=') if end > 0 => (Some(&argument[..end]), &argument[end + 1..]),
        _ => (None, argument),
    }
}

/// A number, a sum of names, a descriptor with its path, a pointer. `None` of what is something else.
pub fn number(argument: &[u8]) -> Option<u64> {
    let end = argument.iter().position(|byte| matches!(byte, b'<' | b' ')).unwrap_or(argument.len());
    let text = str::from_utf8(&argument[..end]).ok()?;
    if text.is_empty() {
        return None;
    }
    text.split('|').try_fold(0, |sum, name| Some(sum | product(name)?))
}

fn product(text: &str) -> Option<u64> {
    text.split('*').try_fold(1u64, |product, factor| Some(product.wrapping_mul(single(factor)?)))
}

fn single(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    match text.as_bytes().first()? {
        b'-' => text.parse::<i64>().ok().map(|number| number as u64),
        b'0' if text.len() > 1 => u64::from_str_radix(text, 8).ok(),
        b'0'..=b'9' => text.parse().ok(),
        // A flag that does not matter here.
        first if first.is_ascii_uppercase() || *first == b'_' => Some(constants::value(text).unwrap_or(0)),
        _ => None,
    }
}

/// A text in quotation marks, whole.
pub fn text(argument: &[u8]) -> Option<Vec<u8>> {
    let inner = argument.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut bytes = Vec::with_capacity(inner.len());
    unescape(inner, &mut bytes)?;
    Some(bytes)
}

fn unescape(text: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        if *byte != b'\\' {
            to.push(*byte);
            continue;
        }
        let escaped = *text.get(at)?;
        at += 1;
        let (radix, from, max) = match escaped {
            b'x' => (16, at, 2),
            b'0'..=b'7' => (8, at - 1, 3),
            _ => {
                to.push(match escaped {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    other => other,
                });
                continue;
            }
        };
        let count = text[from..].iter().take(max).take_while(|digit| char::from(**digit).is_digit(radix)).count();
        let digits = str::from_utf8(&text[from..from + count]).ok()?;
        to.push(u32::from_str_radix(digits, radix).ok()? as u8);
        at = from + count;
    }
    Some(())
}

/// The path behind a descriptor, as `-y` prints it: `3</etc>`.
pub fn annotation(argument: &[u8]) -> Option<(u32, Vec<u8>)> {
    let open = argument.iter().position(|byte| *byte == b'<')?;
    if open == 0 || !is_annotation(argument, open) {
        return None;
    }
    let end = annotation_end(argument, open)?;
    let mut path = Vec::new();
    unescape(&argument[open + 1..end], &mut path)?;
    Some((number(&argument[..open])? as u32, path))
}

/// What an argument points to.
pub fn memory(argument: &[u8], what: Memory) -> [Option<u64>; 2] {
    match what {
        Memory::How => [field(argument, b"flags"), field(argument, b"mode")],
        Memory::Offset => [list(argument).first().and_then(|first| number(first)), None],
        Memory::Lengths => [Some(lengths(argument)), None],
        Memory::Pair => {
            let pair = list(argument);
            [0, 1].map(|index| pair.get(index).and_then(|fd| number(fd)))
        }
    }
}

fn list(argument: &[u8]) -> Vec<&[u8]> {
    let inner = argument.strip_prefix(b"[").and_then(|inner| split(inner, b']'));
    inner.map_or_else(Vec::new, |(parts, _)| parts)
}

/// A field of a structure, as in `{flags=O_RDONLY, mode=0}`.
pub fn field(argument: &[u8], name: &[u8]) -> Option<u64> {
    let (parts, _) = split(argument.strip_prefix(b"{")?, b'}')?;
    parts.into_iter().map(unnamed).find(|(found, _)| *found == Some(name)).and_then(|(_, value)| number(value))
}

fn lengths(argument: &[u8]) -> u64 {
    list(argument).into_iter().filter_map(|part| field(part, b"iov_len")).fold(0, u64::saturating_add)
}

/// The number that stands for an argument: a path that is there is not zero.
pub fn argument(call: &Call, index: u8, argument: &[u8]) -> u64 {
    let is_path = [call.path, call.path2].contains(&Some(index));
    number(unnamed(argument).1).unwrap_or(u64::from(is_path))
}
