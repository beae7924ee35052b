//! The page of answers: one HTML file that loads nothing, with a table behind each plot.

use crate::answer::{Answer, LayoutAnswer, Origin, RatioAnswer};
use crate::listing::{Trouble, Troubles};
use crate::simulate::Comparison;
use crate::sizes::Bar;
use crate::trace::{Reuse, TraceAnswer};
use ashlar_report::{Axis, Origin as Label, Plot, Series, escape, number, page};
use ashlar_units::Bytes;
use std::fmt::Write;

/// Troubles that a page names; the JSON document has more.
const SHOWN_MAX: usize = 50;

impl From<Origin> for Label {
    fn from(origin: Origin) -> Label {
        match origin {
            Origin::Measured => Label::Measured,
            Origin::Sampled => Label::Sampled,
        }
    }
}

/// The page of a survey.
pub fn survey_page(answer: &Answer) -> String {
    let mut body = String::new();
    summary(answer, &mut body);
    if let Some(trace) = &answer.trace {
        trace_part(trace, &mut body);
    } else {
        dedup_part(answer, &mut body);
        compression_part(answer, &mut body);
        sizes_part(answer, &mut body);
        layout_part(&answer.layout, &mut body);
    }
    troubles(answer, &mut body);
    how(answer, &mut body);
    let name = answer.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    page(&format!("Survey of {}", if name.is_empty() { "/" } else { name }), &body)
}

/// Numbers and their units stay on one line.
const NOWRAP: &str = "<style>td{white-space:nowrap}</style>";

/// The page of a comparison of chunkers.
pub fn comparison_page(title: &str, comparison: &Comparison) -> String {
    let mut body = format!(
        "{NOWRAP}<p>{} of data; {} bytes of metadata for each stored chunk. Least is taken by <strong>{}</strong>, with lz4 by \
         <strong>{}</strong>.</p>",
        Bytes(comparison.logical_bytes),
        comparison.metadata_bytes,
        escape(&comparison.best),
        escape(&comparison.best_with_lz4)
    );
    for lz4 in [false, true] {
        body += &comparison_plot(comparison, lz4).figure_html();
    }
    let rows = comparison.rows.iter().map(|row| {
        vec![
            row.scheme.clone(),
            percent(row.ratio),
            percent(row.ratio_with_metadata),
            percent(row.ratio_with_lz4_and_metadata),
            Bytes(row.mean_chunk_bytes as u64).to_string(),
            row.index_entries.to_string(),
            row.references.to_string(),
            row.queries.to_string(),
        ]
    });
    let heads =
        ["scheme", "stored", "with metadata", "and lz4", "mean chunk", "index entries", "references", "queries"];
    table(&heads, rows, &mut body);
    let points = comparison.false_positives.iter().map(|(rate, ratio)| (100.0 * rate, 100.0 * ratio)).collect();
    let plot = Plot::lines(
        "Wrong answers of the index",
        Axis::new("wrong answers, %"),
        Axis::new("stored, %"),
        Label::Measured,
    )
    .with(Series::line("k-fixed, with metadata", points));
    body += &plot.figure_html();
    page(title, &body)
}

/// Stored bytes with metadata by the mean length of chunks, a line for each scheme; with lz4, or without.
pub fn comparison_plot(comparison: &Comparison, lz4: bool) -> Plot {
    let (title, origin) = match lz4 {
        true => ("Stored, with metadata and lz4", Label::Modelled),
        false => ("Stored, with metadata", Label::Measured),
    };
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for row in &comparison.rows {
        // What stands before the size, and before `k`.
        let end = [":", " over ", " k="].iter().filter_map(|mark| row.scheme.find(mark)).min();
        let scheme = &row.scheme[..end.unwrap_or(row.scheme.len())];
        let ratio = if lz4 { row.ratio_with_lz4_and_metadata } else { row.ratio_with_metadata };
        let point = (row.mean_chunk_bytes / 1024.0, 100.0 * ratio);
        match lines.iter_mut().find(|(name, _)| *name == scheme) {
            Some((_, points)) => points.push(point),
            None => lines.push((scheme, vec![point])),
        }
    }
    let plot = Plot::lines(title, Axis::log("mean chunk, KiB"), Axis::new("stored / logical, %"), origin);
    lines.into_iter().fold(plot, |plot, (name, points)| plot.with(Series::line(name, points)))
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}

fn summary(answer: &Answer, body: &mut String) {
    let _ = write!(
        body,
        "{NOWRAP}<style>p{{overflow-wrap:anywhere}}</style><p>{}: {} of data, {} in {} s.</p>\
         <ul>",
        escape(&answer.path),
        Bytes(answer.logical_bytes),
        answer.extent(),
        number(answer.seconds)
    );
    let best = answer.dedup.iter().min_by(|a, b| a.with_zstd_3.range().1.total_cmp(&b.with_zstd_3.range().1));
    if let Some(best) = best {
        let _ = write!(
            body,
            "<li>Deduplication ({}) would leave <strong>{}</strong>, with zstd:3 <strong>{}</strong>.</li>",
            escape(&best.chunking),
            best.ratio,
            best.with_zstd_3
        );
    }
    if let Some(codec) = answer.compression.codecs.iter().find(|codec| codec.codec == "zstd:3") {
        let _ = write!(body, "<li>Compression alone (zstd:3) would leave {}.</li>", codec.ratio);
    }
    if answer.sizes.files > 0 {
        let _ = write!(
            body,
            "<li>{} files, half of them below {}; {} holes.</li>",
            answer.sizes.files,
            Bytes(answer.sizes.median_bytes_below),
            percent(answer.sizes.sparse_share)
        );
    }
    if let Some(score) = answer.layout.score {
        let _ =
            write!(body, "<li>{} of the blocks of files follow their predecessor on the device.</li>", percent(score));
    }
    if answer.unreadable.count > 0 {
        let _ =
            write!(body, "<li><strong>{} things could not be read</strong>; see below.</li>", answer.unreadable.count);
    }
    if answer.changed.count > 0 {
        let _ = write!(body, "<li>{} files changed under the scan; see below.</li>", answer.changed.count);
    }
    body.push_str("</ul>");
}

fn ranges(ratios: impl Iterator<Item = RatioAnswer>) -> Vec<(f64, f64, f64)> {
    ratios
        .map(|ratio| {
            let (low, middle, high) = ratio.range();
            (100.0 * middle, 100.0 * low, 100.0 * high)
        })
        .collect()
}

/// Ratios by chunking.
pub fn dedup_plot(answer: &Answer) -> Plot {
    let names = answer.dedup.iter().map(|dedup| dedup.chunking.clone()).collect();
    let sampled = answer.origin == Origin::Measured
        && answer.dedup.iter().any(|dedup| dedup.compression_origin == Origin::Sampled);
    let [lz4, zstd] = if sampled { ["and lz4 (sampled)", "and zstd:3 (sampled)"] } else { ["and lz4", "and zstd:3"] };
    Plot::bars("What deduplication would leave", names, Axis::new("stored / logical, %"), answer.origin.into())
        .with(Series::bar_ranges("deduplication", ranges(answer.dedup.iter().map(|dedup| dedup.ratio))))
        .with(Series::bar_ranges(lz4, ranges(answer.dedup.iter().map(|dedup| dedup.with_lz4))))
        .with(Series::bar_ranges(zstd, ranges(answer.dedup.iter().map(|dedup| dedup.with_zstd_3))))
}

fn dedup_part(answer: &Answer, body: &mut String) {
    if answer.dedup.is_empty() {
        return;
    }
    body.push_str("<h2>Duplicates</h2><p>Every value of a range is equally credible. An index holds one entry for each chunk.</p>");
    body.push_str(&dedup_plot(answer).figure_html());
    let rows = answer.dedup.iter().map(|dedup| {
        let (low, _, high) = dedup.chunks.range();
        let chunks = if low == high { number(low) } else { format!("{} to {}", number(low), number(high)) };
        vec![
            dedup.chunking.clone(),
            dedup.ratio.to_string(),
            dedup.with_lz4.to_string(),
            dedup.with_zstd_3.to_string(),
            chunks,
            Bytes(dedup.mean_chunk_bytes as u64).to_string(),
            percent(dedup.zero_share),
        ]
    });
    table(&["chunking", "stored", "with lz4", "with zstd:3", "index entries", "mean chunk", "zeros"], rows, body);
}

fn compression_part(answer: &Answer, body: &mut String) {
    let compression = &answer.compression;
    if compression.blocks == 0 {
        return;
    }
    let _ = write!(
        body,
        "<h2>Compression</h2><p>{} blocks of 64 KiB, chosen by chance. {} of them nothing shrinks: compressed or encrypted \
         already. Entropy {:.2} bits per byte.</p>",
        compression.blocks,
        percent(compression.dense_share),
        compression.entropy_bits_per_byte
    );
    let names = compression.codecs.iter().map(|codec| codec.codec.clone()).collect();
    let plot = Plot::bars("What compression would leave", names, Axis::new("stored / logical, %"), Label::Sampled)
        .with(Series::bar_ranges("blocks of 64 KiB", ranges(compression.codecs.iter().map(|codec| codec.ratio))));
    body.push_str(&plot.figure_html());
    let rows = compression
        .codecs
        .iter()
        .map(|codec| vec![codec.codec.clone(), codec.ratio.to_string(), number(codec.compress_mb_s), codec.back()]);
    table(&["codec", "stored", "MB/s of a core", "MB/s back"], rows, body);
    body.push_str("<p class=\"origin\">speeds measured here, while the scan ran</p>");
}

fn bars(title: &str, bars: &[Bar], body: &mut String) {
    let names: Vec<String> = bars.iter().map(|bar| bar.what.clone()).collect();
    let share = |part: fn(&Bar) -> u64| {
        let total: u64 = bars.iter().map(part).sum();
        bars.iter().map(|bar| 100.0 * part(bar) as f64 / total.max(1) as f64).collect()
    };
    let plot = Plot::bars(title, names, Axis::new("share, %"), Label::Measured)
        .with(Series::bars("files", share(|bar| bar.files)))
        .with(Series::bars("bytes", share(|bar| bar.bytes)));
    body.push_str(&plot.figure_html());
}

fn sizes_plot(bars: &[Bar]) -> Plot {
    let total = |part: fn(&Bar) -> u64| bars.iter().map(part).sum::<u64>().max(1) as f64;
    let line = |name: &str, part: fn(&Bar) -> u64| {
        let point = |bar: &Bar| Some((bar.below? as f64, 100.0 * part(bar) as f64 / total(part)));
        Series::line(name, bars.iter().filter_map(point).collect())
    };
    Plot::lines(
        "Sizes",
        Axis::log("below so many bytes, and not below half"),
        Axis::new("share, %").from(0.0),
        Label::Measured,
    )
    .with(line("files", |bar| bar.files))
    .with(line("bytes", |bar| bar.bytes))
}

fn sizes_part(answer: &Answer, body: &mut String) {
    let sizes = &answer.sizes;
    if sizes.files == 0 {
        return;
    }
    let _ = write!(
        body,
        "<h2>Files</h2><p>{} files in {} directories, {} further names, {} symbolic links, {} sockets, pipes and devices. {} \
         of sizes, {} of data, {} taken.</p>",
        sizes.files,
        sizes.directories,
        sizes.further_links,
        sizes.symlinks,
        sizes.special_files,
        Bytes(sizes.apparent_bytes),
        Bytes(sizes.data_bytes),
        Bytes(sizes.allocated_bytes)
    );
    if sizes.files > 1 {
        body.push_str(&sizes_plot(&sizes.by_size).figure_html());
        bars("Time since the last change", &sizes.by_age, body);
        bars("Directories above", &sizes.by_depth, body);
        if let Some(packing) = &answer.packing {
            let rows = [
                ("bytes of blocks", packing.before.block_bytes, packing.after.block_bytes),
                ("inodes", packing.before.inodes, packing.after.inodes),
                ("PUT requests", packing.before.put_requests, packing.after.put_requests),
                ("their price, $", packing.before.put_dollars, packing.after.put_dollars),
            ];
            body.push_str("<h3>Small files put together</h3>");
            let rows = rows.into_iter().map(|(what, before, after)| vec![what.into(), number(before), number(after)]);
            table(&["", "each by itself", "together"], rows, body);
            body.push_str("<p class=\"origin\">modelled; see <code>ashlar plan estimate packing</code></p>");
        }
        let rows = sizes
            .by_extension
            .iter()
            .map(|bar| vec![bar.what.clone(), bar.files.to_string(), Bytes(bar.bytes).to_string()]);
        table(&["extension", "files", "bytes"], rows, body);
    }
}

fn layout_part(layout: &LayoutAnswer, body: &mut String) {
    body.push_str("<h2>Places on the device</h2>");
    for note in &layout.notes {
        let _ = write!(body, "<p>{}.</p>", escape(note));
    }
    if layout.files > 0 {
        let label = if layout.file_share >= 1.0 { Label::Measured } else { Label::Sampled };
        let _ = write!(
            body,
            "<p>{} files ({}) lie in {:.2} extents each on average. Of their extents, {} are compressed or encrypted by the \
             file system, {} shared, and {} never written; {} files lie beside metadata.</p>",
            layout.files,
            percent(layout.file_share),
            layout.extents_per_file,
            percent(layout.encoded_share),
            percent(layout.shared_share),
            percent(layout.unwritten_share),
            layout.inline_files
        );
        let names = layout.files_by_extents.iter().map(|(extents, _)| format!("{extents}")).collect();
        let files = layout.files_by_extents.iter().map(|(_, files)| *files as f64).collect();
        let plot =
            Plot::bars("Files by extents (up to)", names, Axis::new("files"), label).with(Series::bars("files", files));
        body.push_str(&plot.figure_html());
        if layout.score_by_size.len() > 1 {
            let points = layout.score_by_size.iter().map(|(size, score)| (*size as f64, *score)).collect();
            let plot = Plot::lines(
                "Layout score by size",
                Axis::log("size of the file, bytes"),
                Axis::new("score").from(0.0),
                label,
            )
            .with(Series::line("score", points));
            body.push_str(&plot.figure_html());
        }
    }
    if !layout.free_ranges.is_empty() {
        let names = layout.free_ranges.iter().map(|(bound, ..)| Bytes(*bound).to_string()).collect();
        let total: u64 = layout.free_ranges.iter().map(|range| range.2).sum();
        let share = layout.free_ranges.iter().map(|range| 100.0 * range.2 as f64 / total.max(1) as f64).collect();
        let plot =
            Plot::bars("Free space by length of range (up to)", names, Axis::new("share of it, %"), Label::Measured)
                .with(Series::bars("free space", share));
        body.push_str(&plot.figure_html());
    }
}

fn reuse_series(name: &str, reuse: &Reuse) -> Series {
    let shown = reuse.miss_ratios.iter().filter(|point| point.cache_bytes > 0);
    Series::line(name, shown.map(|point| (point.cache_bytes as f64, 100.0 * point.miss_ratio)).collect())
}

fn trace_part(trace: &TraceAnswer, body: &mut String) {
    let _ = write!(
        body,
        "<h2>Requests</h2><p>{} requests in {} s: {} reads of {} ({} sequential), {} writes of {} ({} sequential), {} flushes. \
         The fullest moment has {} times the mean.</p>",
        trace.requests,
        number(trace.seconds),
        trace.reads.requests,
        Bytes(trace.reads.bytes),
        percent(trace.reads.sequential_share),
        trace.writes.requests,
        Bytes(trace.writes.bytes),
        percent(trace.writes.sequential_share),
        trace.flushes,
        number(trace.peak_to_mean)
    );
    if trace.impossible > 0 {
        let _ = write!(
            body,
            "<p><strong>{} records are impossible</strong> (times, lengths or addresses that cannot be) and left out.</p>",
            trace.impossible
        );
    }
    let label = if trace.reuse.exact { Label::Measured } else { Label::Sampled };
    let mut plot = Plot::lines(
        "Misses of a cache (LRU)",
        Axis::log("size of the cache, bytes"),
        Axis::new("misses, %").from(0.0),
        label,
    )
    .with(reuse_series("by address", &trace.reuse));
    if let Some(similarity) = &trace.similarity {
        plot = plot.with(reuse_series("by content", &similarity.reuse));
    }
    body.push_str(&plot.figure_html());
    let names = trace.by_length.iter().map(|(length, ..)| Bytes(*length).to_string()).collect();
    let plot = Plot::bars("Requests by length (up to)", names, Axis::new("requests"), Label::Measured)
        .with(Series::bars("reads", trace.by_length.iter().map(|length| length.1 as f64).collect()))
        .with(Series::bars("writes", trace.by_length.iter().map(|length| length.2 as f64).collect()));
    body.push_str(&plot.figure_html());
    if trace.dispersion.len() > 1 {
        let plot =
            Plot::lines("Bursts", Axis::log("length of a bin, seconds"), Axis::log("variance / mean"), Label::Measured)
                .with(Series::line("requests", trace.dispersion.clone()));
        body.push_str(&plot.figure_html());
    }
}

fn troubles(answer: &Answer, body: &mut String) {
    for (title, troubles) in
        [("Could not be read", &answer.unreadable), ("Changed", &answer.changed), ("Passed over", &answer.passed_over)]
    {
        list(title, troubles, body);
    }
}

fn list(title: &str, troubles: &Troubles, body: &mut String) {
    if troubles.count == 0 {
        return;
    }
    let _ = write!(body, "<details><summary>{title}: {}</summary>", troubles.count);
    let shown = troubles.first.iter().take(SHOWN_MAX);
    let place = |trouble: &Trouble| match (trouble.offset, trouble.len) {
        (Some(offset), Some(len)) => format!("{len} from {offset} on"),
        _ => String::new(),
    };
    let rows = shown.map(|trouble| vec![trouble.path.clone(), place(trouble), trouble.what.clone()]);
    table(&["path", "bytes", "why"], rows, body);
    body.push_str("</details>");
}

fn how(answer: &Answer, body: &mut String) {
    if answer.trace.is_some() {
        return;
    }
    let _ = write!(
        body,
        "<h2>How this was found</h2><p>Seed {}, units of {}, {} of {} read; most memory {}.</p><ul>",
        answer.seed,
        Bytes(answer.unit_bytes),
        Bytes(answer.read_bytes),
        Bytes(answer.logical_bytes),
        Bytes(answer.memory_peak_bytes)
    );
    for note in &answer.notes {
        let _ = write!(body, "<li>{}</li>", escape(note));
    }
    body.push_str("</ul>");
}

fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>, body: &mut String) {
    body.push_str("<div class=\"scroll\"><table><tr>");
    for head in heads {
        let _ = write!(body, "<th>{}</th>", escape(head));
    }
    body.push_str("</tr>");
    for row in rows {
        body.push_str("<tr>");
        for cell in row {
            let _ = write!(body, "<td>{}</td>", escape(&cell));
        }
        body.push_str("</tr>");
    }
    body.push_str("</table></div>");
}
