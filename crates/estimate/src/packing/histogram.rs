//! Sizes of files, and how many have each.

use crate::common::{Refused, is_heading};
use std::collections::BTreeMap;
use std::io::BufRead;

/// Most different sizes of a file that is read.
const SIZES_MAX: usize = 1 << 20;
/// Longest row, bytes.
const ROW_LEN_MAX: u64 = 256;

/// Sizes in bytes with the number of files that have them. Sizes may be grouped, as by the mean of each power of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    /// Counts files of a size.
    pub fn add(&mut self, size: u64, count: u64) {
        let sum = self.0.entry(size).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Sizes and counts, the smallest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(size, count)| (*size, *count))
    }

    /// Files.
    pub fn files(&self) -> f64 {
        self.iter().map(|(_, count)| count as f64).sum()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> f64 {
        self.iter().map(|(size, count)| size as f64 * count as f64).sum()
    }

    /// Reads rows of a size in bytes and a count, with a comma or space between. A first row without any number is a heading;
    /// empty rows do not count. What `find -printf '%s 1\n'` prints can be read.
    pub fn read(mut input: impl BufRead) -> Result<Histogram, Refused> {
        let mut histogram = Histogram::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let refuse = |what: &str| {
                Refused(format!("row {number}: {what}; write rows of a size in bytes and a count, as in 4096 12"))
            };
            let taken = std::io::Read::take(&mut input, ROW_LEN_MAX).read_until(b'\n', &mut line);
            if taken.map_err(|error| refuse(&error.to_string()))? == 0 {
                break;
            }
            let text = std::str::from_utf8(&line).map_err(|_| refuse("it is no text"))?.trim();
            let fields = || text.split([',', ' ', '\t']).filter(|column| !column.is_empty());
            let mut columns = fields().map(|column| column.parse::<u64>().ok());
            match (columns.next(), columns.next(), columns.next()) {
                (None, ..) => {}
                (Some(Some(size)), Some(Some(count)), None) => histogram.add(size, count),
                _ if number == 1 && is_heading(fields()) => {}
                _ => return Err(refuse("it is not two whole numbers")),
            }
            if histogram.0.len() > SIZES_MAX {
                return Err(refuse("there are more than a million different sizes; round them first"));
            }
        }
        if histogram.files() == 0.0 {
            return Err(Refused("there are no files; write rows of a size in bytes and a count, as in 4096 12".into()));
        }
        Ok(histogram)
    }
}
