//! Access control lists as POSIX 1003.1e draft 17 has them, in the form in which Linux passes them as extended attributes:
//! a version, then entries of a tag, permissions and an id (`linux/posix_acl_xattr.h`).
//!
//! The kernel decides by them; what changes them beside `setfacl` happens here: creation in a directory with a default
//! list, and `chmod`.

use crate::{Errno, Name, Result};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The list that is in force.
pub const ACCESS: &Name = b"system.posix_acl_access";
/// What new files in a directory get.
pub const DEFAULT: &Name = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_LEN: usize = 8;
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about, in the order that a list has. The numbers are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

const TAGS: [Tag; 6] = [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Group, Tag::Mask, Tag::Other];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    /// Read 4, write 2, execute 1.
    permissions: u32,
    id: u32,
}

/// A valid list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Reads and checks a list.
    pub fn decode(mut bytes: &[u8]) -> Result<Acl> {
        if bytes.len() < 4 || !(bytes.len() - 4).is_multiple_of(ENTRY_LEN) {
            return Err(Errno::Invalid.into());
        }
        if bytes.get_u32_le() != VERSION {
            return Err(Errno::Unsupported.into());
        }
        let mut entries = Vec::with_capacity(bytes.len() / ENTRY_LEN);
        while bytes.has_remaining() {
            let (tag, permissions, id) = (bytes.get_u16_le(), u32::from(bytes.get_u16_le()), bytes.get_u32_le());
            let tag = TAGS.into_iter().find(|known| *known as u16 == tag).ok_or(Errno::Invalid)?;
            if permissions > 7 {
                return Err(Errno::Invalid.into());
            }
            entries.push(Entry { tag, permissions, id });
        }
        let acl = Acl(entries);
        if acl.is_valid() { Ok(acl) } else { Err(Errno::Invalid.into()) }
    }

    /// Owner, owning group and others once each, in order, and a mask if anybody is named.
    fn is_valid(&self) -> bool {
        let count = |tag: Tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Other].into_iter().all(|tag| count(tag) == 1);
        let named = count(Tag::User) + count(Tag::Group) > 0;
        once && self.0.is_sorted_by_key(|entry| entry.tag) && count(Tag::Mask) <= 1 && (!named || count(Tag::Mask) == 1)
    }

    /// The list as Linux passes it.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(4 + self.0.len() * ENTRY_LEN);
        bytes.put_u32_le(VERSION);
        for entry in &self.0 {
            bytes.put_u16_le(entry.tag as u16);
            bytes.put_u16_le(entry.permissions as u16);
            let named = matches!(entry.tag, Tag::User | Tag::Group);
            bytes.put_u32_le(if named { entry.id } else { NO_ID });
        }
        bytes.freeze()
    }

    /// Whether permission bits say as much.
    pub fn is_plain(&self) -> bool {
        self.0.len() == 3
    }

    /// Entries that stand for the permission bits, with the bits' shift. The group's bits are the mask's if there is one.
    fn bits(&mut self) -> impl Iterator<Item = (&mut u32, u32)> {
        let masked = self.0.iter().any(|entry| entry.tag == Tag::Mask);
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            Tag::Owner => Some((&mut entry.permissions, 6)),
            Tag::Mask => Some((&mut entry.permissions, 3)),
            Tag::OwningGroup if !masked => Some((&mut entry.permissions, 3)),
            Tag::Other => Some((&mut entry.permissions, 0)),
            _ => None,
        })
    }

    /// The nine permission bits that go with it.
    pub fn mode(&self) -> u32 {
        self.clone().bits().fold(0, |mode, (permissions, shift)| mode | *permissions << shift)
    }

    /// As `chmod` changes it.
    pub fn with_mode(mut self, mode: u32) -> Acl {
        self.bits().for_each(|(permissions, shift)| *permissions = mode >> shift & 7);
        self
    }

    /// As a new file inherits it, created with these permission bits.
    pub fn inherited(self, mode: u32) -> Acl {
        let mode = self.mode() & mode;
        self.with_mode(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(tag: Tag, permissions: u32, id: u32) -> Entry {
        Entry { tag, permissions, id }
    }

    /// `user::rwx user:7:rw- group::r-x mask::rwx other::---`
    fn list() -> Acl {
        Acl(vec![
            entry(Tag::Owner, 7, NO_ID),
            entry(Tag::User, 6, 7),
            entry(Tag::OwningGroup, 5, NO_ID),
            entry(Tag::Mask, 7, NO_ID),
            entry(Tag::Other, 0, NO_ID),
        ])
    }

    #[test]
    fn lists_are_what_linux_passes() {
        let bytes = list().encode();
        assert_eq!(bytes[..20], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 7, 0, 0, 0]);
        assert_eq!(Acl::decode(&bytes).expect("valid"), list());
        assert_eq!(list().mode(), 0o770, "the mask stands for the group");
        assert!(!list().is_plain());
    }

    #[test]
    fn changing_the_mode_changes_the_mask_and_not_the_group() {
        let changed = list().with_mode(0o641);
        let permissions: Vec<u32> = changed.0.iter().map(|entry| entry.permissions).collect();
        assert_eq!(permissions, [6, 6, 5, 4, 1]);
        assert_eq!(list().inherited(0o4664).mode(), 0o660);
    }

    #[test]
    fn invalid_lists_are_refused() {
        let without = |tag: Tag| Acl(list().0.into_iter().filter(|entry| entry.tag != tag).collect());
        for tag in [Tag::Owner, Tag::OwningGroup, Tag::Mask, Tag::Other] {
            assert!(Acl::decode(&without(tag).encode()).is_err(), "{tag:?}");
        }
        assert!(Acl::decode(&without(Tag::User).encode()).is_ok());
        let mut turned = list();
        turned.0.reverse();
        assert!(Acl::decode(&turned.encode()).is_err());
        for len in 0..list().encode().len() {
            assert!(Acl::decode(&list().encode()[..len]).is_err(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_refused_or_valid(bytes in proptest::collection::vec(0u8..40, 0..60)) {
            let bytes = [&[2, 0, 0, 0][..], &bytes].concat();
            if let Ok(acl) = Acl::decode(&bytes) {
                prop_assert_eq!(Acl::decode(&acl.encode()).map(|again| again.mode()).ok(), Some(acl.mode()));
            }
        }
    }
}
