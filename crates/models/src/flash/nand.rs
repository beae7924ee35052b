//! NAND flash: dies on channels, the times of their operations, and how blocks wear out.
//!
//! A die does one thing at a time. A channel is shared by its dies; it is accounted for as a server whose backlog grows
//! by each transfer, so a transfer that must first wait for a busy die does not block those of other dies.

use crate::chance::Chance;
use crate::error::{SpecError, law, size, time_ns};
use crate::keep::{put_list, require, take_list};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Bits per cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cell {
    /// One.
    Slc,
    /// Two.
    Mlc,
    /// Three.
    Tlc,
}

/// The flash of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NandSpec {
    /// Channels to the controller.
    pub channels: u32,
    /// Dies on each channel.
    pub ways: u32,
    /// Erase blocks of a die.
    pub blocks_per_die: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Bytes of a page, as in "4KiB": the unit of mapping.
    pub page: String,
    /// Bits per cell; so many values `read_us` and `program_us` have, for the kinds of pages in turn.
    pub cell: Cell,
    /// Time to read a page into the register of the die, microseconds.
    pub read_us: Vec<f64>,
    /// Time to program a page, microseconds.
    pub program_us: Vec<f64>,
    /// Time to erase a block, milliseconds.
    pub erase_ms: f64,
    /// Rate of a channel, MB/s.
    pub channel_mb_s: f64,
    /// Mean of the cycles of program and erase that a block bears.
    pub endurance_cycles: f64,
    /// Standard deviation between blocks; the distribution is normal, cut at the least and the most.
    pub endurance_deviation: f64,
    /// The fewest cycles that a block bears.
    pub endurance_least: f64,
    /// The most cycles that a block bears.
    pub endurance_most: f64,
    /// Blocks that are bad from the start, parts per million.
    pub bad_blocks_ppm: f64,
    /// By what part of itself the time to erase has grown at the end of a block's life.
    pub erase_growth: f64,
    /// By what part of itself the time to program has shrunk by then.
    pub program_shrink: f64,
}

/// Steps in which times change with wear (Boboila and Desnoyers, FAST '10, Figure 5: quantised).
const WEAR_STEPS: u32 = 8;

/// Flash in some state.
#[derive(Clone, Debug)]
pub(crate) struct Nand {
    pub dies: u32,
    pub channels: u32,
    pub blocks_per_die: u32,
    pub pages_per_block: u32,
    pub page: u64,
    read_ns: Vec<u64>,
    /// Time to program each kind of page, step of wear by step.
    program_ns: Vec<u64>,
    /// Time to erase at each step of wear.
    erase_ns: Vec<u64>,
    transfer_ns: u64,
    /// Kind of each page of a block.
    kinds: Vec<u8>,
    /// Step of wear of each block, up to [`WEAR_STEPS`].
    steps: Vec<u8>,
    /// To find the die of a block, and the block of a page.
    per_die: Divisor,
    per_block: Divisor,
    /// When each die is free.
    die_ns: Vec<u64>,
    /// When each channel has worked off what it was given.
    channel_ns: Vec<u64>,
    /// Erases of each block so far.
    pub erases: Vec<u32>,
    /// Erases that each block bears; zero for one that is bad from the start.
    pub limit: Vec<u32>,
}

/// Divides by a number that is mostly a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    by: u32,
    shift: Option<u32>,
}

impl Divisor {
    pub(crate) fn new(by: u32) -> Divisor {
        Divisor { by, shift: by.is_power_of_two().then(|| by.trailing_zeros()) }
    }
    #[inline]
    pub(crate) fn quotient(self, of: u32) -> u32 {
        match self.shift {
            Some(shift) => of >> shift,
            None => of / self.by,
        }
    }
    #[inline]
    pub(crate) fn remainder(self, of: u32) -> u32 {
        of - self.quotient(of) * self.by
    }
}

/// How an operation on a page went: waiting for the die and the channel, and working.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Operation {
    pub done_ns: u64,
    pub busy_ns: u64,
}

impl NandSpec {
    /// Checks the description and makes a specimen.
    pub(crate) fn build(&self, chance: &mut Chance) -> Result<Nand, SpecError> {
        let count = |name: &str, value: u32, most: u32| {
            law((1..=most).contains(&value), name, value, &format!("there are 1 to {most} of them"))
        };
        count("nand.channels", self.channels, 256)?;
        count("nand.ways", self.ways, 256)?;
        count("nand.blocks_per_die", self.blocks_per_die, 1 << 20)?;
        count("nand.pages_per_block", self.pages_per_block, 1 << 14)?;
        let page = size("nand.page", &self.page)?;
        law(
            page.is_power_of_two() && (512..=1 << 20).contains(&page),
            "nand.page",
            &self.page,
            "a page is a power of two of bytes, 512 to 1 MiB",
        )?;
        let dies = self.channels * self.ways;
        let blocks = u64::from(dies) * u64::from(self.blocks_per_die);
        law(
            blocks * u64::from(self.pages_per_block) < 1 << 31,
            "nand.blocks_per_die",
            self.blocks_per_die,
            "a device has less than 2^31 pages",
        )?;
        let bits = match self.cell {
            Cell::Slc => 1,
            Cell::Mlc => 2,
            Cell::Tlc => 3,
        };
        let times = |name: &str, values: &[f64]| {
            law(
                values.len() == bits,
                name,
                format!("{values:?}"),
                &format!("cells of {bits} bits have {bits} kinds of pages, each with a time"),
            )?;
            values.iter().map(|&value| time_ns(name, value, 1e3)).collect::<Result<Vec<u64>, _>>()
        };
        let range = |name: &str, value: f64, most: f64, what: &str| {
            law(value.is_finite() && (0.0..=most).contains(&value), name, value, what)
        };
        range("nand.endurance_most", self.endurance_most, 4e9, "a block bears at most 4,000,000,000 cycles")?;
        law(
            1.0 <= self.endurance_least && self.endurance_least <= self.endurance_cycles,
            "nand.endurance_least",
            self.endurance_least,
            "a block bears a cycle at least, and the least is not above the mean",
        )?;
        law(
            self.endurance_cycles <= self.endurance_most,
            "nand.endurance_cycles",
            self.endurance_cycles,
            "the mean is not above the most",
        )?;
        range("nand.endurance_deviation", self.endurance_deviation, 1e9, "a deviation is not negative")?;
        range(
            "nand.bad_blocks_ppm",
            self.bad_blocks_ppm,
            100_000.0,
            "a maker sells no flash with more than a tenth bad",
        )?;
        range("nand.erase_growth", self.erase_growth, 100.0, "erasing becomes slower with wear")?;
        range(
            "nand.program_shrink",
            self.program_shrink,
            1.0,
            "programming becomes faster with wear, by no more than all",
        )?;
        law(
            self.channel_mb_s.is_finite() && (0.1..=1e5).contains(&self.channel_mb_s),
            "nand.channel_mb_s",
            self.channel_mb_s,
            "a channel moves 0.1 to 100,000 MB/s",
        )?;
        let limit = (0..blocks)
            .map(|_| {
                if self.bad_blocks_ppm > 0.0 && chance.unit() * 1e6 < self.bad_blocks_ppm {
                    return 0;
                }
                let sigmas = if self.endurance_deviation > 0.0 { chance.normal() } else { 0.0 };
                let cycles = self.endurance_cycles + sigmas * self.endurance_deviation;
                cycles.clamp(self.endurance_least, self.endurance_most) as u32
            })
            .collect();
        let fresh_ns = times("nand.program_us", &self.program_us)?;
        let erase_ns = time_ns("nand.erase_ms", self.erase_ms, 1e6)?;
        let wear = |step: u32| f64::from(step) / f64::from(WEAR_STEPS);
        let program_ns = |step: u32| {
            let left = 1.0 - self.program_shrink * wear(step);
            fresh_ns.iter().map(move |&fresh_ns| if step == 0 { fresh_ns } else { (fresh_ns as f64 * left) as u64 })
        };
        let erase_ns = |step: u32| match step {
            0 => erase_ns,
            step => (erase_ns as f64 * (1.0 + self.erase_growth * wear(step))) as u64,
        };
        Ok(Nand {
            dies,
            channels: self.channels,
            blocks_per_die: self.blocks_per_die,
            pages_per_block: self.pages_per_block,
            page,
            read_ns: times("nand.read_us", &self.read_us)?,
            program_ns: (0..=WEAR_STEPS).flat_map(program_ns).collect(),
            erase_ns: (0..=WEAR_STEPS).map(erase_ns).collect(),
            transfer_ns: (page as f64 * 1e3 / self.channel_mb_s).round() as u64,
            kinds: (0..self.pages_per_block).map(|page| (page as usize % bits) as u8).collect(),
            steps: vec![0; blocks as usize],
            per_die: Divisor::new(self.blocks_per_die),
            per_block: Divisor::new(self.pages_per_block),
            die_ns: vec![0; dies as usize],
            channel_ns: vec![0; self.channels as usize],
            erases: vec![0; blocks as usize],
            limit,
        })
    }
}

impl Nand {
    /// What survives a restart.
    pub fn save(&self, to: &mut dyn Write) -> io::Result<()> {
        put_list(to, &self.erases)
    }

    /// The reverse of [`save`](Nand::save).
    pub fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        let erases = take_list(from, self.erases.len())?;
        require(erases.len() == self.erases.len(), "is of another device")?;
        self.erases = erases;
        (0..self.blocks()).for_each(|block| self.note_wear(block));
        Ok(())
    }

    /// Whether a block can still be used.
    pub fn good(&self, block: u32) -> bool {
        self.erases[block as usize] < self.limit[block as usize]
    }

    /// Blocks of a die.
    pub fn blocks_of(&self, die: u32) -> std::ops::Range<u32> {
        die * self.blocks_per_die..(die + 1) * self.blocks_per_die
    }

    pub fn blocks(&self) -> u32 {
        self.dies * self.blocks_per_die
    }

    #[inline]
    fn read_time_ns(&self, page: u32) -> u64 {
        self.read_ns[usize::from(self.kinds[page as usize])]
    }

    /// Wear of a block comes in steps.
    fn note_wear(&mut self, block: u32) {
        let (erases, limit) = (self.erases[block as usize], self.limit[block as usize].max(1));
        let step = u64::from(erases) * u64::from(WEAR_STEPS) / u64::from(limit);
        self.steps[block as usize] = step.min(u64::from(WEAR_STEPS)) as u8;
    }

    #[inline]
    fn program_time_ns(&self, block: u32, page: u32) -> u64 {
        let step = usize::from(self.steps[block as usize]);
        self.program_ns[step * self.read_ns.len() + usize::from(self.kinds[page as usize])]
    }

    /// The next transfer on the channel of a die that can begin at `ready_ns`, given to it at `now_ns`.
    fn transfer(&mut self, die: u32, now_ns: u64, ready_ns: u64) -> u64 {
        let channel = &mut self.channel_ns[(die % self.channels) as usize];
        let begin_ns = ready_ns.max(*channel);
        *channel = (*channel).max(now_ns) + self.transfer_ns;
        begin_ns + self.transfer_ns
    }

    /// Reads a page of a die.
    pub fn read(&mut self, die: u32, page: u32, now_ns: u64) -> Operation {
        let read_ns = self.read_time_ns(page);
        let sensed_ns = now_ns.max(self.die_ns[die as usize]) + read_ns;
        let done_ns = self.transfer(die, now_ns, sensed_ns);
        self.die_ns[die as usize] = done_ns;
        Operation { done_ns, busy_ns: read_ns + self.transfer_ns }
    }

    /// Programs a page of a block with data from the controller.
    pub fn program(&mut self, block: u32, page: u32, now_ns: u64) -> Operation {
        let die = self.die_of(block);
        let program_ns = self.program_time_ns(block, page);
        let ready_ns = now_ns.max(self.die_ns[die as usize]);
        let done_ns = self.transfer(die, now_ns, ready_ns) + program_ns;
        self.die_ns[die as usize] = done_ns;
        Operation { done_ns, busy_ns: self.transfer_ns + program_ns }
    }

    /// Moves a page inside of its die.
    pub fn copy(&mut self, to_block: u32, page: u32, now_ns: u64) {
        let time_ns = self.read_time_ns(page) + self.program_time_ns(to_block, page);
        let die = self.die_of(to_block);
        let die = &mut self.die_ns[die as usize];
        *die = (*die).max(now_ns) + time_ns;
    }

    /// Erases a block; `false` if it is worn out by that and must not be used again.
    pub fn erase(&mut self, block: u32, now_ns: u64) -> bool {
        let time_ns = self.erase_ns[usize::from(self.steps[block as usize])];
        let die = self.die_of(block);
        let die = &mut self.die_ns[die as usize];
        *die = (*die).max(now_ns) + time_ns;
        self.erases[block as usize] += 1;
        self.note_wear(block);
        self.good(block)
    }

    /// Blocks are numbered die by die.
    #[inline]
    pub fn die_of(&self, block: u32) -> u32 {
        self.per_die.quotient(block)
    }

    /// Block of a page of the device, and its place there.
    #[inline]
    pub fn block_of(&self, page: u32) -> (u32, u32) {
        (self.per_block.quotient(page), self.per_block.remainder(page))
    }

    /// When a die is free.
    pub fn die_free_ns(&self, die: u32) -> u64 {
        self.die_ns[die as usize]
    }

    /// When everything given to the flash is done.
    pub fn all_done_ns(&self) -> u64 {
        self.die_ns.iter().copied().max().unwrap_or(0)
    }
}
