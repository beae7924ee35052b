//! Reading qcow2 images, versions 2 and 3 (QEMU's docs/interop/qcow2.txt). Images are hostile input.
//!
//! Not supported, and refused by name: encryption, external data files, extended L2 entries. Compressed clusters are read.
//! What comes from a backing file counts as a hole.

use crate::careful::Damage;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"QFI\xfb";
/// QEMU's limit.
const L1_BYTES_MAX: u64 = 32 << 20;
/// Tables that are kept: each takes a cluster, at most 2 MiB.
const TABLES_MAX: usize = 8;
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;

/// What is wrong with an image.
#[derive(Debug, thiserror::Error)]
pub enum Qcow2Error {
    /// The file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A field that no image can have.
    #[error("the qcow2 header says {field} = {value}, which cannot be: {law}; check the image with `qemu-img check`")]
    Header {
        /// Its name.
        field: &'static str,
        /// Its value.
        value: u64,
        /// What must hold.
        law: String,
    },
    /// A feature.
    #[error(
        "the qcow2 image uses {0}, which is not supported; `qemu-img convert -O raw` makes an image that can be read"
    )]
    Unsupported(&'static str),
}

/// A table of addresses of clusters.
type Table = Arc<Vec<u64>>;

/// An image that is open.
pub struct Qcow2 {
    file: File,
    file_len: u64,
    size: u64,
    cluster_bits: u32,
    zstd: bool,
    backing: bool,
    dirty: bool,
    l1: Vec<u64>,
    tables: Mutex<VecDeque<(u64, Table)>>,
    data_bytes: u64,
    /// Tables and clusters that lie beyond the end of the file.
    beyond: u64,
}

struct Header {
    version: u32,
    backing: u64,
    cluster_bits: u32,
    size: u64,
    encryption: u32,
    l1_len: u32,
    l1_at: u64,
    incompatible: u64,
    compression: u8,
}

fn header(bytes: &[u8]) -> Option<Header> {
    let u32_at = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    let u64_at = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
    let version = u32_at(4)?;
    let (mut incompatible, mut compression) = (0, 0);
    if version >= 3 {
        incompatible = u64_at(72)?;
        // Only headers longer than that of version 3 have it.
        if u32_at(100)? > 104 {
            compression = *bytes.get(104)?;
        }
    }
    Some(Header {
        version,
        backing: u64_at(8)?,
        cluster_bits: u32_at(20)?,
        size: u64_at(24)?,
        encryption: u32_at(32)?,
        l1_len: u32_at(36)?,
        l1_at: u64_at(40)?,
        incompatible,
        compression,
    })
}

fn law(holds: bool, field: &'static str, value: u64, law: impl Into<String>) -> Result<(), Qcow2Error> {
    if holds { Ok(()) } else { Err(Qcow2Error::Header { field, value, law: law.into() }) }
}

impl Header {
    fn check(&self) -> Result<(), Qcow2Error> {
        law((2..=3).contains(&self.version), "version", self.version.into(), "versions are 2 and 3")?;
        law((9..=21).contains(&self.cluster_bits), "cluster_bits", self.cluster_bits.into(), "it is from 9 to 21")?;
        law(self.size <= 1 << 62, "size", self.size, "it is at most 2^62")?;
        let unsupported = [
            (self.encryption != 0, "encryption"),
            (self.incompatible & 4 != 0, "an external data file"),
            (self.incompatible & 16 != 0, "extended L2 entries"),
            (self.incompatible & !0b1_1111 != 0, "a feature that this version does not know"),
            (self.compression > 1, "an unknown compression"),
        ];
        if let Some((_, what)) = unsupported.into_iter().find(|(used, _)| *used) {
            return Err(Qcow2Error::Unsupported(what));
        }
        let aligned = self.l1_at.is_multiple_of(1 << self.cluster_bits);
        law(aligned, "l1_table_offset", self.l1_at, "the table begins with a cluster")?;
        let l1_bytes = u64::from(self.l1_len) * 8;
        law(l1_bytes <= L1_BYTES_MAX, "l1_size", self.l1_len.into(), "the table takes at most 32 MiB")?;
        let covered = u64::from(self.l1_len).checked_shl(2 * self.cluster_bits - 3).unwrap_or(u64::MAX);
        law(covered >= self.size, "l1_size", self.l1_len.into(), format!("it must cover {} bytes", self.size))
    }
}

impl Qcow2 {
    /// Whether a file begins like an image.
    pub fn is(file: &File) -> io::Result<bool> {
        let mut magic = [0; 4];
        Ok(file.read_at(&mut magic, 0)? == 4 && magic == MAGIC)
    }

    /// Opens an image, and counts the data in it.
    pub fn open(file: File) -> Result<Qcow2, Qcow2Error> {
        let file_len = file.metadata()?.len();
        let mut bytes = [0; 112];
        let len = file.read_at(&mut bytes, 0)?;
        let header = header(bytes.get(..len).unwrap_or_default()).ok_or(Qcow2Error::Header {
            field: "length",
            value: len as u64,
            law: "the header is cut off".into(),
        })?;
        header.check()?;
        let l1_bytes = u64::from(header.l1_len) * 8;
        let end = header.l1_at.checked_add(l1_bytes).filter(|end| *end <= file_len);
        law(
            end.is_some(),
            "l1_table_offset",
            header.l1_at,
            format!("the table ends within the file of {file_len} bytes"),
        )?;
        let l1 = read_table(&file, header.l1_at, l1_bytes as usize)?;
        let mut image = Qcow2 {
            file,
            file_len,
            size: header.size,
            cluster_bits: header.cluster_bits,
            zstd: header.compression == 1,
            backing: header.backing != 0,
            dirty: header.incompatible & 3 != 0,
            l1,
            tables: Mutex::new(VecDeque::new()),
            data_bytes: 0,
            beyond: 0,
        };
        (image.data_bytes, image.beyond) = image.count()?;
        Ok(image)
    }

    /// Bytes that the guest sees.
    pub fn size(&self) -> u64 {
        self.size
    }
    /// Bytes of them that are in the image.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }
    /// What a user should know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.backing {
            notes.push("the image has a backing file; what comes from that counts as hole".into());
        }
        if self.dirty {
            notes.push("the image is marked as dirty or corrupt; it may be in use, or want `qemu-img check`".into());
        }
        if self.beyond > 0 {
            let count = self.beyond;
            notes.push(format!("{count} clusters or tables lie beyond the end of the file: the image is truncated"));
        }
        notes
    }

    /// Ranges of the guest of which the table is not in the file: what they hold is not known, nor whether it is a hole.
    pub fn lost(&self) -> impl Iterator<Item = Damage> {
        let bytes = 1 << (2 * self.cluster_bits - 3);
        let what = "the table that says where it lies is beyond the end of the image file: the image is truncated";
        let lost =
            self.l1.iter().enumerate().filter(|(_, entry)| **entry & OFFSET != 0 && !self.holds(*entry & OFFSET));
        lost.map_while(move |(index, _)| {
            let offset = index as u64 * bytes;
            (offset < self.size).then(|| Damage { offset, len: bytes.min(self.size - offset), what: what.into() })
        })
    }

    /// Whether the file has all of the table at an offset.
    fn holds(&self, at: u64) -> bool {
        at.checked_add(self.cluster()).is_some_and(|end| end <= self.file_len)
    }

    /// Bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Goes through all tables: bytes of data, and how many clusters are beyond the end.
    fn count(&self) -> io::Result<(u64, u64)> {
        let (mut data, mut beyond) = (0, 0);
        let per_table = self.cluster() / 8;
        for (index, entry) in self.l1.iter().enumerate() {
            let first = (index as u64) << (2 * self.cluster_bits - 3);
            if entry & OFFSET == 0 || first >= self.size {
                continue;
            }
            let Some(table) = self.table(*entry)? else {
                beyond += 1;
                continue;
            };
            let clusters = (self.size - first).div_ceil(self.cluster()).min(per_table) as usize;
            for (number, entry) in table.iter().take(clusters).enumerate() {
                if is_data(*entry) {
                    let at = first + number as u64 * self.cluster();
                    data += self.cluster().min(self.size - at);
                    beyond += u64::from(self.place(*entry).0 >= self.file_len);
                }
            }
        }
        Ok((data, beyond))
    }

    /// The L2 table that an L1 entry names; `None` if it is not in the file.
    fn table(&self, entry: u64) -> io::Result<Option<Table>> {
        let at = entry & OFFSET;
        let mut tables = self.tables.lock();
        if let Some((_, table)) = tables.iter().find(|(known, _)| *known == at) {
            return Ok(Some(table.clone()));
        }
        if !self.holds(at) {
            return Ok(None);
        }
        let table = Arc::new(read_table(&self.file, at, self.cluster() as usize)?);
        if tables.len() >= TABLES_MAX {
            tables.pop_front();
        }
        tables.push_back((at, table.clone()));
        Ok(Some(table))
    }

    /// The entry of the cluster at an offset of the guest.
    fn entry(&self, offset: u64) -> io::Result<u64> {
        let l1 = self.l1.get((offset >> (2 * self.cluster_bits - 3)) as usize).copied().unwrap_or(0);
        if l1 & OFFSET == 0 {
            return Ok(0);
        }
        let Some(table) = self.table(l1)? else {
            return Err(truncated(l1 & OFFSET, self.file_len, "table"));
        };
        let index = (offset >> self.cluster_bits) & (self.cluster() / 8 - 1);
        Ok(table.get(index as usize).copied().unwrap_or(0))
    }

    /// Where the bytes of an entry are, and how many; of plain clusters as many as are needed.
    fn place(&self, entry: u64) -> (u64, u64) {
        if entry & COMPRESSED == 0 {
            return (entry & OFFSET, self.cluster());
        }
        let shift = 62 - (self.cluster_bits - 8);
        let at = entry & ((1 << shift) - 1);
        let sectors = ((entry & (COMPRESSED - 1)) >> shift) + 1;
        (at, sectors * 512 - (at & 511))
    }

    /// Reads at an offset of the guest: at most to the end of a cluster.
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        if offset >= self.size {
            return Ok(0);
        }
        let within = offset & (self.cluster() - 1);
        let len = (self.cluster() - within).min(self.size - offset).min(to.len() as u64) as usize;
        let to = to.get_mut(..len).unwrap_or_default();
        let entry = self.entry(offset)?;
        if !is_data(entry) {
            to.fill(0);
            return Ok(len);
        }
        let (at, packed) = self.place(entry);
        if entry & COMPRESSED != 0 {
            let cluster = self.unpack(at, packed)?;
            let from = within as usize;
            let bytes = cluster.get(from..from + len).ok_or_else(|| damaged(at, "it is too short"))?;
            to.copy_from_slice(bytes);
            return Ok(len);
        }
        let at = at + within;
        if at >= self.file_len {
            return Err(truncated(at, self.file_len, "cluster"));
        }
        match self.file.read_at(to, at)? {
            0 => Err(truncated(at, self.file_len, "cluster")),
            got => Ok(got),
        }
    }

    fn unpack(&self, at: u64, len: u64) -> io::Result<Vec<u8>> {
        // The last sector of the file may be cut short.
        let len = len.min(self.file_len.saturating_sub(at));
        if len == 0 {
            return Err(truncated(at, self.file_len, "compressed cluster"));
        }
        let mut packed = vec![0; len as usize];
        self.file.read_exact_at(&mut packed, at)?;
        let cluster = self.cluster() as usize;
        if self.zstd {
            use std::io::Read;
            let mut bytes = Vec::new();
            let reader = zstd::stream::read::Decoder::new(packed.as_slice())?;
            let mut reader = reader.single_frame();
            (&mut reader).take(cluster as u64).read_to_end(&mut bytes)?;
            return Ok(bytes);
        }
        let mut bytes = vec![0; cluster];
        let flags = miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let mut state = miniz_oxide::inflate::core::DecompressorOxide::new();
        let (status, _, written) = miniz_oxide::inflate::core::decompress(&mut state, &packed, &mut bytes, 0, flags);
        // Behind the stream is what fills the sector.
        let done = matches!(
            status,
            miniz_oxide::inflate::TINFLStatus::Done | miniz_oxide::inflate::TINFLStatus::HasMoreOutput
        );
        if !done {
            return Err(damaged(at, "it is no deflate stream"));
        }
        bytes.truncate(written);
        Ok(bytes)
    }

    /// Calls `each` with the ranges that are in the image, for as long as it likes.
    pub fn segments(&self, from: u64, to: u64, each: &mut dyn FnMut(u64, u64) -> bool) -> io::Result<()> {
        let (mut at, mut run) = (from, None::<u64>);
        let to = to.min(self.size);
        while at < to {
            let mut next = (at | (self.cluster() - 1)) + 1;
            let l1 = self.l1.get((at >> (2 * self.cluster_bits - 3)) as usize).copied().unwrap_or(0);
            let data = if l1 & OFFSET == 0 {
                next = (at | ((1u64 << (2 * self.cluster_bits - 3)) - 1)) + 1;
                false
            } else {
                // Of a table that is not there, `lost` says so.
                self.entry(at).is_ok_and(is_data)
            };
            match (data, run) {
                (true, None) => run = Some(at),
                (false, Some(begin)) => {
                    run = None;
                    if !each(begin, at) {
                        return Ok(());
                    }
                }
                _ => {}
            }
            at = next;
        }
        if let Some(begin) = run {
            each(begin, to);
        }
        Ok(())
    }
}

fn is_data(entry: u64) -> bool {
    entry & COMPRESSED != 0 || entry & OFFSET != 0 && entry & ZERO == 0
}

fn truncated(at: u64, len: u64, what: &str) -> io::Error {
    let text = format!("a {what} lies at {at}, beyond the end of the image file at {len}: the image is truncated");
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

fn damaged(at: u64, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the compressed cluster at {at} is damaged: {what}"))
}

fn read_table(file: &File, at: u64, len: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes.as_chunks::<8>().0.iter().map(|entry| u64::from_be_bytes(*entry)).collect())
}
