//! The order of names: a Bε-tree of names without values, whose nodes lie in table regions. It follows from the onodes; with
//! the table it is told again, after a crash, what changed since the last checkpoint.

use crate::disk::{Disk, READ, UPKEEP, Write};
use crate::format::{Extent, crc};
use crate::layout::Kind;
use crate::place::{PLACES_TRIED, is_of_place};
use crate::space::Space;
use crate::table::BuildSpread;
use ashlar_block::{Durability, Error, Result, ResultExt};
use ashlar_index::{Alone, Errands, Key, Limits, Message, Node, NodePtr, NodeStore, Semantics, Tree};
use ashlar_objects::Name;
use ashlar_units::{BLOCK_LEN, Blocks, Lba};
use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Values mean nothing, and their loss means nothing.
struct Plain;

impl Semantics for Plain {
    type Lost = ();
    fn overlay(&self, _: &[u8], _: &[u8], newer: &[u8], (): &mut ()) -> Bytes {
        Bytes::copy_from_slice(newer)
    }
    fn settle(&self, _: &[u8], value: Bytes) -> Option<Bytes> {
        Some(value)
    }
    fn lose(&self, _: &[u8], _: &[u8], (): &mut ()) {}
    fn gather((): &mut (), (): ()) {}
}

#[derive(Clone)]
struct NodeWeight;
impl quick_cache::Weighter<u64, Arc<Node>> for NodeWeight {
    fn weight(&self, _: &u64, node: &Arc<Node>) -> u64 {
        node.memory() as u64
    }
}

/// See the module.
pub struct Names {
    tree: RwLock<Arc<Tree<Plain>>>,
    /// Blocks of nodes that no tree needs any more, to be freed when a checkpoint has been written without them.
    dropped: Mutex<Vec<NodePtr>>,
    cache: Cache<u64, Arc<Node>, NodeWeight, BuildSpread>,
    memtable_max: usize,
    birth: AtomicU64,
}

/// Names, and the disk and the regions that they lie on.
struct Nodes<'a> {
    names: &'a Names,
    disk: &'a Disk,
    space: &'a Mutex<Space>,
}

impl NodeStore for Nodes<'_> {
    type Helper = Alone;

    fn cached(&self, ptr: &NodePtr) -> Option<Arc<Node>> {
        self.names.cache.get(&ptr.uid)
    }
    async fn load(&self, ptr: NodePtr) -> Result<Arc<Node>> {
        let place = || format!("node of the index of names at lba {}", ptr.uid);
        let image = self.disk.read(READ, Lba(ptr.uid), blocks_of(&ptr)).await.within(place)?;
        let image = image.get(..ptr.len as usize).unwrap_or_default();
        if crc(image) != ptr.crc {
            return Err(Error::corrupt("wrong checksum").within(place()));
        }
        let node = Arc::new(Node::decode(image).within(place)?);
        self.names.cache.insert(ptr.uid, node.clone());
        Ok(node)
    }
    async fn append(&self, image: Bytes, node: Node) -> Result<NodePtr> {
        let len = image.len();
        let mut whole = BytesMut::from(image);
        let crc = crc(&whole);
        whole.resize(len.next_multiple_of(BLOCK_LEN), 0);
        let blocks = (whole.len() / BLOCK_LEN) as u32;
        let image = whole.freeze();
        let mut tries = 0;
        let at = loop {
            let taken = self.space.lock().take_table(blocks, self.birth());
            let full = || Error::new(ashlar_block::Kind::NoSpace, "no region is left for the index of names");
            let (region, block) = taken.ok_or_else(full)?;
            let at = self.disk.layout.data(region, Kind::Table, block);
            let write = Write { at, pieces: vec![image.clone()] };
            match self.disk.write(UPKEEP, write, Durability::Cached).await {
                Ok(()) => break at,
                // Nobody refers to the place yet: the node goes into another region.
                Err(error) if is_of_place(&error) && tries < PLACES_TRIED => self.space.lock().condemn(region),
                Err(error) => return Err(error),
            }
            tries += 1;
        };
        let raw_len = node.raw_len() as u32;
        let ptr = NodePtr { uid: at.0, offset: 0, len: len as u32, raw_len, crc, birth: node.birth() };
        self.names.cache.insert(at.0, Arc::new(node));
        Ok(ptr)
    }
    async fn height(&self, ptr: &NodePtr) -> Result<u8> {
        let message = format!("the node at lba {} cannot be read, and nothing else tells its height", ptr.uid);
        Err(Error::corrupt(message))
    }
    fn birth(&self) -> u64 {
        self.names.birth.load(Ordering::Relaxed)
    }
}

fn blocks_of(ptr: &NodePtr) -> Blocks {
    Blocks(u64::from(ptr.len).div_ceil(BLOCK_LEN as u64).max(1))
}

/// The place of a node in its region.
pub fn extent_of(disk: &Disk, ptr: &NodePtr) -> Option<(u32, Extent)> {
    let at = Lba(ptr.uid);
    let region = disk.layout.region_of(at)?;
    let block = disk.layout.block_of(region, Kind::Table, at)?;
    Some((region, Extent { block, count: blocks_of(ptr).0 as u32 }))
}

impl Names {
    /// The index with this root, in this much memory.
    pub fn open(root: Option<NodePtr>, commit: u64, bytes: u64) -> Names {
        let cache = Cache::with(256, bytes / 2, NodeWeight, BuildSpread::default(), Default::default());
        let memtable_max = (bytes / 4) as usize;
        let birth = AtomicU64::new(commit + 1);
        Names { tree: RwLock::new(tree(root)), dropped: Mutex::default(), cache, memtable_max, birth }
    }

    fn tree(&self) -> Arc<Tree<Plain>> {
        self.tree.read().clone()
    }

    /// Adds a name, which may be there.
    pub fn add(&self, name: &Name) {
        add(&self.tree.read(), name);
    }
    /// Removes a name.
    pub fn remove(&self, name: &Name) {
        self.tree.read().apply(Key::from_slice(name.as_bytes()), Message::Delete, &mut ());
    }
    /// The root as of the last checkpoint.
    pub fn root(&self) -> Option<NodePtr> {
        self.tree.read().root()
    }
    /// Whether a name is in the index.
    pub async fn contains(&self, disk: &Disk, space: &Mutex<Space>, name: &Name) -> Result<bool> {
        let nodes = Nodes { names: self, disk, space };
        Ok(self.tree().get(&nodes, name.as_bytes()).await?.is_some())
    }
    /// Whether messages take their share of the memory, and should sink.
    pub fn is_crowded(&self) -> bool {
        self.tree.read().memory().0 > self.memtable_max
    }

    /// About `limit` names from `low` on, below `high`; and where the rest begins.
    pub async fn page(
        &self,
        disk: &Disk,
        space: &Mutex<Space>,
        low: &[u8],
        high: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Vec<Name>, Option<Key>)> {
        let nodes = Nodes { names: self, disk, space };
        let page = self.tree().page(&nodes, low, high, limit).await?;
        let names = page.entries.into_iter().filter_map(|(key, _)| Name::new(key.to_vec()).ok()).collect();
        Ok((names, page.next))
    }

    /// First part of a checkpoint: what comes later is not in it.
    pub fn freeze(&self) {
        self.tree.read().freeze();
    }
    /// Second part: writes nodes. The new root, and nodes that it does not need.
    pub async fn flush(&self, disk: &Disk, space: &Mutex<Space>) -> Result<(Option<NodePtr>, Vec<NodePtr>)> {
        let nodes = Nodes { names: self, disk, space };
        let flushed = self.tree().flush(&nodes, Limits::WIDE, Errands::default()).await?;
        let mut replaced = flushed.replaced;
        replaced.append(&mut self.dropped.lock());
        Ok((flushed.root, replaced))
    }
    /// Third part: the checkpoint of this number is durable.
    pub fn install(&self, root: Option<NodePtr>, replaced: &[NodePtr], commit: u64) {
        self.tree.read().install(root);
        self.birth.store(commit + 1, Ordering::Relaxed);
        for ptr in replaced {
            self.cache.remove(&ptr.uid);
        }
    }

    /// An index that holds nothing yet, to be filled and then to take the place of this one.
    pub fn anew(&self) -> Anew {
        Anew { tree: tree(None), dropped: Vec::new() }
    }

    /// Takes an index that was made anew in place of a damaged one, of which these blocks are left.
    pub fn replace(&self, anew: Anew, left: Vec<NodePtr>) {
        *self.tree.write() = anew.tree;
        let mut dropped = self.dropped.lock();
        dropped.extend(anew.dropped);
        dropped.extend(left);
    }
}

/// An index that is being made anew. Its nodes are on the device as far as memory does not hold them.
pub struct Anew {
    tree: Arc<Tree<Plain>>,
    dropped: Vec<NodePtr>,
}

impl Anew {
    /// Adds a name; writes nodes when messages take their share of the memory.
    pub async fn add(&mut self, names: &Names, disk: &Disk, space: &Mutex<Space>, name: &Name) -> Result<()> {
        add(&self.tree, name);
        if self.tree.memory().0 > names.memtable_max {
            self.tree.freeze();
            let nodes = Nodes { names, disk, space };
            let flushed = self.tree.flush(&nodes, Limits::WIDE, Errands::default()).await?;
            self.tree.install(flushed.root);
            self.dropped.extend(flushed.replaced);
        }
        Ok(())
    }
}

fn tree(root: Option<NodePtr>) -> Arc<Tree<Plain>> {
    Arc::new(Tree::open(1, root, Arc::new(Plain)))
}

fn add(tree: &Tree<Plain>, name: &Name) {
    tree.apply(Key::from_slice(name.as_bytes()), Message::Put(Bytes::new()), &mut ());
}
