//! The kernel's FUSE interface: operations, flags and layouts of the public header (`uapi/linux/fuse.h`),
//! protocol 7.31 to 7.45.
//!
//! Names of operations, flags and fields are those of the header. It owns bytes, and never decides anything.

mod answers;
mod requests;

pub(crate) use answers::*;
pub(crate) use requests::*;

/// The major version that both sides must speak.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version that these layouts are of.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version that is served (Linux 5.4). No kernel whose io_uring `weft-rt` can use has an
/// older one.
pub(crate) const MINOR_OLDEST: u32 = 31;

/// The operations.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
}

/// A field of a fixed width, in the byte order of this machine: the kernel is on the same one.
pub(crate) trait Field: Sized + Copy + Default {
    /// Bytes of it.
    const BYTES: usize;

    /// Takes the field from the front; `None` if the bytes end inside.
    fn take(bytes: &mut &[u8]) -> Option<Self>;

    /// Appends the field.
    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! integers {
    ($($int:ident)*) => {$(
        impl Field for $int {
            const BYTES: usize = size_of::<$int>();
            fn take(bytes: &mut &[u8]) -> Option<$int> {
                let (first, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some($int::from_ne_bytes(*first))
            }
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

integers! { u16 u32 i32 u64 i64 }

impl<T: Field, const N: usize> Field for [T; N]
where
    [T; N]: Default,
{
    const BYTES: usize = T::BYTES * N;
    fn take(bytes: &mut &[u8]) -> Option<[T; N]> {
        let mut fields = [T::default(); N];
        for field in &mut fields {
            *field = T::take(bytes)?;
        }
        Some(fields)
    }
    fn put(&self, bytes: &mut Vec<u8>) {
        self.iter().for_each(|field| field.put(bytes));
    }
}

/// Layouts without gaps: a struct of the header is its fields, one behind the other.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        #[allow(dead_code, reason = "layouts are written down whole")]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }
        const _: () = assert!($size == 0 $(+ <$ty as $crate::proto::Field>::BYTES)*);
        impl $crate::proto::Field for $name {
            const BYTES: usize = $size;
            fn take(bytes: &mut &[u8]) -> Option<$name> {
                Some($name { $($field: <$ty>::take(bytes)?),* })
            }
            fn put(&self, bytes: &mut Vec<u8>) {
                $(self.$field.put(bytes);)*
            }
        }
    )*};
}
pub(crate) use layouts;
