//! Sizes as people write them: `20GiB`, `512 MiB`, `1.5TB`, `4096`.

use crate::Bytes;
use std::fmt;
use std::str::FromStr;

const SUFFIXES: [(&str, u64); 17] = [
    ("", 1),
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("P", 1 << 50),
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("TIB", 1 << 40),
    ("PIB", 1 << 50),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
];

/// A size that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseBytesError(String);

impl fmt::Display for ParseBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not a size: write a number and a unit, such as 4096, 512MiB or 1.5TB", self.0)
    }
}
impl std::error::Error for ParseBytesError {}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let refuse = || ParseBytesError(text.chars().take(40).collect());
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(split);
        let suffix = suffix.trim().to_ascii_uppercase();
        let unit = SUFFIXES.iter().find(|(name, _)| *name == suffix).ok_or_else(refuse)?.1;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().map_err(|_| refuse())?;
        let bytes = whole.checked_mul(unit).ok_or_else(refuse)?;
        if fraction.len() > 15 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(refuse());
        }
        let part = if fraction.is_empty() {
            0
        } else {
            let tenths: u128 = fraction.parse().map_err(|_| refuse())?;
            (u128::from(unit) * tenths / 10u128.pow(fraction.len() as u32)) as u64
        };
        let bytes = bytes.checked_add(part).ok_or_else(refuse)?;
        Ok(Bytes(bytes))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let power = (63 - self.0.leading_zeros()) / 10;
        let whole = self.0 as f64 / (1u64 << (10 * power)) as f64;
        let unit = UNITS[power as usize - 1];
        if self.0.trailing_zeros() >= 10 * power {
            write!(f, "{whole:.0} {unit}")
        } else {
            write!(f, "{whole:.1} {unit}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("20GiB", 20 << 30),
            ("20G", 20 << 30),
            ("1.5 TiB", 3 << 39),
            ("1TB", 1_000_000_000_000),
            ("512mib", 512 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "x", "12 parsecs", "-1", "99999999999 PiB", "1.x GiB", "1..5M"] {
            assert!(text.parse::<Bytes>().is_err(), "{text} must be refused");
        }
    }

    #[test]
    fn sizes_print_with_a_unit() {
        assert_eq!(Bytes(512).to_string(), "512 B");
        assert_eq!(Bytes::gib(20).to_string(), "20 GiB");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
    }
}
