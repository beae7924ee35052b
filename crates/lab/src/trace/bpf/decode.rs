//! What programs in the kernel tell, as events.

use super::programs::{ARGUMENTS, at, kind};
use crate::trace::calls::{Call, Does, Memory, TABLE};
use crate::trace::event::{Caught, Event, What};
use crate::trace::flags::APPEND;
use std::sync::LazyLock;

/// What was told.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// Something that a thread did.
    Event(Event),
    /// A thread ended within a call, this one.
    Within(Event, Option<&'static Call>),
}

/// A call by its number on x86-64.
pub fn by_number(number: u64) -> Option<&'static Call> {
    static NUMBERS: LazyLock<Vec<Option<&'static Call>>> = LazyLock::new(|| {
        let mut numbers = vec![None; 1 + TABLE.iter().map(|call| usize::from(call.number)).max().unwrap_or(0)];
        TABLE.iter().for_each(|call| numbers[usize::from(call.number)] = Some(call));
        numbers
    });
    NUMBERS.get(usize::try_from(number).ok()?).copied().flatten()
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Arguments out of registers.
fn arguments(registers: &[u8]) -> [u64; 6] {
    ARGUMENTS.map(|register| number(registers, register * 8).unwrap_or(0))
}

/// A file that was opened for appending.
pub struct Appends {
    pub process: u32,
    pub thread: u32,
    /// When the call began, in nanoseconds of the monotonic clock.
    pub began_ns: u64,
    pub fd: u64,
}

/// Whether a file was opened for appending.
pub fn appends(bytes: &[u8]) -> Option<Appends> {
    let call = by_number(word(bytes, at::CALL)?.into()).filter(|call| call.does == Does::Open)?;
    let flags = arguments(bytes.get(at::REGISTERS..)?)[usize::from(call.flags?)];
    let fd = number(bytes, at::RESULT)?;
    let opened = word(bytes, at::KIND)? == kind::CALL && flags & APPEND != 0 && (fd as i64) >= 0;
    let thread = number(bytes, at::THREAD)?;
    let (process, thread) = ((thread >> 32) as u32, thread as u32);
    opened.then_some(Appends { process, thread, began_ns: number(bytes, at::BEGAN)?, fd })
}

/// Reads what was told; times count from `began_ns`. `None` if it makes no sense.
pub fn decode(bytes: &[u8], began_ns: u64) -> Option<Told> {
    let thread = number(bytes, at::THREAD)?;
    let (process, thread) = (Some((thread >> 32) as u32), thread as u32);
    // Also where a call begins.
    let at_ns = number(bytes, at::TIME)?.saturating_sub(began_ns);
    let event = |what| Told::Event(Event { at_ns, thread, process, what });
    let first = number(bytes, at::FIRST)?;
    match word(bytes, at::KIND)? {
        kind::CALL => Some(event(What::Call(call(bytes)?))),
        kind::FORK => Some(event(What::Fork { child: first as u32, flags: number(bytes, at::SECOND)? })),
        kind::EXEC => Some(event(What::Exec { old: first as u32 })),
        kind::EXIT => {
            let exit = Event { at_ns, thread, process, what: What::Exit };
            Some(if first == 0 { Told::Event(exit) } else { Told::Within(exit, by_number(number(bytes, at::SECOND)?)) })
        }
        _ => None,
    }
}

fn call(bytes: &[u8]) -> Option<Caught> {
    let call = by_number(word(bytes, at::CALL)?.into())?;
    let mut args = arguments(bytes.get(at::REGISTERS..)?);
    // What is above an int or a short in a register means nothing.
    if let Some(flags) = call.flags {
        args[usize::from(flags)] &= 0xffff_ffff;
    }
    if let Some(mode) = call.mode {
        args[usize::from(mode)] &= 0xffff;
    }
    let result = number(bytes, at::RESULT)? as i64;
    let latency_ns = number(bytes, at::ENDED)?.saturating_sub(number(bytes, at::BEGAN)?);
    let mut texts = bytes.get(at::TEXTS..)?;
    let mut pieces = [None; 2];
    for (index, piece) in pieces.iter_mut().enumerate() {
        let len = word(bytes, at::LENGTHS + 4 * index)? as i32;
        if len > 0 {
            let (text, rest) = texts.split_at_checked(usize::try_from(len).ok()?)?;
            (*piece, texts) = (Some(text), rest);
        }
    }
    let mut pieces = pieces.into_iter();
    let mut text = |at: Option<u8>| {
        at?;
        // With the zero at its end.
        let text = pieces.next()??;
        Some(text.strip_suffix(b"\0").unwrap_or(text).to_vec())
    };
    let (path, path2) = (text(call.path), text(call.path2));
    let mut extra = [None; 2];
    for (slot, memory) in call.memory.iter().enumerate() {
        let Some((_, what)) = memory else { continue };
        let Some(piece) = pieces.next().flatten() else { continue };
        match what {
            Memory::How => extra = [number(piece, 0), number(piece, 8)],
            Memory::Lengths => {
                let lengths = piece.chunks_exact(16).filter_map(|buffer| number(buffer, 8));
                extra[0] = Some(lengths.fold(0, u64::saturating_add));
            }
            // The kernel moved it on by what was done.
            Memory::Offset => extra[slot] = number(piece, 0).map(|offset| offset.wrapping_sub(result.max(0) as u64)),
            Memory::Pair => {
                let pair = number(piece, 0)?;
                extra = [Some(pair & 0xffff_ffff), Some(pair >> 32)];
            }
        }
    }
    debug_assert!(call.does != Does::Fork);
    Some(Caught { call, latency_ns, args, path, path2, extra, result, end: None, hints: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_opened_for_appending_are_noticed() {
        let told = |kind: u32, call: u32, flags: u64, result: i64| {
            let mut bytes = vec![0; at::TEXTS];
            let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
            put(at::KIND, &kind.to_ne_bytes());
            put(at::CALL, &call.to_ne_bytes());
            put(at::THREAD, &(5u64 << 32 | 6).to_ne_bytes());
            put(at::BEGAN, &7u64.to_ne_bytes());
            put(at::RESULT, &result.to_ne_bytes());
            put(at::REGISTERS + 8 * ARGUMENTS[2], &flags.to_ne_bytes());
            appends(&bytes).map(|Appends { process, thread, began_ns, fd }| (process, thread, began_ns, fd))
        };
        const OPENAT: u32 = 257;
        assert_eq!(told(kind::CALL, OPENAT, APPEND | 1, 9), Some((5, 6, 7, 9)));
        assert_eq!(told(kind::CALL, OPENAT, 1, 9), None, "it does not append");
        assert_eq!(told(kind::CALL, OPENAT, APPEND, -2), None, "it was not opened");
        assert_eq!(told(kind::FORK, OPENAT, APPEND, 9), None);
        assert_eq!(told(kind::CALL, 0, APPEND, 9), None, "it is no open");
        assert!(appends(&[0; 64]).is_none());
    }
}
