//! Snapshots as the thesis keeps them (Smith 2001, appendix A.3): a text of names, inode numbers, types and sizes.
//!
//! ```text
//! ./ 2 512                    the root: its name, inode number and bytes
//! 21376 1 512 src             inode number, type (0 file, 1 directory, 2 symbolic link), bytes, and name
//! 21377 2 6 lib usr/li        of a link, what it says
//! ~~                          nothing more is in it
//! ./src/                      another directory, somewhere behind the one that has it
//! 21386 0 3196 trim.c
//! ~~
//! ```
//!
//! Departs  a name may have blanks: of a link, the last bytes are what it says, as many as its size, and else what is behind
//!          the first blank. The end of the last listing may be missing, as in the thesis's figure A.3.

use crate::walk::Kind;
use std::io::{BufRead, Read};

/// Longest line, bytes: a path of 4 KiB is the longest that programs can use, but directories may lie deeper.
const LINE_LEN_MAX: u64 = 64 << 10;
/// The end of a listing.
const END: &[u8] = b"~~";

/// A line of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The first one.
    Root {
        /// As the names of other directories begin; ends with a slash.
        name: Vec<u8>,
        /// Its inode number.
        inode: u64,
        /// Its bytes.
        size: u64,
    },
    /// What is in this directory follows: a path that begins with the root's name and ends with a slash.
    Directory(Vec<u8>),
    /// Something in a directory.
    Entry(Listed),
    /// Nothing more is in it.
    End,
}

/// What is in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its inode number.
    pub inode: u64,
    /// A file, a directory or a link.
    pub kind: Kind,
    /// Its bytes.
    pub size: u64,
    /// Its name in that directory: no slash, no line break, and neither `.` nor `..`.
    pub name: Vec<u8>,
    /// What a link says, if that is known.
    pub link: Option<Vec<u8>>,
}

impl Line {
    /// Adds the line to a text.
    pub fn put(&self, to: &mut Vec<u8>) {
        match self {
            Line::Root { name, inode, size } => {
                to.extend_from_slice(name);
                to.extend_from_slice(format!(" {inode} {size}").as_bytes());
            }
            Line::Directory(path) => to.extend_from_slice(path),
            Line::Entry(Listed { inode, kind, size, name, link }) => {
                to.extend_from_slice(format!("{inode} {} {size} ", *kind as u8).as_bytes());
                to.extend_from_slice(name);
                if let Some(link) = link {
                    to.push(b' ');
                    to.extend_from_slice(link);
                }
            }
            Line::End => to.extend_from_slice(END),
        }
        to.push(b'\n');
    }
}

/// Whether a file that begins with this byte is such a text, and not a system vector.
pub fn is_listing(first: u8) -> bool {
    matches!(first, b'.' | b'/')
}

/// What may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Root,
    /// An entry or the end of the listing.
    Entry,
    /// Another directory or the end of the file.
    Directory,
}

/// Reads the text, a line at a time.
pub struct ListingReader<R: BufRead> {
    input: R,
    line: Vec<u8>,
    number: u64,
    next: Next,
}

impl<R: BufRead> ListingReader<R> {
    /// From its beginning.
    pub fn new(input: R) -> ListingReader<R> {
        ListingReader { input, line: Vec::new(), number: 0, next: Next::Root }
    }

    /// The next line; `None` after the last. An error says which line is none, and why.
    pub fn read(&mut self) -> Result<Option<Line>, String> {
        self.line.clear();
        self.number += 1;
        let len = (&mut self.input).take(LINE_LEN_MAX).read_until(b'\n', &mut self.line);
        if len.map_err(|error| error.to_string())? == 0 {
            return if self.next == Next::Root { Err("it is empty".into()) } else { Ok(None) };
        }
        let Some(text) = self.line.strip_suffix(b"\n") else {
            return Err(self.wrong("it ends within a line, or the line is too long; was it cut?"));
        };
        let (line, next) = match self.next {
            Next::Root => (root(text), Next::Entry),
            Next::Entry if text == END => (Ok(Line::End), Next::Directory),
            Next::Entry => (entry(text), Next::Entry),
            Next::Directory => (directory(text), Next::Entry),
        };
        let line = line.map_err(|what| self.wrong(what))?;
        self.next = next;
        Ok(Some(line))
    }

    /// An error that names the line that was read last.
    pub fn wrong(&self, what: &str) -> String {
        format!("line {}: {what}", self.number)
    }

    /// After the last line: whether the last listing had an end. Without, the text may have been cut.
    pub fn has_end(&self) -> bool {
        self.next == Next::Directory
    }
}

/// The word before the first blank, and what is behind.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == b' ')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// A number as it is written, with nothing before or behind: so the text comes back as it was.
fn number(word: &[u8]) -> Option<u64> {
    let plain = word.first() != Some(&b'+') && (word == b"0" || word.first() != Some(&b'0'));
    std::str::from_utf8(word).ok().filter(|_| plain)?.parse().ok()
}

fn root(text: &[u8]) -> Result<Line, &'static str> {
    let wrong = "it is no root; write its name, which begins with . or / and ends with /, its inode number and its size, as in \
                 `./ 2 512`";
    let mut words = text.rsplitn(3, |byte| *byte == b' ');
    let (size, inode) = (words.next().and_then(number).ok_or(wrong)?, words.next().and_then(number).ok_or(wrong)?);
    let name = words.next().filter(|name| name.first().copied().is_some_and(is_listing) && name.ends_with(b"/"));
    Ok(Line::Root { name: name.ok_or(wrong)?.to_vec(), inode, size })
}

fn directory(text: &[u8]) -> Result<Line, &'static str> {
    match text.ends_with(b"/") {
        true => Ok(Line::Directory(text.to_vec())),
        false => Err("it is no directory; write its path with a slash at the end, as in `./src/`"),
    }
}

fn entry(text: &[u8]) -> Result<Line, &'static str> {
    let wrong = "it is neither the end of a listing, ~~, nor an inode number, a type (0, 1, 2), a size and a name, as in `2 0 512 \
                 a.c`";
    let (inode, rest) = split(text).ok_or(wrong)?;
    let (kind, rest) = split(rest).ok_or(wrong)?;
    let (size, rest) = split(rest).ok_or(wrong)?;
    let kind = match kind {
        b"0" => Kind::File,
        b"1" => Kind::Directory,
        b"2" => Kind::Link,
        _ => return Err(wrong),
    };
    let (inode, size) = (number(inode).ok_or(wrong)?, number(size).ok_or(wrong)?);
    let (name, link) = if kind == Kind::Link { named_link(rest, size) } else { (rest, None) };
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err("a name is neither empty nor . nor .., and has no slash");
    }
    Ok(Line::Entry(Listed { inode, kind, size, name: name.to_vec(), link: link.map(<[u8]>::to_vec) }))
}

/// The name of a link, and what it says.
fn named_link(text: &[u8], size: u64) -> (&[u8], Option<&[u8]>) {
    let by_size = usize::try_from(size).ok().and_then(|size| text.split_at_checked(text.len().checked_sub(size)?));
    let by_size = by_size.and_then(|(name, link)| Some((name.strip_suffix(b" ")?, link)));
    match by_size.filter(|(name, _)| !name.is_empty()).or_else(|| split(text)) {
        Some((name, link)) => (name, Some(link)),
        None => (text, None),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Figure A.3 of the thesis.
    pub(crate) const FIGURE: &str = include_str!("figure_a3.txt");

    pub(crate) fn lines(text: &[u8]) -> Result<Vec<Line>, String> {
        let (mut reader, mut lines) = (ListingReader::new(text), Vec::new());
        while let Some(line) = reader.read()? {
            lines.push(line);
        }
        Ok(lines)
    }

    pub(crate) fn text(lines: &[Line]) -> Vec<u8> {
        let mut text = Vec::new();
        lines.iter().for_each(|line| line.put(&mut text));
        text
    }

    #[test]
    fn figure_a3_comes_back_byte_for_byte() {
        let read = lines(FIGURE.as_bytes()).expect("a listing");
        assert_eq!(String::from_utf8(text(&read)).expect("plain"), FIGURE);
        assert_eq!(read.iter().filter(|line| matches!(line, Line::Directory(_))).count(), 5);
        let link = Listed {
            inode: 21377,
            kind: Kind::Link,
            size: 10,
            name: b"include".to_vec(),
            link: Some(b"../include".to_vec()),
        };
        assert!(read.contains(&Line::Entry(link)));
        let mut reader = ListingReader::new(FIGURE.as_bytes());
        while reader.read().expect("a listing").is_some() {}
        assert!(!reader.has_end(), "the figure has none");
    }

    #[test]
    fn links_are_told_from_their_names() {
        for (text, name, link) in [
            ("5 2 3 a b c", "a", Some("b c")),
            ("5 2 1 a b c", "a b", Some("c")),
            ("5 2 9 a b", "a", Some("b")),
            ("5 2 3 abc", "abc", None),
            ("5 2 3 abcd", "abcd", None),
        ] {
            let Ok(Line::Entry(listed)) = entry(text.as_bytes()) else { panic!("{text}") };
            assert_eq!(
                (listed.name.as_slice(), listed.link.as_deref()),
                (name.as_bytes(), link.map(str::as_bytes)),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, expected) in [
            ("", "empty"),
            ("./ 2\n", "line 1: it is no root"),
            ("src 2 5\n", "line 1: it is no root"),
            ("./ 2 512", "line 1: it ends within a line"),
            ("./ 2 512\n5 0 7 a", "line 2: it ends within a line"),
            ("./ 2 512\n5 3 7 a\n", "line 2: it is neither"),
            ("./ 2 512\n5 0 -7 a\n", "line 2: it is neither"),
            ("./ 2 512\n5 0 07 a\n", "line 2: it is neither"),
            ("./ 2 512\n5 0 7 a/b\n", "line 2: a name"),
            ("./ 2 512\n5 0 7 ..\n", "line 2: a name"),
            ("./ 2 512\n~~\n5 0 7 a\n", "line 3: it is no directory"),
        ] {
            let error = lines(text.as_bytes()).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = format!("./ 2 512\n5 0 7 {}\n", "a".repeat(1 << 17));
        assert!(lines(long.as_bytes()).expect_err("long").contains("line 2"));
    }
}
