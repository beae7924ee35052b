//! The answers as text for people.

use ashlar_report::number;
use ashlar_survey::Answer;
use ashlar_survey::answer::Origin;
use ashlar_survey::listing::Troubles;
use ashlar_survey::trace::{Reuse, TraceAnswer};
use ashlar_units::Bytes;
use serde::Serialize;
use std::fmt;

/// Troubles that are named; the JSON document has more.
const NAMED_MAX: usize = 5;

/// An answer that can be printed.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Text(pub Answer);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Text(answer) = self;
        writeln!(
            f,
            "{}: {} of data, {} in {} s",
            answer.path,
            Bytes(answer.logical_bytes),
            answer.extent(),
            number(answer.seconds)
        )?;
        match &answer.trace {
            Some(trace) => requests(f, trace)?,
            None => data(f, answer)?,
        }
        for note in &answer.notes {
            writeln!(f, "note: {note}")?;
        }
        troubles(f, "could not be read", &answer.unreadable)?;
        troubles(f, "changed under the scan", &answer.changed)?;
        troubles(f, "passed over", &answer.passed_over)
    }
}

fn data(f: &mut fmt::Formatter<'_>, answer: &Answer) -> fmt::Result {
    if !answer.dedup.is_empty() {
        writeln!(f, "\nstored / logical    dedup             with lz4          with zstd:3       index entries")?;
        for dedup in &answer.dedup {
            let (low, _, high) = dedup.chunks.range();
            let chunks = if low == high { number(low) } else { format!("{} to {}", number(low), number(high)) };
            let [ratio, lz4, zstd] = [dedup.ratio, dedup.with_lz4, dedup.with_zstd_3].map(|ratio| ratio.to_string());
            writeln!(f, "{:<20}{ratio:<18}{lz4:<18}{zstd:<18}{chunks}", dedup.chunking)?;
        }
        if answer
            .dedup
            .iter()
            .any(|dedup| dedup.origin == Origin::Measured && dedup.compression_origin == Origin::Sampled)
        {
            writeln!(f, "(measured; with compression sampled: some chunks were compressed)")?;
        }
    }
    let compression = &answer.compression;
    if compression.blocks > 0 {
        writeln!(
            f,
            "\ncompression         stored / logical  MB/s (of a core)  back   ({} blocks of 64 KiB)",
            compression.blocks
        )?;
        for codec in &compression.codecs {
            let (ratio, there, back) = (codec.ratio.to_string(), number(codec.compress_mb_s), codec.back());
            writeln!(f, "{:<20}{ratio:<18}{there:<18}{back}", codec.codec)?;
        }
        writeln!(
            f,
            "compressed or encrypted already {:.1} %, entropy {:.2} bits per byte",
            100.0 * compression.dense_share,
            compression.entropy_bits_per_byte
        )?;
    }
    let (sizes, layout) = (&answer.sizes, &answer.layout);
    if sizes.files > 0 {
        writeln!(
            f,
            "\nfiles               {} ({} empty, half below {}), {} directories, {} further names",
            sizes.files,
            sizes.empty_files,
            Bytes(sizes.median_bytes_below),
            sizes.directories,
            sizes.further_links
        )?;
        writeln!(
            f,
            "sizes               {} apparent, {} data, {} taken; holes {:.1} %",
            Bytes(sizes.apparent_bytes),
            Bytes(sizes.data_bytes),
            Bytes(sizes.allocated_bytes),
            100.0 * sizes.sparse_share
        )?;
    }
    if let Some(packing) = &answer.packing {
        let (before, after) = (packing.before, packing.after);
        // Empty files take no blocks, and packed ones some.
        let saved = |before: f64, after: f64, what: &str| match after <= before && before > 0.0 {
            true => format!("{:.1} % fewer {what}", 100.0 * (1.0 - after / before)),
            false => format!("{} more {what}", number(after - before)),
        };
        writeln!(
            f,
            "small files packed  {}, {}, {} (modelled)",
            saved(before.blocks, after.blocks, "blocks"),
            saved(before.inodes, after.inodes, "inodes"),
            saved(before.put_requests, after.put_requests, "PUT requests")
        )?;
    }
    if let Some(score) = layout.score {
        writeln!(
            f,
            "layout score        {score:.4}, {:.2} extents per file ({} files)",
            layout.extents_per_file, layout.files
        )?;
    }
    Ok(())
}

fn requests(f: &mut fmt::Formatter<'_>, trace: &TraceAnswer) -> fmt::Result {
    let TraceAnswer { reads, writes, .. } = trace;
    writeln!(
        f,
        "\nrequests            {} in {} s, {:.1} % reads",
        trace.requests,
        number(trace.seconds),
        100.0 * trace.read_share
    )?;
    for (name, kind) in [("reads", reads), ("writes", writes)] {
        let share = 100.0 * kind.sequential_share;
        writeln!(f, "{name:<20}{}, {}, {share:.1} % sequential", kind.requests, Bytes(kind.bytes))?;
    }
    let interval = trace.flush_interval_s.map_or(String::new(), |interval| format!(", one in {} s", number(interval)));
    writeln!(f, "flushes             {}{interval}; {} forced writes", trace.flushes, trace.forced_writes)?;
    writeln!(f, "fullest moment      {} times the mean", number(trace.peak_to_mean))?;
    reuse(f, "by address", &trace.reuse)?;
    if let Some(similarity) = &trace.similarity {
        reuse(f, "by content", &similarity.reuse)?;
        let copies = similarity.workload_static.map_or("unknown".into(), number);
        writeln!(f, "copies              {copies} sectors per content that was read or written")?;
    }
    if trace.out_of_order > 0 {
        writeln!(f, "out of order        {} records came before one that the trace has earlier", trace.out_of_order)?;
    }
    if trace.impossible > 0 {
        writeln!(
            f,
            "impossible          {} records, left out: times, lengths or addresses that cannot be",
            trace.impossible
        )?;
    }
    Ok(())
}

fn reuse(f: &mut fmt::Formatter<'_>, name: &str, reuse: &Reuse) -> fmt::Result {
    let distance = reuse
        .mean_distance
        .map_or("never again".into(), |distance| format!("again after {} references", number(distance)));
    writeln!(f, "{name:<20}working set {}, {distance}", Bytes(reuse.working_set_bytes))?;
    for part in [0.1, 0.5] {
        let size = (reuse.working_set_bytes as f64 * part) as u64;
        if let Some(point) = reuse.miss_ratios.iter().rev().find(|point| point.cache_bytes <= size) {
            writeln!(f, "    a cache of {} misses {:.1} %", Bytes(size), 100.0 * point.miss_ratio)?;
        }
    }
    Ok(())
}

fn troubles(f: &mut fmt::Formatter<'_>, what: &str, troubles: &Troubles) -> fmt::Result {
    if troubles.count > 0 {
        writeln!(f, "{what}: {}", troubles.count)?;
        for trouble in troubles.first.iter().take(NAMED_MAX) {
            writeln!(f, "    {trouble}")?;
        }
    }
    Ok(())
}
