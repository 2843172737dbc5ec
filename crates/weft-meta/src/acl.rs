//! Access control lists of files, as Linux keeps them in extended attributes (acl(5), POSIX.1e draft 17):
//! what they make of permissions, and what new files get of them.
//!
//! ```text
//!  offset  size  field
//!       0     4  version, 2
//!       4   8 n  entries: tag 2, permissions 2, user or group 4
//! ```
//!
//! Numbers are little endian. Entries stand in the order of their tags; those of named users and groups have
//! any order among themselves.

/// The extended attribute of the list by which access is decided.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";

/// The extended attribute of the list that what is made in a directory gets.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// The permissions of one entry.
const ALL: u16 = 0o7;

/// The permissions of a file.
pub(crate) const PERMISSIONS: u16 = 0o777;

/// Whom an entry is about, with the number that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwnerGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Others = 0x20,
}

impl Tag {
    fn from_u16(n: u16) -> Option<Tag> {
        let all = [Tag::Owner, Tag::User, Tag::OwnerGroup, Tag::Group, Tag::Mask, Tag::Others];
        all.into_iter().find(|tag| *tag as u16 == n)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A list that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

impl Acl {
    /// The list of an extended attribute's value; `None` if that is none, or the list makes no sense.
    pub(crate) fn decode(value: &[u8]) -> Option<Acl> {
        let (head, rest) = value.split_at_checked(HEAD_BYTES)?;
        if head != VERSION.to_le_bytes() || !rest.len().is_multiple_of(ENTRY_BYTES) {
            return None;
        }
        let entry = |bytes: &[u8]| {
            let permissions = u16::from_le_bytes([bytes[2], bytes[3]]);
            Some(AclEntry {
                tag: Tag::from_u16(u16::from_le_bytes([bytes[0], bytes[1]]))?,
                permissions: (permissions <= ALL).then_some(permissions)?,
                id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            })
        };
        let acl = Acl(rest.chunks(ENTRY_BYTES).map(entry).collect::<Option<Vec<AclEntry>>>()?);
        acl.makes_sense().then_some(acl)
    }

    /// One entry each for the owner, its group and others; a mask if anybody is named.
    fn makes_sense(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let names = count(Tag::User) + count(Tag::Group) > 0;
        self.0.is_sorted_by_key(|entry| entry.tag)
            && [Tag::Owner, Tag::OwnerGroup, Tag::Others].into_iter().all(|tag| count(tag) == 1)
            && (count(Tag::Mask) == 1 || (count(Tag::Mask) == 0 && !names))
    }

    /// The value of an extended attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            value.extend_from_slice(&entry.permissions.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    /// The permissions of a file with this list.
    pub(crate) fn permissions(&self) -> u16 {
        let of = |tag| self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions);
        let group = of(Tag::Mask).or_else(|| of(Tag::OwnerGroup));
        [of(Tag::Owner), group, of(Tag::Others)].into_iter().fold(0, |mode, of| mode << 3 | of.unwrap_or(0))
    }

    /// Whether permissions say all that the list says.
    pub(crate) fn is_permissions(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, Tag::Owner | Tag::OwnerGroup | Tag::Others))
    }

    /// Follows permissions that were set (`chmod`).
    pub(crate) fn follow(&mut self, mode: u16) {
        self.limit(|_, of_mode| of_mode, mode);
    }

    /// What a file gets that is made with these permissions in a directory with this default list.
    pub(crate) fn inherited(&self, mode: u16) -> Acl {
        let mut acl = self.clone();
        acl.limit(|permissions, of_mode| permissions & of_mode, mode);
        acl
    }

    /// Changes the entries that permissions are about.
    fn limit(&mut self, change: impl Fn(u16, u16) -> u16, mode: u16) {
        let has_mask = self.0.iter().any(|entry| entry.tag == Tag::Mask);
        for entry in &mut self.0 {
            let shift = match entry.tag {
                Tag::Owner => 6,
                Tag::OwnerGroup if !has_mask => 3,
                Tag::Mask => 3,
                Tag::Others => 0,
                Tag::OwnerGroup | Tag::User | Tag::Group => continue,
            };
            entry.permissions = change(entry.permissions, mode >> shift & ALL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u16, u32)]) -> Acl {
        Acl(entries
            .iter()
            .map(|(tag, permissions, id)| AclEntry { tag: *tag, permissions: *permissions, id: *id })
            .collect())
    }

    fn named() -> Acl {
        let none = u32::MAX;
        acl(&[
            (Tag::Owner, 7, none),
            (Tag::User, 6, 1000),
            (Tag::OwnerGroup, 5, none),
            (Tag::Mask, 4, none),
            (Tag::Others, 1, none),
        ])
    }

    #[test]
    fn a_list_is_what_its_bytes_say() {
        let value = named().encode();
        assert_eq!(value.len(), 4 + 5 * 8);
        assert_eq!(Acl::decode(&value), Some(named()));
        for end in 0..value.len() {
            assert_eq!(Acl::decode(&value[..end]), None, "{end} bytes");
        }
        let mut other = value.clone();
        other[0] = 1;
        assert_eq!(Acl::decode(&other), None, "another version");
        let mut wide = value;
        wide[6] = 8;
        assert_eq!(Acl::decode(&wide), None, "permissions that there are not");
    }

    #[test]
    fn a_list_that_makes_no_sense_is_none() {
        let none = u32::MAX;
        let least = [(Tag::Owner, 7, none), (Tag::OwnerGroup, 5, none), (Tag::Others, 1, none)];
        assert!(acl(&least).makes_sense() && acl(&least).is_permissions());
        for without in 0..3 {
            let mut entries = least.to_vec();
            entries.remove(without);
            assert!(!acl(&entries).makes_sense(), "without entry {without}");
        }
        let unmasked = [least[0], (Tag::User, 7, 5), least[1], least[2]];
        assert!(!acl(&unmasked).makes_sense(), "somebody is named, and there is no mask");
        assert!(!acl(&[least[1], least[0], least[2]]).makes_sense(), "another order");
        assert!(!acl(&[least[0], least[0], least[1], least[2]]).makes_sense(), "two owners");
    }

    #[test]
    fn the_mask_stands_for_the_group() {
        let mut acl = named();
        assert_eq!((acl.permissions(), acl.is_permissions()), (0o741, false));
        acl.follow(0o2630);
        assert_eq!(acl.permissions(), 0o630);
        assert_eq!(acl.0[2].permissions, 5, "what the group has stays");
        let inherited = named().inherited(0o640);
        assert_eq!(inherited.permissions(), 0o640 & 0o741);
    }
}
