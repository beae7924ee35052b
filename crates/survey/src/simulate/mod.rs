//! Which chunk size pays on these data: chunkers side by side over one stream or a series of versions.
//!
//! Kruus, Ungureanu and Dubnicki, "Bimodal content defined chunking for backup streams", FAST '10. A stream is cut once into
//! small chunks, of which digest, length and level are kept; every scheme is then replayed from this summary. A big chunk is
//! named by a digest of the digests in it: the same decisions as with digests of bytes, but where equal bytes have other
//! cuts inside, which is rare.
//!
//! What a store would take is its chunks and so many bytes of metadata for each: `DER' = DER / (1 + M_d / c)`; with lz4 of each chunk,
//! too.
//!
//! Departs: the printed code of figures 1 and 3 sets `isPrevDup = true` in the last branch, which contradicts figure 2 and
//! the text; it is false here. Resynchronisation points (which the authors use at times) are not simulated.

pub mod bimodal;
mod oracle;
mod packed;
mod read;

pub use read::{ReadError, read};

use crate::chunk::Digests;
use crate::chunk::cdc::{Cutter, Params};
use ashlar_models::Chance;
use bimodal::{Emit, breaking_apart, k_fixed, k_var};
use packed::{DENSE, Shares, packed_bytes, shares};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// A small chunk of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Small {
    /// Its digest.
    pub digest: u64,
    /// Its bytes.
    pub len: u32,
    /// Level of the cut at its end.
    pub level: u32,
    /// What lz4 leaves of it.
    packed: Shares,
}

impl Small {
    /// A chunk that does not compress.
    pub fn new(digest: u64, len: u32, level: u32) -> Small {
        Small { digest, len, level, packed: DENSE }
    }
}

/// One version of the data, as digests.
#[derive(Clone, Default, Debug)]
pub struct Version {
    /// Its name.
    pub name: String,
    /// Pieces of about 2 KiB, of which small chunks are made.
    pub pieces: Vec<Small>,
    /// Blocks of 4 KiB of each file; a file ends with a block that says so by its level.
    pub blocks: Vec<Small>,
}

/// Digest of a run of chunks: of one, its own.
pub fn digest_of(smalls: &[Small]) -> u64 {
    if let [one] = smalls {
        return one.digest;
    }
    let mut digests = Digests::default();
    smalls.iter().for_each(|small| digests.push(small.digest));
    digests.take()
}

/// What exists already. Only what was emitted does.
pub struct Store {
    chunks: HashSet<u64>,
    /// How often somebody asked.
    pub queries: u64,
    /// Bytes of chunks that were stored.
    pub stored: u64,
    /// The same after lz4.
    pub packed: f64,
    /// Chunks that were emitted.
    pub emitted: u64,
    false_positives: f64,
    chance: Chance,
}

impl Store {
    /// An empty store that says "it exists" wrongly with this probability. Boundaries suffer from that, data do not: what is
    /// emitted is looked up for certain.
    pub fn new(false_positives: f64, seed: u64) -> Store {
        let chance = Chance::new(seed);
        Store { chunks: HashSet::new(), queries: 0, stored: 0, packed: 0.0, emitted: 0, false_positives, chance }
    }
    /// Asks whether a chunk exists.
    pub fn exists(&mut self, digest: u64) -> bool {
        self.queries += 1;
        self.chunks.contains(&digest) || self.false_positives > 0.0 && self.chance.unit() < self.false_positives
    }
    /// Emits a run of chunks as one; says whether it is new.
    pub fn emit(&mut self, smalls: &[Small]) -> bool {
        self.emitted += 1;
        let new = self.chunks.insert(digest_of(smalls));
        if new {
            let len = smalls.iter().map(|small| u64::from(small.len)).sum();
            self.stored += len;
            self.packed += packed_bytes(len, len as f64, &shares(smalls));
        }
        new
    }
    /// Different chunks.
    pub fn entries(&self) -> u64 {
        self.chunks.len() as u64
    }
}

/// What a scheme does to the data.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The scheme, with its parameter.
    pub scheme: String,
    /// Stored by logical bytes, without metadata.
    pub ratio: f64,
    /// The same with metadata of the stored chunks.
    pub ratio_with_metadata: f64,
    /// Stored by logical bytes where each chunk is compressed with lz4 by itself, without metadata.
    pub ratio_with_lz4: f64,
    /// The same with metadata of the stored chunks.
    pub ratio_with_lz4_and_metadata: f64,
    /// Mean length of a stored chunk, bytes.
    pub mean_chunk_bytes: f64,
    /// Stored chunks: entries of an index.
    pub index_entries: u64,
    /// Chunks of all versions: entries of recipes.
    pub references: u64,
    /// Questions to the index that the chunker asks, beside that for each chunk that is emitted.
    pub queries: u64,
}

/// `DER / (1 + M_d / c)`: what is left of a ratio of deduplication when each chunk of mean length `c` has metadata.
pub fn effective(der: f64, mean_chunk: f64, metadata: f64) -> f64 {
    der / (1.0 + metadata / mean_chunk)
}

/// What to compare.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Bytes of metadata for each stored chunk.
    pub metadata: u64,
    /// Small chunks in a big one.
    pub k: usize,
    /// Decides where the index is wrong, when it is.
    pub seed: u64,
}

/// All answers of a simulation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Bytes of all versions.
    pub logical_bytes: u64,
    /// Bytes of metadata for each stored chunk.
    pub metadata_bytes: u64,
    /// The schemes.
    pub rows: Vec<Row>,
    /// Scheme that takes least, with metadata. The oracle does not compete.
    pub best: String,
    /// Scheme that takes least, with lz4 and metadata.
    pub best_with_lz4: String,
    /// For k-fixed: share of false answers of the index, and stored by logical bytes with metadata.
    pub false_positives: Vec<(f64, f64)>,
}

/// Small chunks of a version: min, mean and max as 1:2:3, mean `2^(level + 1)`.
pub fn smalls(pieces: &[Small], level: u32) -> Vec<Small> {
    cut(pieces, Params::classic(level))
}

/// Chunks of some parameters, as runs of pieces.
fn cut(pieces: &[Small], params: Params) -> Vec<Small> {
    let (mut chunks, mut begin, mut next) = (Vec::new(), 0, 0);
    let mut take = |len: u32, next: usize| {
        let (mut sum, mut end) = (0, begin);
        while sum < len && end < next {
            sum += pieces[end].len;
            end += 1;
        }
        let level = if end > begin { pieces[end - 1].level } else { 0 };
        let pieces = &pieces[begin..end];
        chunks.push(Small { digest: digest_of(pieces), len: sum, level, packed: shares(pieces) });
        begin = end;
    };
    let mut cutter = Cutter::new(params);
    for piece in pieces {
        next += 1;
        cutter.push(piece.len, piece.level, |len, _| take(len, next));
    }
    if let Some(len) = cutter.finish() {
        take(len, next);
    }
    chunks
}

/// Compares all schemes over a series of versions.
pub fn compare(versions: &[Version], setting: &Setting) -> Comparison {
    let logical: u64 = versions.iter().flat_map(|version| &version.pieces).map(|piece| u64::from(piece.len)).sum();
    let share = |bytes: f64| bytes / logical.max(1) as f64;
    let row_of = |scheme: String, store: &Store, entries: u64, packed: f64| {
        let metadata = (setting.metadata * entries) as f64;
        Row {
            scheme,
            ratio: share(store.stored as f64),
            ratio_with_metadata: share(store.stored as f64 + metadata),
            ratio_with_lz4: share(packed),
            ratio_with_lz4_and_metadata: share(packed + metadata),
            mean_chunk_bytes: store.stored as f64 / entries.max(1) as f64,
            index_entries: entries,
            references: store.emitted,
            queries: store.queries,
        }
    };
    let row = |scheme: String, store: &Store| row_of(scheme, store, store.entries(), store.packed);
    let mut rows = Vec::new();
    for power in [12, 13, 14, 15, 16, 17] {
        let mut store = Store::new(0.0, 0);
        versions.iter().for_each(|version| fixed(&version.blocks, 1 << (power - 12), &mut store));
        rows.push(row(format!("fixed:{}KiB", 1 << (power - 10)), &store));
    }
    for power in [12, 13, 14, 15, 16, 17, 18, 20] {
        let mut store = Store::new(0.0, 0);
        for version in versions {
            let chunks = cut(&version.pieces, Params::fast(1 << power));
            for chunk in chunks.chunks(1) {
                store.emit(chunk);
            }
        }
        rows.push(row(format!("cdc:{}KiB", 1 << (power - 10)), &store));
    }
    for level in [11, 12, 13] {
        let small: Vec<Vec<Small>> = versions.iter().map(|version| smalls(&version.pieces, level)).collect();
        let name = |what: &str| format!("{what} over {} KiB", 1 << (level - 9));
        let k = setting.k;
        for (what, scheme) in [("breaking-apart", 0), ("k-fixed", 1), ("k-var", 2)] {
            let mut store = Store::new(0.0, setting.seed);
            small.iter().for_each(|small| replay(scheme, small, k, &mut store));
            rows.push(row(name(&format!("{what} k={k}")), &store));
        }
        let mut store = Store::new(0.0, 0);
        let mut distinct = Vec::new();
        for small in small.iter().flat_map(|small| small.chunks(1)) {
            if store.emit(small) {
                distinct.extend_from_slice(small);
            }
        }
        rows.push(row(name("small alone"), &store));
        let (entries, references) = oracle::together(&small);
        // Of its chunks only the mean length is known.
        let packed = packed_bytes(store.stored, store.stored as f64 / entries.max(1) as f64, &shares(&distinct));
        let oracle = Row { references, queries: 0, ..row_of(name("oracle"), &store, entries, packed) };
        rows.push(oracle);
    }
    let competes = |row: &&Row| !row.scheme.starts_with("oracle");
    let best = |by: fn(&Row) -> f64| {
        let best = rows.iter().filter(competes).min_by(|a, b| by(a).total_cmp(&by(b)));
        best.map_or(String::new(), |row| row.scheme.clone())
    };
    let small: Vec<Vec<Small>> = versions.iter().map(|version| smalls(&version.pieces, 11)).collect();
    let wrong = |rate: f64| {
        let mut store = Store::new(rate, setting.seed);
        small.iter().for_each(|small| replay(1, small, setting.k, &mut store));
        (rate, row(String::new(), &store).ratio_with_metadata)
    };
    Comparison {
        logical_bytes: logical,
        metadata_bytes: setting.metadata,
        best: best(|row| row.ratio_with_metadata),
        best_with_lz4: best(|row| row.ratio_with_lz4_and_metadata),
        false_positives: [0.0, 0.005, 0.01, 0.025, 0.05].into_iter().map(wrong).collect(),
        rows,
    }
}

fn replay(scheme: u32, smalls: &[Small], k: usize, store: &mut Store) {
    let mut emit = Emit::new(smalls, store);
    match scheme {
        0 => breaking_apart(&bimodal::bigs(smalls, k), &mut emit),
        1 => k_fixed(smalls.len(), k, true, &mut emit),
        _ => k_var(smalls.len(), k, &mut emit),
    }
}

fn fixed(blocks: &[Small], count: usize, store: &mut Store) {
    // The last block of a file has level 1.
    for file in blocks.chunk_by(|block, _| block.level == 0) {
        for block in file.chunks(count) {
            store.emit(block);
        }
    }
}

#[cfg(test)]
mod tests;
