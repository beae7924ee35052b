//! Flags of a mount, by the names that mount(8) has for them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Flags of a mount: words with commas between them, as after `mount -o`. Of words that contradict each other the last counts.
/// They are the kernel's to keep, but for `noatime`, which a server must heed itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Flags(pub(crate) libc::c_ulong);

/// A word that is none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFlag(String);

/// The word, that for the contrary, and the kernel's bit.
const FLAGS: [(&str, &str, libc::c_ulong); 7] = [
    ("ro", "rw", libc::MS_RDONLY),
    ("nosuid", "suid", libc::MS_NOSUID),
    ("nodev", "dev", libc::MS_NODEV),
    ("noexec", "exec", libc::MS_NOEXEC),
    ("noatime", "atime", libc::MS_NOATIME),
    ("nodiratime", "diratime", libc::MS_NODIRATIME),
    ("sync", "async", libc::MS_SYNCHRONOUS),
];
/// What is so in any case.
const ALWAYS: &str = "relatime";

impl Flags {
    /// Nothing can be written.
    pub fn read_only(self) -> bool {
        self.0 & libc::MS_RDONLY != 0
    }
    /// Reading changes no access times.
    pub fn no_access_times(self) -> bool {
        self.0 & libc::MS_NOATIME != 0
    }
    /// Takes what a word says. Whether it is a flag.
    pub fn take(&mut self, word: &str) -> bool {
        let Some((on, _, bit)) = FLAGS.iter().find(|(on, off, _)| *on == word || *off == word) else {
            return word == ALWAYS;
        };
        if *on == word {
            self.0 |= bit
        } else {
            self.0 &= !bit
        }
        true
    }
}

impl FromStr for Flags {
    type Err = UnknownFlag;
    fn from_str(text: &str) -> Result<Flags, UnknownFlag> {
        let mut flags = Flags::default();
        let unknown = text.split(',').find(|word| !word.is_empty() && !flags.take(word));
        unknown.map_or(Ok(flags), |word| Err(UnknownFlag(word.into())))
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = FLAGS.iter().filter(|(_, _, bit)| self.0 & bit != 0).map(|(on, ..)| *on);
        f.write_str(&set.collect::<Vec<_>>().join(","))
    }
}

impl fmt::Display for UnknownFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<_> = FLAGS.iter().flat_map(|(on, off, _)| [*on, *off]).chain([ALWAYS]).collect();
        write!(f, "{:?} is no flag of a mount; there are: {}", self.0, known.join(", "))
    }
}
impl std::error::Error for UnknownFlag {}

impl TryFrom<String> for Flags {
    type Error = UnknownFlag;
    fn try_from(text: String) -> Result<Flags, UnknownFlag> {
        text.parse()
    }
}
impl From<Flags> for String {
    fn from(flags: Flags) -> String {
        flags.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let flags: Flags = "ro,nosuid,relatime,,nodev,suid".parse().unwrap();
        assert_eq!((flags.to_string().as_str(), flags.read_only(), flags.no_access_times()), ("ro,nodev", true, false));
        assert_eq!(flags.to_string().parse(), Ok(flags));
        assert_eq!("rw,async".parse(), Ok(Flags::default()));
        for chosen in 0..1_u32 << FLAGS.len() {
            let words: Vec<_> = (0..FLAGS.len()).filter(|at| chosen >> at & 1 != 0).map(|at| FLAGS[at].0).collect();
            assert_eq!(words.join(",").parse::<Flags>().unwrap().to_string(), words.join(","));
        }
        let unknown = "ro,no-such".parse::<Flags>().unwrap_err().to_string();
        assert!(unknown.starts_with("\"no-such\" is no flag") && unknown.contains("noexec, exec"), "{unknown}");
    }
}
