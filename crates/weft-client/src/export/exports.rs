//! Volumes under the names by which clients ask for them.

#[cfg(any(test, feature = "memory"))]
use crate::export::MemoryVolume;
use crate::export::source::Source;
use crate::export::{Client, ClientLoad, Geometry};
use crate::{AttachMode, ClientError, Volume};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_types::BLOCK_SIZE;
use weft_types::limits::EXPORT_NAME_BYTES_MAX;

/// Why a volume cannot become an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Another export has the name.
    #[error("there is already an export named '{name}'")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The name is empty (which stands for the only export) or longer than protocols allow.
    #[error("an export's name has 1 to {bytes_max} bytes, not {bytes}")]
    NameLength {
        /// The name's length in bytes.
        bytes: usize,
        /// The longest allowed.
        bytes_max: usize,
    },
}

/// What a face offers: volumes by name. A client that asks for the empty name gets the only export, if there
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

    /// The same, of a volume in memory: for tests of faces.
    ///
    /// # Errors
    /// [`ExportError`].
    #[cfg(any(test, feature = "memory"))]
    pub fn add_memory(&mut self, name: &str, volume: Rc<MemoryVolume>) -> Result<(), ExportError> {
        self.add_source(name, Source::Memory(volume))
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The export that a client means.
    pub fn find(&self, name: &str) -> Option<Rc<Export>> {
        match (name, self.0.len()) {
            ("", 1) => self.0.values().next().cloned(),
            _ => self.0.get(name).cloned(),
        }
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Export>> {
        self.0.values()
    }

    fn add_source(&mut self, name: &str, source: Source) -> Result<(), ExportError> {
        if name.is_empty() || name.len() > EXPORT_NAME_BYTES_MAX {
            return Err(ExportError::NameLength { bytes: name.len(), bytes_max: EXPORT_NAME_BYTES_MAX });
        }
        if self.0.contains_key(name) {
            return Err(ExportError::NameTaken { name: name.to_owned() });
        }
        let export =
            Export { name: name.to_owned(), source, clients: RefCell::default(), next_client: Cell::new(1) };
        self.0.insert(name.to_owned(), Rc::new(export));
        Ok(())
    }
}

/// One volume under its name, for any number of clients at a time.
pub struct Export {
    name: String,
    pub(super) source: Source,
    /// What the clients that are there have asked for so far.
    pub(super) clients: RefCell<BTreeMap<u64, ClientLoad>>,
    next_client: Cell<u64>,
}

impl Export {
    /// The name by which clients ask for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is, for people.
    pub fn description(&self) -> String {
        let mode = match self.source.mode() {
            AttachMode::Exclusive => "attached exclusively",
            AttachMode::Shared => "attached shared",
            AttachMode::ReadOnly => "attached read-only",
        };
        format!("Weft volume '{}', {mode}", self.source.name())
    }

    /// Size, blocks and mode, as of now.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            size: self.source.size_bytes(),
            logical_block: self.source.logical_block(),
            physical_block: BLOCK_SIZE as u32,
            mode: self.source.mode(),
        }
    }

    /// Whether the attach still stands, as far as this client knows.
    ///
    /// # Errors
    /// [`ClientError::Fenced`], [`ClientError::SessionOver`].
    pub async fn check(&self) -> Result<(), ClientError> {
        self.source.flush().await
    }

    /// A client that uses it from now on, until the value is dropped. The name is for people.
    pub fn client(self: &Rc<Self>, name: &str) -> Client {
        let number = self.next_client.get();
        self.next_client.set(number + 1);
        self.clients.borrow_mut().insert(number, ClientLoad { name: name.to_owned(), ..Default::default() });
        Client::new(self.clone(), number)
    }

    /// The clients that use it, and what they have asked for so far; in the order in which they came.
    pub fn clients(&self) -> Vec<ClientLoad> {
        self.clients.borrow().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Rc<MemoryVolume> {
        MemoryVolume::new(1 << 20, AttachMode::Exclusive)
    }

    #[test]
    fn the_empty_name_means_the_only_export() {
        let mut exports = Exports::new();
        assert!(exports.find("").is_none());
        exports.add_memory("a", memory()).unwrap();
        assert_eq!(exports.find("").map(|e| e.name.clone()), Some("a".to_owned()));
        exports.add_memory("b", memory()).unwrap();
        assert!(exports.find("").is_none() && exports.find("b").is_some() && exports.find("c").is_none());
        assert_eq!(exports.names().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn names_are_unique_and_of_a_length_that_fits() {
        let mut exports = Exports::new();
        exports.add_memory("a", memory()).unwrap();
        assert!(matches!(exports.add_memory("a", memory()), Err(ExportError::NameTaken { .. })));
        assert!(matches!(exports.add_memory("", memory()), Err(ExportError::NameLength { .. })));
        let long = "x".repeat(EXPORT_NAME_BYTES_MAX + 1);
        assert!(matches!(exports.add_memory(&long, memory()), Err(ExportError::NameLength { .. })));
    }
}
