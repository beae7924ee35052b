//! Codes inside one disk, and which patterns of lost sectors they recover (section 4 of the paper).
//!
//! A segment is data sectors and then parity sectors, all beside each other on the disk.

use crate::common::Refused;
use std::fmt;
use std::str::FromStr;

/// Most sectors of a segment.
const SEGMENT_MAX: u32 = 4096;

/// A code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// One parity over `data` sectors.
    Spc {
        /// Data sectors.
        data: u32,
    },
    /// Any `parity` lost sectors are recovered.
    Mds {
        /// Data sectors.
        data: u32,
        /// Parity sectors.
        parity: u32,
    },
    /// Interleaved parity: each parity is over every `parity`-th sector.
    Ipc {
        /// Data sectors, a multiple of `parity`.
        data: u32,
        /// Parity sectors.
        parity: u32,
    },
    /// Columns with row and diagonal parity; `prime` - 1 sectors in a column.
    Cdp {
        /// A prime.
        prime: u32,
    },
}

impl Code {
    /// Refuses what is no such code.
    pub fn validate(self) -> Result<Code, Refused> {
        let refuse = |why: String| Err(Refused(format!("{self} is no code: {why}")));
        match self {
            Code::Cdp { prime } if !(3..=61).contains(&prime) || !is_prime(prime) => {
                refuse(format!("{prime} is no prime from 3 to 61"))
            }
            Code::Ipc { data, parity } if parity == 0 || !data.is_multiple_of(parity) => {
                refuse("data must be a multiple of parity sectors".into())
            }
            _ if self.data() == 0 || self.parity() == 0 || self.data().saturating_add(self.parity()) > SEGMENT_MAX => {
                refuse(format!("it must have data and parity, at most {SEGMENT_MAX} sectors together"))
            }
            code => Ok(code),
        }
    }

    /// Data sectors of a segment.
    pub fn data(self) -> u32 {
        match self {
            Code::Spc { data } | Code::Mds { data, .. } | Code::Ipc { data, .. } => data,
            Code::Cdp { prime } => (prime - 1) * (prime - 1),
        }
    }

    /// Parity sectors of a segment.
    pub fn parity(self) -> u32 {
        match self {
            Code::Spc { .. } => 1,
            Code::Mds { parity, .. } | Code::Ipc { parity, .. } => parity,
            Code::Cdp { prime } => 2 * (prime - 1),
        }
    }

    /// All sectors of a segment.
    pub fn segment(self) -> u32 {
        self.data() + self.parity()
    }

    /// Sectors that stay lost when those at `lost` (places in the segment, each once) are.
    pub fn unrecovered(self, lost: &[u32]) -> u32 {
        let count = lost.len() as u32;
        match self {
            Code::Spc { .. } | Code::Mds { .. } => {
                if count > self.parity() {
                    count
                } else {
                    0
                }
            }
            Code::Ipc { parity, .. } => {
                let column = |place: &u32| place % parity;
                lost.iter()
                    .filter(|place| lost.iter().filter(|other| column(other) == column(place)).count() > 1)
                    .count() as u32
            }
            Code::Cdp { prime } => peel(prime, lost),
        }
    }
}

/// Solves rows and diagonals with one unknown, again and again; returns how many are left.
fn peel(prime: u32, lost: &[u32]) -> u32 {
    let rows = prime - 1;
    let mut unknown = lost.to_vec();
    // Groups are the rows, and the diagonals but one.
    let row = |place: u32| (place / rows < prime).then_some(place % rows);
    let diagonal = |place: u32| {
        let (column, row) = (place / rows, place % rows);
        // The last column holds the diagonal parities themselves.
        let diagonal = if column == prime { row } else { (row + column) % prime };
        (diagonal < rows).then_some(diagonal)
    };
    let mut counts = vec![0u32; 2 * rows as usize];
    let groups =
        |place: u32| row(place).map(|row| row as usize).into_iter().chain(diagonal(place).map(|d| (rows + d) as usize));
    unknown.iter().for_each(|place| groups(*place).for_each(|group| counts[group] += 1));
    while let Some(solved) = unknown.iter().position(|place| groups(*place).any(|group| counts[group] == 1)) {
        groups(unknown.swap_remove(solved)).for_each(|group| counts[group] -= 1);
    }
    unknown.len() as u32
}

fn is_prime(number: u32) -> bool {
    number > 1
        && (2..number).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Spc { data } => write!(f, "spc:{data}+1"),
            Code::Mds { data, parity } => write!(f, "mds:{data}+{parity}"),
            Code::Ipc { data, parity } => write!(f, "ipc:{data}+{parity}"),
            Code::Cdp { prime } => write!(f, "cdp:{prime}"),
        }
    }
}

impl FromStr for Code {
    type Err = Refused;
    fn from_str(text: &str) -> Result<Code, Refused> {
        let refuse = || Refused(format!("{text:?} is no code; write spc:8+1, mds:16+2, ipc:56+7 or cdp:23"));
        let (name, numbers) = text.split_once(':').ok_or_else(refuse)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| refuse());
        if name == "cdp" {
            return Code::Cdp { prime: number(numbers)? }.validate();
        }
        let (data, parity) = numbers.split_once('+').ok_or_else(refuse)?;
        let (data, parity) = (number(data)?, number(parity)?);
        match name {
            "spc" if parity == 1 => Code::Spc { data },
            "mds" => Code::Mds { data, parity },
            "ipc" => Code::Ipc { data, parity },
            _ => return Err(refuse()),
        }
        .validate()
    }
}
