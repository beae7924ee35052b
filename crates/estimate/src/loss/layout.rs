//! How data lie on drives.

use crate::common::Refused;
use crate::idr::Code;
use std::fmt;
use std::str::FromStr;

/// Most drives of an array.
const DRIVES_MAX: u32 = 200;

/// How data lie on drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same on each.
    Mirror(u32),
    /// One parity.
    Raid5(u32),
    /// Two parities.
    Raid6(u32),
    /// Reed-Solomon: data and parity drives.
    Rs(u32, u32),
    /// One drive, perhaps with a code inside.
    Single(Option<Code>),
}

impl Layout {
    /// All its drives.
    pub fn drives(self) -> u32 {
        match self {
            Layout::Mirror(drives) | Layout::Raid5(drives) | Layout::Raid6(drives) => drives,
            Layout::Rs(data, parity) => data + parity,
            Layout::Single(_) => 1,
        }
    }

    /// Drives that may be gone.
    pub fn tolerance(self) -> u32 {
        match self {
            Layout::Mirror(drives) => drives - 1,
            Layout::Raid5(_) => 1,
            Layout::Raid6(_) => 2,
            Layout::Rs(_, parity) => parity,
            Layout::Single(_) => 0,
        }
    }

    /// Part of the raw capacity that holds data.
    pub fn efficiency(self) -> f64 {
        match self {
            Layout::Single(Some(code)) => f64::from(code.data()) / f64::from(code.segment()),
            _ => 1.0 - f64::from(self.tolerance()) / f64::from(self.drives()),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Mirror(drives) => write!(f, "mirror:{drives}"),
            Layout::Raid5(drives) => write!(f, "raid5:{drives}"),
            Layout::Raid6(drives) => write!(f, "raid6:{drives}"),
            Layout::Rs(data, parity) => write!(f, "rs:{data}+{parity}"),
            Layout::Single(None) => f.write_str("single"),
            Layout::Single(Some(code)) => write!(f, "single+{code}"),
        }
    }
}

impl FromStr for Layout {
    type Err = Refused;
    fn from_str(text: &str) -> Result<Layout, Refused> {
        let refuse = || {
            Refused(format!(
                "{text:?} is no layout; write mirror:2, raid5:6, raid6:12, rs:10+4, single, or single with a code inside as in \
                 single+spc:8+1, single+mds:16+2, single+ipc:56+7 or single+cdp:23"
            ))
        };
        if text == "single" {
            return Ok(Layout::Single(None));
        }
        if let Some(code) = text.strip_prefix("single+") {
            return Ok(Layout::Single(Some(code.parse()?)));
        }
        let (name, numbers) = text.split_once(':').ok_or_else(refuse)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| refuse());
        let (layout, least) = match name {
            "mirror" => (Layout::Mirror(number(numbers)?), 2),
            "raid5" => (Layout::Raid5(number(numbers)?), 3),
            "raid6" => (Layout::Raid6(number(numbers)?), 4),
            "rs" => {
                let (data, parity) = numbers.split_once('+').ok_or_else(refuse)?;
                let (data, parity) = (number(data)?, number(parity)?);
                if data == 0 || parity == 0 || data > DRIVES_MAX || parity > 8 {
                    return Err(Refused(format!(
                        "{text:?}: data drives are from 1 to {DRIVES_MAX}, parity drives from 1 to 8"
                    )));
                }
                (Layout::Rs(data, parity), 2)
            }
            _ => return Err(refuse()),
        };
        let most = if name == "mirror" { 9 } else { DRIVES_MAX };
        if !(least..=most).contains(&layout.drives()) {
            return Err(Refused(format!(
                "{text:?} has {} drives; {name} takes from {least} to {most}",
                layout.drives()
            )));
        }
        Ok(layout)
    }
}
