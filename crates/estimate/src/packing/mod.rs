//! What it saves to put small files together.
//!
//! Zhang, Catanese and Wang, "The composite-file file system", FAST '16: small files share one inode and lie one behind
//! another, with a table that says where. Counted are blocks, inodes, and on a bucket the requests that write them and
//! their price; and which files are used together ([`mining`]). What grouping does for the speed of reading is not estimated.

mod histogram;
pub mod mining;
#[cfg(test)]
mod tests;

pub use histogram::Histogram;

use crate::common::{About, Estimate, Inputs, Predicted, Refused, Step, within};
use ashlar_report::{Axis, Origin, Plot, Series, number};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::fmt;

/// What this estimator is.
pub static ABOUT: About = About {
    name: "packing",
    what: "what it saves to put small files together",
    source: "Zhang, Catanese, Wang: The composite-file file system, FAST 2016",
    version: 1,
    formulas: "before: blocks = sum of ceil(size / block); one inode and ceil(size / part) PUT requests, at least one, for each file.\n\
               after: small files lie in composites of at most so many bytes and files, with a table entry each;\n\
               blocks = composites x ceil(their bytes / (1 - dead) / block), one inode for each composite, and a table block where\n\
               entries do not fit the inode. Large files stay as they are.",
};

/// How files are packed, and what things cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packing {
    /// Bytes of a block.
    pub block: f64,
    /// Files up to this size are packed.
    pub small: f64,
    /// Most bytes of a composite.
    pub composite: f64,
    /// Most files of a composite; of a directory's files one cannot take more.
    pub files: f64,
    /// Bytes of a table entry.
    pub entry: f64,
    /// Part of a composite that deleted files have left, from 0 to 0.5, where it is compacted.
    pub dead: f64,
    /// Bytes of one PUT request at most.
    pub part: f64,
    /// Dollars for 1000 PUT requests.
    pub put_price: f64,
}

impl Default for Packing {
    /// Composites of up to 8 MiB and 1000 files, entries of 25 bytes, a quarter dead, and the price of a large provider.
    fn default() -> Packing {
        Packing {
            block: 4096.0,
            small: 65536.0,
            composite: f64::from(8 << 20),
            files: 1000.0,
            entry: 25.0,
            dead: 0.25,
            part: f64::from(8 << 20),
            put_price: 0.005,
        }
    }
}

/// What files take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Taken {
    /// Blocks of data and tables.
    pub blocks: f64,
    /// Bytes of those.
    pub block_bytes: f64,
    /// Inodes.
    pub inodes: f64,
    /// PUT requests that write everything once.
    pub put_requests: f64,
    /// Their price, dollars.
    pub put_dollars: f64,
}

/// What `plan estimate packing` answers.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Answer {
    /// Files.
    pub files: f64,
    /// Bytes of them.
    pub bytes: f64,
    /// Part of the files that is packed.
    pub small_files: f64,
    /// Part of the bytes that is packed.
    pub small_bytes: f64,
    /// Each file by itself.
    pub before: Taken,
    /// Small files packed.
    pub after: Taken,
    /// Composites.
    pub composites: f64,
    /// Which files are used together, if accesses were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grouping: Option<mining::Grouping>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: f64| number(part * 100.0);
        writeln!(
            f,
            "{} files of {} bytes; {} % of the files and {} % of the bytes are packed into {}",
            number(self.files),
            number(self.bytes),
            percent(self.small_files),
            percent(self.small_bytes),
            number(self.composites)
        )?;
        writeln!(f, "{:<16}{:>14}{:>14}{:>12}", "", "before", "after", "saved")?;
        let rows = [
            ("blocks", self.before.blocks, self.after.blocks),
            ("bytes of blocks", self.before.block_bytes, self.after.block_bytes),
            ("inodes", self.before.inodes, self.after.inodes),
            ("PUT requests", self.before.put_requests, self.after.put_requests),
            ("their price, $", self.before.put_dollars, self.after.put_dollars),
        ];
        for (name, before, after) in rows {
            let saved = if before > 0.0 { format!("{:.1} %", (1.0 - after / before) * 100.0) } else { String::new() };
            writeln!(f, "{name:<16}{:>14}{:>14}{saved:>12}", number(before), number(after))?;
        }
        if let Some(grouping) = &self.grouping {
            writeln!(
                f,
                "{} accesses: {} of {} files are in {} groups, {} % of the accesses go to these, {} % from one to another of a group",
                grouping.accesses,
                grouping.grouped_files,
                grouping.files,
                grouping.groups,
                percent(grouping.grouped_accesses),
                percent(grouping.followed)
            )?;
            for mining::Group { files, accesses } in &grouping.largest {
                writeln!(f, "    {accesses} times {}", files.join(", "))?;
            }
        }
        Ok(())
    }
}

impl Packing {
    fn validate(&self) -> Result<(), Refused> {
        within("the size of a block, bytes,", self.block, 512.0, 1e9)?;
        within("the size of small files, bytes,", self.small, 1.0, self.composite)?;
        within("the size of a composite, bytes,", self.composite, 1.0, 1e12)?;
        within("the files of a composite", self.files, 1.0, 1e6)?;
        within("the size of a table entry, bytes,", self.entry, 0.0, 4096.0)?;
        within("the dead part of composites", self.dead, 0.0, 0.5)?;
        within("the size of a part, bytes,", self.part, 1024.0, 1e12)?;
        within("the price of 1000 PUT requests", self.put_price, 0.0, 1e6)
    }

    fn file(&self, size: f64) -> Taken {
        let blocks = (size / self.block).ceil();
        let put_requests = (size / self.part).ceil().max(1.0);
        self.taken(blocks, 1.0, put_requests)
    }

    fn taken(&self, blocks: f64, inodes: f64, put_requests: f64) -> Taken {
        let put_dollars = put_requests / 1000.0 * self.put_price;
        Taken { blocks, block_bytes: blocks * self.block, inodes, put_requests, put_dollars }
    }

    /// What files take before and after.
    pub fn pack(&self, histogram: &Histogram) -> Answer {
        let add = |sum: Taken, one: Taken, count: f64| {
            let blocks = sum.blocks + count * one.blocks;
            self.taken(blocks, sum.inodes + count * one.inodes, sum.put_requests + count * one.put_requests)
        };
        let (mut before, mut after, mut files, mut bytes) = (Taken::default(), Taken::default(), 0.0, 0.0);
        for (size, count) in histogram.iter() {
            let (size, count) = (size as f64, count as f64);
            before = add(before, self.file(size), count);
            if size <= self.small {
                (files, bytes) = (files + count, bytes + size * count);
            } else {
                after = add(after, self.file(size), count);
            }
        }
        let composites = (bytes / self.composite).max(files / self.files).ceil();
        if composites > 0.0 {
            let (each, held) = (bytes / composites / (1.0 - self.dead), files / composites);
            let table = (held * self.entry / self.block).ceil();
            let blocks = (each / self.block).ceil() + table;
            let put_requests = ((each + held * self.entry) / self.part).ceil().max(1.0);
            after = add(after, self.taken(blocks, 1.0, put_requests), composites);
        }
        let part = |small: f64, all: f64| if all > 0.0 { small / all } else { 0.0 };
        let (all_files, all_bytes) = (histogram.files(), histogram.bytes());
        Answer {
            files: all_files,
            bytes: all_bytes,
            small_files: part(files, all_files),
            small_bytes: part(bytes, all_bytes),
            before,
            after,
            composites,
            grouping: None,
        }
    }
}

/// Estimates. `name` says what the histogram is of.
pub fn estimate(name: &str, histogram: &Histogram, packing: &Packing) -> Result<Estimate<Answer>, Refused> {
    packing.validate()?;
    let answer = packing.pack(histogram);
    let main = answer.after.blocks;
    let mut estimate = Estimate::new(&ABOUT, format!("packing {name}"), inputs(name, histogram, packing), answer);
    let with = |change: &dyn Fn(&mut Packing)| {
        let mut other = *packing;
        change(&mut other);
        other.pack(histogram).after
    };
    let (fresh, worn) = (with(&|p| p.dead = 0.0), with(&|p| p.dead = 0.5));
    let predicted = |quantity: &str, unit: &str, of: fn(&Taken) -> f64| Predicted {
        quantity: quantity.into(),
        unit: unit.into(),
        value: of(&estimate.answer.after),
        low: of(&fresh).min(of(&estimate.answer.after)),
        high: of(&worn).max(of(&estimate.answer.after)),
        confidence: 0.8,
        range_from: "composites without dead bytes, and just before they are compacted".into(),
    };
    let predictions = vec![
        predicted("blocks", "blocks", |taken| taken.blocks),
        predicted("inodes", "inodes", |taken| taken.inodes),
        predicted("put_requests", "requests", |taken| taken.put_requests),
    ];
    estimate.predictions = predictions;
    estimate.assumptions = vec![
        "files that are small can be put together whatever directory they are in, up to the files of a composite"
            .into(),
        format!("{} % of a composite is dead on average; it is compacted at 50 %", number(packing.dead * 100.0)),
        "a file takes whole blocks and one inode; extents, directories and inline data do not count".into(),
        "every file is written once; a change of a packed file writes its composite's part again, which does not count"
            .into(),
    ];
    estimate.judge(
        main,
        vec![
            ("composites without dead bytes".into(), fresh.blocks),
            ("composites half dead".into(), worn.blocks),
            (
                "small files are those up to a quarter of the size".into(),
                with(&|p| p.small = (p.small / 4.0).max(1.0)).blocks,
            ),
            ("ten files to a composite".into(), with(&|p| p.files = 10.0).blocks),
            ("blocks four times as large".into(), with(&|p| p.block *= 4.0).blocks * 4.0),
        ],
    );
    estimate.explanation = steps(packing, &estimate.answer);
    Ok(estimate)
}

fn inputs(name: &str, histogram: &Histogram, packing: &Packing) -> Inputs {
    let Packing { block, small, composite, files, entry, dead, part, put_price } = packing;
    // A number that stands for the histogram, which may be long.
    let sum = histogram
        .iter()
        .fold(0u64, |sum, (size, count)| (sum ^ size).wrapping_mul(0x0100_0000_01b3).rotate_left(29) ^ count);
    Inputs::from([
        ("name".into(), json!(name)),
        ("histogram".into(), json!(format!("{sum:016x}"))),
        ("block".into(), json!(block)),
        ("small".into(), json!(small)),
        ("composite".into(), json!(composite)),
        ("files".into(), json!(files)),
        ("entry".into(), json!(entry)),
        ("dead".into(), json!(dead)),
        ("part".into(), json!(part)),
        ("put_price".into(), json!(put_price)),
    ])
}

fn steps(packing: &Packing, answer: &Answer) -> Vec<Step> {
    let step = |formula: &str, numbers: String| Step { formula: formula.into(), numbers };
    vec![
        step(
            "files that are packed: those of at most the size of small files",
            format!("{} of {}", number(answer.small_files * answer.files), number(answer.files)),
        ),
        step("composites = max(bytes / size of a composite, files / files of a composite)", number(answer.composites)),
        step("blocks before = sum of ceil(size / block)", number(answer.before.blocks)),
        step(
            "blocks after = large files + composites x (ceil(bytes / (1 - dead) / block) + table)",
            format!("{} with {} dead", number(answer.after.blocks), packing.dead),
        ),
        step(
            "PUT requests = sum of ceil(bytes / part)",
            format!("{} before, {} after", number(answer.before.put_requests), number(answer.after.put_requests)),
        ),
    ]
}

/// What is taken, before and after.
pub fn figure(estimate: &Estimate<Answer>) -> Plot {
    let Answer { before, after, .. } = &estimate.answer;
    let names = ["blocks", "inodes", "PUT requests"].map(String::from);
    Plot::bars("Small files packed", names.to_vec(), Axis::log("count"), Origin::Modelled)
        .with(Series::bars("before", vec![before.blocks, before.inodes, before.put_requests]))
        .with(Series::bars("after", vec![after.blocks, after.inodes, after.put_requests]))
}
