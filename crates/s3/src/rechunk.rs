//! Bodies in chunks, as clients stream them: large chunks are cut into small ones where that may be.
//!
//! The library reads a chunk into memory before it passes it on, and a client says how long its chunks are. Chunks without
//! a signature can be cut; those with one must be short enough.

use bytes::{Bytes, BytesMut};
use std::fmt;

/// Longest chunk that comes out without a signature, in bytes.
pub(crate) const CUT: u64 = 256 << 10;
/// Longest chunk with a signature, in bytes. Clients send 64 KiB to 1 MiB.
pub(crate) const SIGNED_MAX: u64 = 4 << 20;
/// Longest line before a chunk.
const LINE_MAX: usize = 256;
/// Begins every error of this module.
pub(crate) const WRONG: &str = "the body is no stream of chunks";

/// A body that is no stream of chunks.
#[derive(Debug)]
pub(crate) struct Wrong(&'static str);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{WRONG}: {}", self.0)
    }
}

impl std::error::Error for Wrong {}

/// What the next byte of the body is.
#[derive(Debug)]
enum State {
    /// Of the line before a chunk.
    Line,
    /// Of a chunk, with so many bytes still to come, of which so many are announced.
    Data { left: u64, announced: u64 },
    /// The line end behind a chunk; so much of it has been seen.
    End(usize),
    /// Behind the last chunk: trailers, which pass.
    Trailers,
}

/// Cuts chunks.
#[derive(Debug)]
pub(crate) struct Rechunk {
    state: State,
    line: BytesMut,
}

impl Rechunk {
    pub(crate) fn new() -> Rechunk {
        Rechunk { state: State::Line, line: BytesMut::new() }
    }

    /// Takes the next bytes of the body; gives what to pass on instead, piece by piece.
    ///
    /// # Errors
    /// [`Wrong`], after which nothing more is to be asked.
    pub(crate) fn take(&mut self, mut input: Bytes, mut out: impl FnMut(Bytes)) -> Result<(), Wrong> {
        while !input.is_empty() {
            match &mut self.state {
                State::Line => {
                    let end = input.iter().position(|byte| *byte == b'\n').map_or(input.len(), |at| at + 1);
                    if self.line.len() + end > LINE_MAX {
                        return Err(Wrong("the line before a chunk is too long"));
                    }
                    self.line.extend_from_slice(&input.split_to(end));
                    if self.line.last() == Some(&b'\n') {
                        let line = self.line.split().freeze();
                        self.begin(line, &mut out)?;
                    }
                }
                State::Data { left, announced } => {
                    if *announced == 0 {
                        *announced = (*left).min(CUT);
                        out(Bytes::from(format!("{announced:x}\r\n")));
                    }
                    let part = input.split_to((*announced).min(input.len() as u64) as usize);
                    *left -= part.len() as u64;
                    *announced -= part.len() as u64;
                    out(part);
                    if *left == 0 {
                        self.state = State::End(0);
                    } else if *announced == 0 {
                        out(Bytes::from_static(b"\r\n"));
                    }
                }
                State::End(seen) => {
                    let byte = input.split_to(1);
                    if byte[0] != b"\r\n"[*seen] {
                        return Err(Wrong("a chunk is longer than announced"));
                    }
                    *seen += 1;
                    if *seen == 2 {
                        self.state = State::Line;
                    }
                    out(byte);
                }
                State::Trailers => out(std::mem::take(&mut input)),
            }
        }
        Ok(())
    }

    /// A whole line before a chunk: `SIZE` in hexadecimal, perhaps `;chunk-signature=…`, and a line end.
    fn begin(&mut self, line: Bytes, out: &mut impl FnMut(Bytes)) -> Result<(), Wrong> {
        let text = line.strip_suffix(b"\r\n").ok_or(Wrong("a line does not end with CR LF"))?;
        let digits = text.split(|byte| *byte == b';').next().unwrap_or_default();
        let valid = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let size = std::str::from_utf8(digits).ok().filter(|_| valid);
        let size = size.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let size = size.ok_or(Wrong("the size of a chunk is no hexadecimal number"))?;
        let signed = digits.len() < text.len();
        self.state = match size {
            0 => {
                out(line);
                State::Trailers
            }
            _ if !signed => State::Data { left: size, announced: 0 },
            _ if size > SIGNED_MAX => return Err(Wrong("a signed chunk is longer than 4 MiB")),
            _ => {
                out(line);
                State::Data { left: size, announced: size }
            }
        };
        Ok(())
    }
}

#[cfg(test)]
#[path = "rechunk_tests.rs"]
mod tests;
