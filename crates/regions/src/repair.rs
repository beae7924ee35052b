//! What follows from the onodes of all regions, made anew from them: pages of the lookup table, and the index of names.
//!
//! Readers go on meanwhile; changes wait.

use crate::bits::Bits;
use crate::check::Checked;
use crate::format::{Entry, Head, Onode};
use crate::layout::Kind;
use crate::recover::{Recovered, Scan};
use crate::shared::{Shared, What, Writer};
use crate::table::{Grown, Table};
use ashlar_block::Error as BlockError;
use ashlar_index::NodePtr;
use ashlar_units::{BLOCK_LEN, Lba};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Shared {
    /// The onodes of a region that its bitmaps have; of one whose bitmaps are gone, all that are whole.
    async fn onodes_of(&self, number: u32) -> Result<Vec<Onode>, BlockError> {
        let Some((kind, birth)) = self.kind_of(number) else { return Ok(Vec::new()) };
        if !matches!(kind, Kind::Large | Kind::Small) {
            return Ok(Vec::new());
        }
        let slots = match self.load(number).await {
            Ok(()) => self.space.lock().regions[number as usize].state.as_ref().map(|state| state.slots.clone()),
            Err(error) if error.is_damage() => None,
            Err(error) => return Err(error),
        };
        let base = if slots.is_some() { u64::MAX } else { 0 };
        let slots = slots.unwrap_or_else(|| Bits::new(self.disk.layout.shape_of(number).bits(kind).0));
        let store = self.disk.store;
        let head = Head { store, region: number, kind, birth, generation: 0, commit: 0, slots, blocks: Bits::new(0) };
        let nothing = BTreeSet::new();
        let scan = Scan { disk: &self.disk, number, kind, birth, base, head: &head, retired: &nothing };
        let onodes = scan.onodes(&mut Recovered::default()).await?;
        self.space.lock().forget(self.memory.regions(&self.config));
        Ok(onodes.into_iter().map(|(onode, _)| onode).collect())
    }

    /// Reads every page of the lookup table; makes those that are damaged anew, from the onodes of all regions.
    pub(crate) async fn check_table(
        &self,
        writer: &mut Writer,
        repair: bool,
        checked: &mut Checked,
    ) -> Result<(), BlockError> {
        let mut bad = BTreeSet::new();
        for page in 0..self.disk.layout.pages {
            if let Err(error) = self.table.bucket_entries(&self.disk, page).await {
                if !error.is_damage() {
                    return Err(error);
                }
                checked.problems.push(format!("bucket {page} of the lookup table: {error}"));
                bad.insert(self.disk.layout.page(page));
            }
        }
        if bad.is_empty() || !repair {
            return Ok(());
        }
        bad.iter().for_each(|at| self.table.wipe(*at));
        checked.pages_rebuilt = bad.len() as u64;
        for number in 0..self.disk.layout.regions as u32 {
            for onode in self.onodes_of(number).await? {
                if !bad.contains(&Table::bucket(&self.disk, onode.id)) {
                    continue;
                }
                let entry = Entry { place: onode.place, generation: onode.generation, version: onode.version };
                let known = self.table.get(&self.disk, onode.id).await?;
                let newer = |known: Entry| (known.version, known.generation) > (entry.version, entry.generation);
                if known.is_some_and(newer) {
                    continue;
                }
                if let Grown::Full = self.table.set(&self.disk, onode.id, entry, None).await? {
                    self.publish_copy(writer, onode.id, entry, onode.name.is_reserved()).await?;
                }
                self.names.add(&onode.name);
            }
        }
        Ok(())
    }

    /// Reads the whole index of names. The damage, if there is any.
    pub(crate) async fn check_names(&self) -> Result<Option<BlockError>, BlockError> {
        let mut low = Vec::new();
        loop {
            match self.names.page(&self.disk, &self.space, &low, None, crate::check::NAMES_AT_ONCE).await {
                Ok((_, Some(next))) => low = next.to_vec(),
                Ok((_, None)) => return Ok(None),
                Err(error) if error.is_damage() => return Ok(Some(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the index of names anew, from the onodes of all regions. The caller keeps changes out: nothing is accepted,
    /// everything that was is durable, or has no room.
    pub(crate) async fn rebuild_names(&self, _writer: &mut Writer) -> Result<(), BlockError> {
        let left = self.nodes_left().await?;
        let mut anew = self.names.anew();
        for number in 0..self.disk.layout.regions as u32 {
            for onode in self.onodes_of(number).await? {
                let entry = Entry { place: onode.place, generation: onode.generation, version: onode.version };
                match self.table.get(&self.disk, onode.id).await {
                    Ok(known) if known != Some(entry) => continue,
                    Err(error) if !error.is_damage() => return Err(error),
                    // Of an object whose entry cannot be read, its onode tells.
                    Ok(_) | Err(_) => anew.add(&self.names, &self.disk, &self.space, &onode.name).await?,
                }
            }
        }
        let waiting: Vec<_> = self.queue.lock().pending.values().cloned().collect();
        for pending in waiting.iter().filter(|pending| matches!(pending.what, What::Put(_))) {
            anew.add(&self.names, &self.disk, &self.space, &pending.name).await?;
        }
        self.names.replace(anew, left);
        self.counts.names_rebuilt.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Blocks of table regions in which no page of the lookup table lies: nodes of the index. None are known if a page cannot
    /// be read, since others may lie behind it.
    async fn nodes_left(&self) -> Result<Vec<NodePtr>, BlockError> {
        let mut pages: BTreeSet<Lba> = BTreeSet::new();
        for page in 0..self.disk.layout.pages {
            match self.table.bucket_links(&self.disk, page).await {
                Ok(links) => pages.extend(links),
                Err(error) if error.is_damage() => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
        let space = self.space.lock();
        let mut left = Vec::new();
        for (number, region) in (0u32..).zip(&space.regions).filter(|(_, region)| region.entry.kind == Kind::Table) {
            let Some(state) = &region.state else { continue };
            let used = (0..state.blocks.len() as u32).filter(|block| state.blocks.get(*block));
            let at = used.map(|block| self.disk.layout.data(number, Kind::Table, block));
            left.extend(at.filter(|at| !pages.contains(at)).map(node_at));
        }
        Ok(left)
    }
}

/// A block as a node: only its place means anything.
fn node_at(at: Lba) -> NodePtr {
    NodePtr { uid: at.0, offset: 0, len: BLOCK_LEN as u32, raw_len: 0, crc: 0, birth: 0 }
}
