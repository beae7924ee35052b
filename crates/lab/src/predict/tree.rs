//! The names of a file system, while a trace runs over it.

use crate::snapshot::SnapshotReader;
use crate::snapshot::listing::{Line, Listed, ListingReader};
use crate::walk::Kind;
use std::collections::HashMap;
use std::io::{BufRead, Read};

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
    /// They are of a listing whose last directory has no end: it may have been cut there.
    pub unended: bool,
}

impl Tree {
    /// Nothing but the directories that lead to `root`.
    pub fn new(root: &str) -> Tree {
        let root = format!("/{}", root.trim_matches('/'));
        let mut tree = Tree {
            nodes: HashMap::new(),
            names: HashMap::new(),
            next: TOP + 1,
            root: root.clone(),
            found: 0,
            unended: false,
        };
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

    /// Everything that a listing of the thesis has, below `root` (default: `/`). Directories come after those that have them.
    /// Sparse files are taken for whole ones.
    pub fn of_listing<R: BufRead>(listing: &mut ListingReader<R>, root: Option<&str>) -> Result<Tree, String> {
        let mut tree = Tree::new(root.unwrap_or("/"));
        let top = tree.find(&tree.root.clone()).unwrap_or(TOP);
        let (mut root, mut directory) = (Vec::new(), top);
        while let Some(line) = listing.read()? {
            let done = match line {
                Line::Root { name, size, .. } => {
                    root = name;
                    tree.node_mut(top).into_iter().for_each(|node| node.size = size);
                    Ok(())
                }
                Line::Directory(path) => match tree.listed(top, path.strip_prefix(root.as_slice())) {
                    Some(found) => {
                        directory = found;
                        Ok(())
                    }
                    None => Err("there is no such directory in those before; list it behind the one that has it"),
                },
                Line::Entry(entry) => tree.list(directory, entry),
                Line::End => Ok(()),
            };
            done.map_err(|what| listing.wrong(what))?;
        }
        tree.unended = !listing.has_end();
        Ok(tree)
    }

    /// The directory with this path below `top`.
    fn listed(&self, top: u64, path: Option<&[u8]>) -> Option<u64> {
        let path = String::from_utf8_lossy(path?).into_owned();
        let mut names = path.split('/').filter(|name| !name.is_empty());
        let found = names.try_fold(top, |above, name| self.child(above, name))?;
        self.node(found).is_some_and(|node| node.directory).then_some(found)
    }

    /// Adds what a listing has in `directory`.
    fn list(&mut self, directory: u64, entry: Listed) -> Result<(), &'static str> {
        let name = String::from_utf8_lossy(&entry.name).into_owned().into_boxed_str();
        // Of a file with several names, each is listed.
        let inode = entry.inode & (OURS - 1);
        if self.names.insert((directory, name), inode).is_some() {
            return Err("the directory has this name already");
        }
        let is_directory = entry.kind == Kind::Directory;
        let node = self.nodes.entry(inode).or_insert_with(|| Node { directory: is_directory, ..Node::default() });
        if node.links > 0 && (is_directory || node.directory) {
            return Err("this inode number is that of another file or directory; a directory has one name");
        }
        (node.size, node.links) = (entry.size, node.links + 1);
        Ok(())
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
    fn figure_a3_is_a_state() {
        let figure = include_str!("../snapshot/figure_a3.txt");
        let tree = Tree::of_listing(&mut ListingReader::new(figure.as_bytes()), Some("/mnt")).expect("a listing");
        let at = |path: &str| tree.find(path).and_then(|inode| Some((inode, tree.node(inode)?.size)));
        assert_eq!(at("/mnt/src/RCS/logparse.c,v"), Some((53445, 23779)));
        assert_eq!(at("/mnt/src/include"), Some((21377, 10)));
        assert_eq!(at("/mnt/bin"), Some((10688, 512)));
        assert_eq!(at("/mnt/bin/trim.c"), None);
        assert_eq!(
            (tree.node(53440).map(|node| node.directory), at("/mnt").map(|(_, size)| size)),
            (Some(true), Some(512))
        );
    }

    #[test]
    fn listings_that_cannot_be_are_refused() {
        for (text, expected) in [
            ("./ 2 512\n~~\n./src/\n", "line 3: there is no such directory"),
            ("./ 2 512\n5 0 7 src\n~~\n./src/\n", "line 4: there is no such directory"),
            ("./ 2 512\n5 1 7 src\n~~\n/src/\n", "line 4: there is no such directory"),
            ("./ 2 512\n5 0 7 a\n6 0 7 a\n", "line 3: the directory has this name"),
            ("./ 2 512\n5 1 7 a\n5 0 7 b\n", "line 3: this inode number"),
            ("./ 2 512\n5 0 7 a\n5 1 7 b\n", "line 3: this inode number"),
        ] {
            let error = Tree::of_listing(&mut ListingReader::new(text.as_bytes()), None).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let twice = "./ 2 512\n5 0 7 a\n5 0 7 b\n~~\n";
        let tree = Tree::of_listing(&mut ListingReader::new(twice.as_bytes()), None).expect("two names");
        assert_eq!((tree.find("/a"), tree.node(5).map(|node| node.links)), (Some(5), Some(2)));
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
