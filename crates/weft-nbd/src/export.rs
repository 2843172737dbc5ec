//! Volumes under the names by which clients ask for them.

use crate::error::ExportError;
#[cfg(any(test, feature = "fuzzing"))]
use crate::memory::MemoryVolume;
use crate::protocol::*;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_client::{AttachMode, ClientError, StatusExtent, Volume};
use weft_rt::Buf;
use weft_types::BLOCK_SIZE;
use weft_types::limits::NBD_STRING_BYTES_MAX;

/// What a server offers: volumes by name. A client that asks for the empty name gets the only export, if there
/// is only one.
#[derive(Default)]
pub struct Exports(BTreeMap<String, Rc<Export>>);

impl Exports {
    /// No exports.
    pub fn new() -> Exports {
        Exports::default()
    }

    /// Adds a volume under a name of 1 to 4096 bytes. The mode of its attach decides what clients may do: the
    /// smallest request is 512 bytes on an exclusive attach and 4096 on a shared or read-only one.
    ///
    /// # Errors
    /// [`ExportError`] if the name is taken, empty or too long.
    pub fn add(&mut self, name: &str, volume: Volume) -> Result<(), ExportError> {
        self.add_source(name, Source::Volume(volume))
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn add_source(&mut self, name: &str, source: Source) -> Result<(), ExportError> {
        if name.is_empty() || name.len() > NBD_STRING_BYTES_MAX {
            return Err(ExportError::NameLength { bytes: name.len(), bytes_max: NBD_STRING_BYTES_MAX });
        }
        if self.0.contains_key(name) {
            return Err(ExportError::NameTaken { name: name.to_owned() });
        }
        self.0.insert(name.to_owned(), Rc::new(Export { name: name.to_owned(), source }));
        Ok(())
    }

    /// The export that a client means.
    pub(crate) fn find(&self, name: &str) -> Option<Rc<Export>> {
        match (name, self.0.len()) {
            ("", 1) => self.0.values().next().cloned(),
            _ => self.0.get(name).cloned(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rc<Export>> {
        self.0.values()
    }
}

/// Where the data is.
pub(crate) enum Source {
    Volume(Volume),
    /// For tests of this crate, which may not build a fabric.
    #[cfg(any(test, feature = "fuzzing"))]
    Memory(Rc<MemoryVolume>),
}

/// Calls the method on whatever is behind the export.
macro_rules! on_source {
    ($export:expr, $volume:ident => $call:expr) => {
        match &$export.source {
            Source::Volume($volume) => $call,
            #[cfg(any(test, feature = "fuzzing"))]
            Source::Memory($volume) => $call,
        }
    };
}

/// One volume under its name. Offsets and lengths are in bytes; every method may fail with what
/// [`weft_client::Volume`] says.
pub(crate) struct Export {
    pub(crate) name: String,
    source: Source,
}

impl Export {
    /// For people (`NBD_INFO_DESCRIPTION`, and the list of exports).
    pub(crate) fn description(&self) -> String {
        let mode = match self.mode() {
            AttachMode::Exclusive => "attached exclusively",
            AttachMode::Shared => "attached shared",
            AttachMode::ReadOnly => "attached read-only",
        };
        format!("Weft volume '{}', {mode}", on_source!(self, v => v.name()))
    }

    /// The size in bytes, as of now: it may grow.
    pub(crate) fn size(&self) -> u64 {
        on_source!(self, v => v.size_bytes())
    }

    /// The smallest request, and the unit of alignment.
    pub(crate) fn block_min(&self) -> u32 {
        on_source!(self, v => v.logical_block())
    }

    /// The smallest request that needs no reading before writing.
    pub(crate) fn block_preferred(&self) -> u32 {
        BLOCK_SIZE as u32
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.mode() == AttachMode::ReadOnly
    }

    /// Section "Transmission flags". Flags that only concern writes are left out where there are none.
    pub(crate) fn transmission_flags(&self, is_structured: bool) -> u16 {
        let always = NBD_FLAG_HAS_FLAGS
            | NBD_FLAG_SEND_FLUSH
            | NBD_FLAG_SEND_FUA
            | NBD_FLAG_CAN_MULTI_CONN
            | NBD_FLAG_SEND_CACHE;
        let writing = match self.is_read_only() {
            true => NBD_FLAG_READ_ONLY,
            false => NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO,
        };
        always | writing | if is_structured { NBD_FLAG_SEND_DF } else { 0 }
    }

    pub(crate) async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, ClientError> {
        on_source!(self, v => v.read(offset, length).await)
    }

    pub(crate) async fn write(&self, offset: u64, data: Buf) -> Result<(), ClientError> {
        on_source!(self, v => v.write(offset, vec![data]).await)
    }

    pub(crate) async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        on_source!(self, v => v.write_zeroes(offset, length).await)
    }

    pub(crate) async fn discard(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        on_source!(self, v => v.discard(offset, length).await)
    }

    /// Also says whether the attach still stands.
    pub(crate) async fn flush(&self) -> Result<(), ClientError> {
        on_source!(self, v => v.flush().await)
    }

    pub(crate) async fn block_status(
        &self,
        offset: u64,
        length: u64,
    ) -> Result<Vec<StatusExtent>, ClientError> {
        on_source!(self, v => v.block_status(offset, length).await)
    }

    fn mode(&self) -> AttachMode {
        on_source!(self, v => v.mode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        Source::Memory(MemoryVolume::new(1 << 20, AttachMode::Exclusive))
    }

    #[test]
    fn the_empty_name_means_the_only_export() {
        let mut exports = Exports::new();
        assert!(exports.find("").is_none());
        exports.add_source("a", source()).unwrap();
        assert_eq!(exports.find("").map(|e| e.name.clone()), Some("a".to_owned()));
        exports.add_source("b", source()).unwrap();
        assert!(exports.find("").is_none() && exports.find("b").is_some() && exports.find("c").is_none());
        assert_eq!(exports.names().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn names_are_unique_and_of_a_length_that_fits() {
        let mut exports = Exports::new();
        exports.add_source("a", source()).unwrap();
        assert!(matches!(exports.add_source("a", source()), Err(ExportError::NameTaken { .. })));
        assert!(matches!(exports.add_source("", source()), Err(ExportError::NameLength { .. })));
        let long = "x".repeat(NBD_STRING_BYTES_MAX + 1);
        assert!(matches!(exports.add_source(&long, source()), Err(ExportError::NameLength { .. })));
    }

    #[test]
    fn a_read_only_export_does_not_offer_to_write() {
        let export =
            |mode| Export { name: "e".into(), source: Source::Memory(MemoryVolume::new(1 << 20, mode)) };
        let writable = export(AttachMode::Shared).transmission_flags(true);
        assert_ne!(writable & NBD_FLAG_SEND_TRIM, 0);
        assert_eq!(writable & NBD_FLAG_READ_ONLY, 0);
        let read_only = export(AttachMode::ReadOnly).transmission_flags(false);
        assert_ne!(read_only & NBD_FLAG_READ_ONLY, 0);
        assert_eq!(read_only & (NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_DF), 0);
    }
}
