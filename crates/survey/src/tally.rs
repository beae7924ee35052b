//! What was found of one chunking so far.

use crate::compress::Packed;
use crate::incidence::Incidences;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::path::Path;

/// How much is remembered of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every value.
    Full,
    /// 50,000 values that were drawn from the sample: under 10 MB for each chunking, whatever the size of the data.
    Base,
}

/// Places of a value that are told apart in base mode; beyond that they are only counted.
const PLACES_MAX: usize = 64;

/// Lengths of chunks of zeros that are kept. Blocks have few; of content-defined chunks each run of zeros may have one.
const ZERO_LENS_MAX: usize = 1 << 16;

/// What is known of a cluster beside its values.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Bytes of its chunks.
    pub bytes: u64,
    /// The same of files that are the first of their size in their group.
    pub first: u64,
    /// The class of its group.
    pub stratum: u8,
}

/// What a unit held of one chunking.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Bytes of its chunks.
    pub bytes: u64,
    /// Of these in chunks of zeros.
    pub zero: u64,
    /// It is of the first file of its size in its group.
    pub first: bool,
    /// The class of the group.
    pub stratum: u8,
}

/// What a chunk that was compressed came to.
#[derive(Clone, Copy, Debug)]
pub struct PackedValue {
    /// Its bytes.
    pub len: u32,
    /// With lz4.
    pub lz4: u32,
    /// With zstd at level 3.
    pub zstd: u32,
}

/// Everything that was found of one chunking.
pub struct Tally {
    /// In full mode: every value in every cluster.
    pub incidences: Incidences,
    /// In base mode: the values that were drawn.
    pub base: Option<Base>,
    /// Bytes of all chunks.
    pub bytes: u64,
    /// Bytes of chunks of zeros.
    pub zero: u64,
    /// Their lengths, as many as are kept.
    pub zero_lens: BTreeSet<u32>,
    /// Clusters of the sample. Of a full scan none.
    pub clusters: BTreeMap<u32, Cluster>,
    /// Chunks that were compressed.
    pub packed: HashMap<u64, PackedValue>,
}

/// Values that were drawn.
#[derive(Default)]
pub struct Base {
    /// The values.
    pub values: BTreeMap<u64, Counted>,
    /// Bytes of the part of the sample from which they were drawn.
    pub bytes: u64,
    /// Clusters of that part, with their bytes.
    clusters: BTreeMap<u32, u64>,
}

/// A value that was drawn, and where it occurs.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Bytes of the chunk.
    pub len: u32,
    /// How often it was drawn: once in each cluster of the part from which is drawn.
    pub draws: u32,
    clusters: Vec<u32>,
    further: u32,
}

impl Counted {
    fn see(&mut self, cluster: u32) -> bool {
        match self.clusters.binary_search(&cluster) {
            Ok(_) => false,
            Err(at) if self.clusters.len() < PLACES_MAX => {
                self.clusters.insert(at, cluster);
                true
            }
            Err(_) => {
                self.further = self.further.saturating_add(1);
                true
            }
        }
    }
    /// Clusters that hold it.
    pub fn places(&self) -> usize {
        (self.clusters.len() + self.further as usize).max(1)
    }
    /// The first of them.
    pub fn clusters(&self) -> &[u32] {
        &self.clusters
    }
    /// Clusters that hold it, of those that were drawn from.
    pub fn drawn_in<'a>(&'a self, base: &'a Base) -> impl Iterator<Item = u32> + 'a {
        self.clusters.iter().copied().filter(|cluster| base.clusters.contains_key(cluster))
    }
}

impl Tally {
    /// Nothing yet.
    pub fn new(mode: Mode, memory: u64, directory: &Path) -> Tally {
        let base = (mode == Mode::Base).then(Base::default);
        let memory = if mode == Mode::Base { 0 } else { memory };
        let (clusters, packed) = (BTreeMap::new(), HashMap::new());
        let zero_lens = BTreeSet::new();
        Tally { incidences: Incidences::new(memory, directory), base, bytes: 0, zero: 0, zero_lens, clusters, packed }
    }

    /// A chunk that is not zeros. In base mode the part to draw from comes first, and once more with the rest.
    pub fn found(&mut self, value: u64, cluster: u32, len: u32, drawing: bool) -> io::Result<()> {
        let Some(base) = &mut self.base else { return self.incidences.push(value, cluster, len) };
        if drawing {
            let fresh = Counted { len, draws: 0, clusters: Vec::new(), further: 0 };
            let counted = base.values.entry(value).or_insert(fresh);
            // Within the part, all clusters of a value are told apart: there are few.
            if counted.see(cluster) {
                counted.draws += 1;
            }
        } else if let Some(counted) = base.values.get_mut(&value) {
            counted.see(cluster);
        }
        Ok(())
    }

    /// The end of a unit, and what it held.
    pub fn unit(&mut self, cluster: u32, part: Part, drawing: bool) {
        let Part { bytes, zero, first, stratum } = part;
        match &mut self.base {
            Some(base) if drawing => {
                base.bytes += bytes;
                *base.clusters.entry(cluster).or_default() += bytes;
            }
            _ => {
                self.bytes += bytes;
                self.zero += zero;
                let of_base = self.base.as_ref().is_none_or(|base| base.clusters.contains_key(&cluster));
                if of_base && cluster != 0 {
                    let known = self.clusters.entry(cluster).or_insert(Cluster { bytes: 0, first: 0, stratum });
                    known.bytes += bytes;
                    known.first += if first { bytes } else { 0 };
                }
            }
        }
    }

    /// Chunks of zeros of these lengths.
    pub fn zeros(&mut self, lens: &BTreeSet<u32>) {
        let room = ZERO_LENS_MAX.saturating_sub(self.zero_lens.len());
        self.zero_lens.extend(lens.iter().take(room));
    }

    /// A chunk that was compressed.
    pub fn packed(&mut self, packed: &Packed) {
        self.packed.insert(packed.value, PackedValue { len: packed.len, lz4: packed.lz4, zstd: packed.zstd });
    }
}

/// Entries of a list in a state, at most: beyond that, it is no state.
const ENTRIES_MAX: u64 = 1 << 40;

fn put(to: &mut impl Write, numbers: &[u64]) -> io::Result<()> {
    numbers.iter().try_for_each(|number| to.write_all(&number.to_le_bytes()))
}

fn get(from: &mut impl Read) -> io::Result<u64> {
    let mut number = [0; 8];
    from.read_exact(&mut number)?;
    Ok(u64::from_le_bytes(number))
}

fn get_count(from: &mut impl Read) -> io::Result<u64> {
    let count = get(from)?;
    if count > ENTRIES_MAX { Err(io::Error::new(io::ErrorKind::InvalidData, "a list is too long")) } else { Ok(count) }
}

impl Tally {
    /// Writes all of it.
    pub fn write_to(&mut self, to: &mut impl Write) -> io::Result<()> {
        put(to, &[self.bytes, self.zero, self.clusters.len() as u64, self.packed.len() as u64])?;
        put(to, &[self.zero_lens.len() as u64])?;
        self.zero_lens.iter().try_for_each(|len| put(to, &[u64::from(*len)]))?;
        for (cluster, known) in &self.clusters {
            put(to, &[u64::from(*cluster), known.bytes, known.first, u64::from(known.stratum)])?;
        }
        for (value, packed) in &self.packed {
            put(to, &[*value, u64::from(packed.len), u64::from(packed.lz4), u64::from(packed.zstd)])?;
        }
        self.incidences.write_to(to)?;
        let Some(base) = &self.base else { return Ok(()) };
        put(to, &[base.bytes, base.clusters.len() as u64, base.values.len() as u64])?;
        for (cluster, bytes) in &base.clusters {
            put(to, &[u64::from(*cluster), *bytes])?;
        }
        for (value, counted) in &base.values {
            let Counted { len, draws, further, clusters } = counted;
            put(to, &[*value, u64::from(*len), u64::from(*draws), u64::from(*further), clusters.len() as u64])?;
            clusters.iter().try_for_each(|cluster| put(to, &[u64::from(*cluster)]))?;
        }
        Ok(())
    }

    /// Reads what was written.
    pub fn read_from(&mut self, from: &mut impl Read) -> io::Result<()> {
        (self.bytes, self.zero) = (get(from)?, get(from)?);
        let (clusters, packed) = (get_count(from)?, get_count(from)?);
        for _ in 0..get_count(from)? {
            self.zero_lens.insert(get(from)? as u32);
        }
        for _ in 0..clusters {
            let cluster = get(from)? as u32;
            let (bytes, first, stratum) = (get(from)?, get(from)?, get(from)? as u8);
            self.clusters.insert(cluster, Cluster { bytes, first, stratum });
        }
        for _ in 0..packed {
            let value = get(from)?;
            let packed = PackedValue { len: get(from)? as u32, lz4: get(from)? as u32, zstd: get(from)? as u32 };
            self.packed.insert(value, packed);
        }
        self.incidences.read_from(from)?;
        let Some(base) = &mut self.base else { return Ok(()) };
        base.bytes = get(from)?;
        let (clusters, values) = (get_count(from)?, get_count(from)?);
        for _ in 0..clusters {
            base.clusters.insert(get(from)? as u32, get(from)?);
        }
        for _ in 0..values {
            let value = get(from)?;
            let (len, draws, further) = (get(from)? as u32, get(from)? as u32, get(from)? as u32);
            let count = get_count(from)?;
            let mut clusters = Vec::new();
            for _ in 0..count {
                clusters.push(get(from)? as u32);
            }
            base.values.insert(value, Counted { len, draws, further, clusters });
        }
        Ok(())
    }
}
