//! Times as people write them: `90`, `90s`, `10m`, `10min`, `2h`.

use std::fmt;
use std::time::Duration;

/// A time that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseDurationError(String);

impl fmt::Display for ParseDurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not a time: write 90s, 10m or 2h", self.0)
    }
}
impl std::error::Error for ParseDurationError {}

/// Reads a whole number of seconds (`s`, or no unit), minutes (`m`, `min`) or hours (`h`).
pub fn duration(text: &str) -> Result<Duration, ParseDurationError> {
    let refuse = || ParseDurationError(text.chars().take(40).collect());
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return Err(refuse()),
    };
    let number: u64 = number.parse().map_err(|_| refuse())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(refuse)
}

/// As [`duration`], but not zero.
pub fn some_duration(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(time) if time.is_zero() => Err(format!("'{text}' is no time to do anything in: write 90s, 10m or 2h")),
        read => read.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [("0", 0), ("90", 90), ("90s", 90), ("10m", 600), ("10min", 600), ("2h", 7200)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "1.5h", "-1s", "10 m", "1d", "99999999999999999999h", "5307286653013989h"] {
            assert!(duration(text).is_err(), "{text} must be refused");
        }
        assert_eq!(some_duration("1s"), Ok(Duration::from_secs(1)));
        for text in ["0", "0h", "x"] {
            assert!(some_duration(text).is_err(), "{text} must be refused");
        }
    }
}
