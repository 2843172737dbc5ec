//! Little-endian fields, one after another: the only way in which binary heads are written and read.

use thiserror::Error;

/// Bytes that are not the message that they claim to be.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("message ends early: needed {needed} bytes at offset {offset}, found {found}")]
    Short {
        /// Where the field begins.
        offset: usize,
        /// Bytes that the field has.
        needed: usize,
        /// Bytes that were left.
        found: usize,
    },
    /// Bytes are left over after the last field.
    #[error("message has {0} bytes too many")]
    Long(usize),
    /// A field has a value that it cannot have.
    #[error("field {field} has the invalid value {value}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// What was found.
        value: u64,
    },
    /// The frame does not begin with the magic number.
    #[error("not a Weft frame: found magic {0:#010x}, expected {expected:#010x}", expected = crate::frame::MAGIC)]
    Magic(u32),
    /// The checksum of envelope and head does not match.
    #[error("frame checksum is {found:#010x}, expected {expected:#010x}: damaged on the way")]
    Checksum {
        /// The checksum that the frame carries.
        found: u32,
        /// The checksum that its bytes have.
        expected: u32,
    },
    /// A document has a form of a later release.
    #[error("the document has version {found}, this release reads up to {newest}: upgrade what reads it")]
    Version {
        /// Its version.
        found: u32,
        /// The newest that is read.
        newest: u32,
    },
    /// A document uses features of a later release that its reader has to know.
    #[error("the document has features {0:#x}, which this release does not know: upgrade what reads it")]
    Features(u32),
    /// A document does not parse.
    #[error("document does not parse: {0}")]
    Document(String),
}

/// Writes fields to a buffer.
#[derive(Default)]
pub struct Encoder(pub Vec<u8>);

impl Encoder {
    /// An encoder whose buffer has room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Encoder(Vec::with_capacity(bytes))
    }
    /// Appends one byte.
    pub fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }
    /// Appends 2 bytes.
    pub fn u16(&mut self, v: u16) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }
    /// Appends 4 bytes.
    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }
    /// Appends 8 bytes.
    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.bytes(&v.to_le_bytes())
    }
    /// Appends bytes as they are.
    pub fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.0.extend_from_slice(v);
        self
    }
}

/// Reads fields from bytes that may be hostile.
pub struct Decoder<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Decoder { bytes, offset: 0 }
    }
    /// Bytes not read yet.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }
    /// Takes `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        if self.left() < n {
            return Err(DecodeError::Short { offset: self.offset, needed: n, found: self.left() });
        }
        let taken = &self.bytes[self.offset..self.offset + n];
        self.offset += n;
        Ok(taken)
    }
    /// Takes `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.bytes(N)?.try_into().expect("the slice has N bytes"))
    }
    /// Takes one byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    /// Takes 2 bytes.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// Takes 4 bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// Takes 8 bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// Ends the message: nothing may be left.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            n => Err(DecodeError::Long(n)),
        }
    }
}
