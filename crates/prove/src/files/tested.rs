//! The engines that histories run on, in process.

use super::history::Found;
use ashlar_betr::{Betr, Zones};
use ashlar_files::Files;
use ashlar_pool::Volume;
use ashlar_units::Bytes as Size;
use ashlar_vfs::FileSystem;
use std::future::Future;
use std::sync::Arc;

/// Whom the files belong to.
pub(crate) const OWNER: (u32, u32) = (0, 0);

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A file engine on a volume, with everything that a history wants of it beside the files.
pub(crate) trait Tested: FileSystem + Sized {
    /// How it is made and opened.
    type Setting: Copy + Send + Sync + 'static;

    /// How it is made and opened for people.
    fn usual() -> Self::Setting;
    fn format(volume: &Volume, setting: Self::Setting) -> impl Future<Output = Found<()>> + Send;
    fn start(volume: Volume, setting: Self::Setting) -> impl Future<Output = Found<Arc<Self>>> + Send;
    /// As usual, to be looked at only.
    fn view(volume: Volume) -> impl Future<Output = Found<Arc<Self>>> + Send;
    fn close(&self) -> impl Future<Output = Found<()>> + Send;
    /// What is wrong in it.
    fn audit(&self) -> impl Future<Output = Found<Vec<String>>> + Send;
    fn inodes_in_memory(&self) -> usize;
}

/// How the first engine is opened: bits of the name hash.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilesSetting(pub(crate) u32);

impl Tested for Files {
    type Setting = FilesSetting;

    fn usual() -> FilesSetting {
        FilesSetting(ashlar_files::Options::default().hash_bits)
    }
    async fn view(volume: Volume) -> Found<Arc<Files>> {
        let options = ashlar_files::Options { read_only: true, ..Default::default() };
        Files::open(volume, options).await.map_err(text)
    }
    async fn format(volume: &Volume, _setting: FilesSetting) -> Found<()> {
        Files::format(volume, OWNER.0, OWNER.1).await.map_err(text)
    }
    async fn start(volume: Volume, FilesSetting(hash_bits): FilesSetting) -> Found<Arc<Files>> {
        let options = ashlar_files::Options { hash_bits, ..ashlar_files::Options::default() };
        Files::open(volume, options).await.map_err(text)
    }
    async fn close(&self) -> Found<()> {
        Files::close(self).await.map_err(text)
    }
    async fn audit(&self) -> Found<Vec<String>> {
        Ok(Files::audit(self).await.map_err(text)?.wrong)
    }
    fn inodes_in_memory(&self) -> usize {
        Files::inodes_in_memory(self)
    }
}

/// How the write-optimized engine is made and opened.
#[derive(Clone, Copy, Debug)]
pub struct BetrSetting {
    /// When directories and files become zones.
    pub zones: Zones,
    /// Bits of the name hash.
    pub hash_bits: u32,
    /// Bytes of one transaction of a move, at most.
    pub part_len_max: usize,
    /// A rule to break.
    pub without: Option<ashlar_betr::Rule>,
}

impl BetrSetting {
    /// One of several that bring about splits, merges and moves in several transactions, by a seed.
    pub fn of_seed(seed: u64) -> BetrSetting {
        let zones = |smallest, largest, inline| Zones {
            smallest: Size(smallest),
            largest: Size(largest),
            inline: Size(inline),
        };
        let zones = match seed / 2 % 4 {
            0 => zones(300, 700, 600),
            1 => zones(1 << 10, 16 << 10, 16 << 10),
            2 => zones(8 << 10, 8 << 10, 4 << 10),
            _ => Zones::default(),
        };
        // Every other history has a hash of two bits, so that names collide, and moves of many small parts.
        let (hash_bits, part_len_max) = if seed.is_multiple_of(2) { (55, 1) } else { (2, 256 << 10) };
        BetrSetting { zones, hash_bits, part_len_max, without: None }
    }

    fn options(self) -> ashlar_betr::Options {
        let BetrSetting { hash_bits, part_len_max, without, .. } = self;
        ashlar_betr::Options { hash_bits, part_len_max, without, ..Default::default() }
    }
}

impl Tested for Betr {
    type Setting = BetrSetting;

    fn usual() -> BetrSetting {
        let ashlar_betr::Options { hash_bits, part_len_max, without, .. } = Default::default();
        BetrSetting { zones: Zones::default(), hash_bits, part_len_max, without }
    }
    async fn view(volume: Volume) -> Found<Arc<Betr>> {
        let options = ashlar_betr::Options { read_only: true, ..Default::default() };
        Betr::open(volume, options).await.map_err(text)
    }
    async fn format(volume: &Volume, setting: BetrSetting) -> Found<()> {
        Betr::format(volume, OWNER.0, OWNER.1, setting.zones).await.map_err(text)
    }
    async fn start(volume: Volume, setting: BetrSetting) -> Found<Arc<Betr>> {
        Betr::open(volume, setting.options()).await.map_err(text)
    }
    async fn close(&self) -> Found<()> {
        Betr::close(self).await.map_err(text)
    }
    async fn audit(&self) -> Found<Vec<String>> {
        let mut audit = Betr::audit(self).await.map_err(text)?;
        let bound = self.zones().largest.0;
        if audit.largest > bound {
            audit
                .wrong
                .push(format!("{} bytes move with a directory that is no zone, more than {bound}", audit.largest));
        }
        Ok(audit.wrong)
    }
    fn inodes_in_memory(&self) -> usize {
        Betr::inodes_in_memory(self)
    }
}
