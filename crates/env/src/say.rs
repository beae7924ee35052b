//! Words to people, by programs that go on whether somebody hears them or not.
//!
//! `println!` and `eprintln!` panic when what they say cannot be written: when a log is a file on a disk that is full, or a pipe
//! whose reader is gone. A server must not end by that.

use std::fmt::Display;
use std::io::Write;

/// Says something on standard error, in a line.
pub fn error(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Says something on standard output, in a line, at once.
pub fn output(text: impl Display) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{text}").and_then(|()| output.flush());
}

/// Shows something on standard error, at once and without ending the line.
pub fn progress(text: impl Display) {
    let mut error = std::io::stderr().lock();
    let _ = write!(error, "{text}").and_then(|()| error.flush());
}
