//! The names of a file system, while a trace runs over it.

use crate::snapshot::SnapshotReader;
use crate::walk::Kind;
use std::collections::HashMap;
use std::io::Read;

/// Inodes that nobody told a number of have one from here on.
const OURS: u64 = 1 << 62;
/// The directory above all.
const TOP: u64 = OURS;

/// What is known of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its size, bytes.
    pub size: u64,
    /// Its names.
    pub links: u64,
    /// How often it is open.
    pub open: u64,
    /// It is a directory.
    pub directory: bool,
    /// Ranges of blocks of 4 KiB that it has not, first and end; in order.
    pub holes: Vec<(u64, u64)>,
}

/// All names.
#[derive(Debug)]
pub struct Tree {
    nodes: HashMap<u64, Node>,
    names: HashMap<(u64, Box<str>), u64>,
    next: u64,
    root: String,
    /// Files that the trace uses and that nobody told of.
    pub found: u64,
}

impl Tree {
    /// Nothing but the directories that lead to `root`.
    pub fn new(root: &str) -> Tree {
        let root = format!("/{}", root.trim_matches('/'));
        let mut tree =
            Tree { nodes: HashMap::new(), names: HashMap::new(), next: TOP + 1, root: root.clone(), found: 0 };
        tree.nodes.insert(TOP, Node { directory: true, links: 1, ..Node::default() });
        root.split('/').filter(|name| !name.is_empty()).fold(TOP, |above, name| tree.add(above, name, true));
        tree
    }

    /// Everything that a snapshot has, below `root` or where it was taken. It must be whole, and have names.
    pub fn of_snapshot<R: Read>(snapshot: &mut SnapshotReader<R>, root: Option<&str>) -> Result<Tree, String> {
        if snapshot.header().names_hashed {
            return Err("it has hashes in place of names, and a trace has names; take one without --hash-names".into());
        }
        let mut tree = Tree::new(root.unwrap_or(&snapshot.header().root.clone()));
        let top = tree.find(&tree.root.clone()).unwrap_or(TOP);
        // The inode of the root may come after those of files in it.
        let mut names = Vec::new();
        let mut root = None;
        while let Some(entry) = snapshot.entry().map_err(|error| error.to_string())? {
            let directory = entry.kind == Kind::Directory;
            let inode = entry.inode & (OURS - 1);
            if entry.inode == entry.parent && root.is_none() {
                root = Some(inode);
                continue;
            }
            let name = String::from_utf8_lossy(&entry.name).into_owned().into_boxed_str();
            names.push((entry.parent & (OURS - 1), name, inode));
            let holes = holes(&entry.extents, entry.size);
            tree.nodes.insert(inode, Node { size: entry.size, links: entry.links.into(), directory, open: 0, holes });
        }
        for (parent, name, inode) in names {
            let parent = if Some(parent) == root { top } else { parent };
            tree.names.insert((parent, name), inode);
        }
        Ok(tree)
    }

    /// Which directory is always in memory, with all above it: where the file system is mounted.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The directory above all.
    pub fn top(&self) -> u64 {
        TOP
    }

    /// Whether a path is the root, or above it.
    pub fn is_held(&self, path: &str) -> bool {
        self.root.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// What a name in a directory is.
    pub fn child(&self, directory: u64, name: &str) -> Option<u64> {
        // A key of borrowed parts would be another type; names are short.
        self.names.get(&(directory, name.into())).copied()
    }

    /// What a path is.
    pub fn find(&self, path: &str) -> Option<u64> {
        path.split('/').filter(|name| !name.is_empty()).try_fold(TOP, |above, name| self.child(above, name))
    }

    /// Adds a file or directory.
    pub fn add(&mut self, directory: u64, name: &str, is_directory: bool) -> u64 {
        let inode = self.next;
        self.next += 1;
        self.nodes.insert(inode, Node { directory: is_directory, links: 1, ..Node::default() });
        self.names.insert((directory, name.into()), inode);
        inode
    }

    /// Gives a file a further name.
    pub fn link(&mut self, directory: u64, name: &str, inode: u64) {
        self.names.insert((directory, name.into()), inode);
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.links += 1;
        }
    }

    /// Removes a name; returns the inode if it is gone with it, which it is not while it is open.
    pub fn unlink(&mut self, directory: u64, name: &str) -> Option<u64> {
        let inode = self.names.remove(&(directory, name.into()))?;
        let node = self.nodes.get_mut(&inode)?;
        node.links = node.links.saturating_sub(1);
        self.forget(inode)
    }

    /// Forgets a file without names that nobody has open; returns it if it was one.
    pub fn forget(&mut self, inode: u64) -> Option<u64> {
        let node = self.nodes.get(&inode)?;
        let gone = node.links == 0 && node.open == 0;
        gone.then_some(inode)
    }

    /// Gives up what is known of a file.
    pub fn drop_node(&mut self, inode: u64) {
        self.nodes.remove(&inode);
    }

    /// What is known of a file.
    pub fn node(&self, inode: u64) -> Option<&Node> {
        self.nodes.get(&inode)
    }

    /// The same, to change it.
    pub fn node_mut(&mut self, inode: u64) -> Option<&mut Node> {
        self.nodes.get_mut(&inode)
    }
}

/// Holes of a file, of its extents.
fn holes(extents: &[ashlar_env::host::Extent], size: u64) -> Vec<(u64, u64)> {
    let (mut holes, mut at) = (Vec::new(), 0);
    // A small file may lie in its inode, and then has no extents; nor has one whose file system does not tell.
    if extents.is_empty() {
        return holes;
    }
    for extent in extents {
        if extent.logical > at {
            holes.push((at / BLOCK, extent.logical / BLOCK));
        }
        at = at.max(extent.logical.saturating_add(extent.len));
    }
    if at < size {
        holes.push((at.div_ceil(BLOCK), size.div_ceil(BLOCK)));
    }
    holes
}

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// Holes of a file that are kept; with more, the last are forgotten.
const HOLES_MAX: usize = 1024;

impl Node {
    /// Blocks of a range, first and end, that the file has not.
    pub fn holes_in(&self, first: u64, end: u64) -> u64 {
        let within = |(from, to): &(u64, u64)| to.min(&end).saturating_sub(*from.max(&first));
        self.holes.iter().map(within).sum()
    }

    /// The file has these blocks now.
    pub fn fill(&mut self, first: u64, end: u64) {
        if self.holes_in(first, end) == 0 {
            return;
        }
        let holes = std::mem::take(&mut self.holes);
        let left = holes.into_iter().flat_map(|(from, to)| [(from, to.min(first)), (from.max(end), to)]);
        self.holes = left.filter(|(from, to)| from < to).take(HOLES_MAX).collect();
    }

    /// Its size is another now: what it grew by are holes, and what it lost it has no more.
    pub fn resize(&mut self, size: u64) {
        let (old, new) = (self.size.div_ceil(BLOCK), size.div_ceil(BLOCK));
        if new > old && self.holes.len() < HOLES_MAX {
            self.holes.push((old, new));
        }
        self.holes.retain_mut(|hole| {
            hole.1 = hole.1.min(new);
            hole.0 < hole.1
        });
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_and_go() {
        let mut tree = Tree::new("/mnt/x");
        let root = tree.find("/mnt/x").expect("it was made");
        assert!(tree.is_held("/mnt") && tree.is_held("/mnt/x") && !tree.is_held("/mnt/x/a") && !tree.is_held("/mn"));
        let file = tree.add(root, "a", false);
        tree.link(root, "b", file);
        assert_eq!((tree.find("/mnt/x/a"), tree.find("/mnt/x/b"), tree.find("/a")), (Some(file), Some(file), None));
        assert_eq!(tree.unlink(root, "a"), None, "it has another name");
        tree.node_mut(file).expect("there").open += 1;
        assert_eq!(tree.unlink(root, "b"), None, "it is open");
        tree.node_mut(file).expect("there").open -= 1;
        assert_eq!(tree.forget(file), Some(file));
        assert_eq!(tree.unlink(root, "b"), None);
    }

    #[test]
    fn holes_are_filled() {
        let mut node = Node { size: 3 * BLOCK, ..Node::default() };
        node.resize(10 * BLOCK);
        assert_eq!((node.holes_in(0, 10), node.holes_in(2, 4), node.holes_in(0, 3)), (7, 1, 0));
        node.fill(5, 6);
        assert_eq!(node.holes, [(3, 5), (6, 10)]);
        node.resize(7 * BLOCK + 1);
        assert_eq!(node.holes, [(3, 5), (6, 8)]);
        node.fill(0, 100);
        assert_eq!(node.holes, []);
    }
}
