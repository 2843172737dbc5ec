//! A file of three lines: what it is, its content, and a checksum over both.
//!
//! ```text
//! {"format":"...","format_version":1, ...}
//! {... the content, JSON, of as many bytes as the first line says ...}
//! {"crc32c":"1a2b3c4d"}        of all bytes before this line
//! ```
//! It owns the frame; what is in the first two lines is that of each format.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Why a file is not one of this format, or cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinesError {
    /// It does not begin like one.
    Foreign,
    /// It was made by a newer program, in this version of the format.
    Newer(u32),
    /// It is damaged, or cut off.
    Damaged(String),
}

/// Defines the error of a format of such files: with what is said of a file of another kind, and the newest
/// version of the format.
macro_rules! error_of_format {
    ($(#[$about:meta])* $name:ident, $foreign:literal, $newest:expr) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum $name {
            /// It does not begin like one.
            #[error($foreign)]
            Foreign,
            /// It was made by a newer program.
            #[error("it has format {found}, this program knows up to {}", $newest)]
            Newer {
                /// The format found.
                found: u32,
            },
            /// It is damaged, or cut off.
            #[error("it is damaged: {0}")]
            Damaged(String),
        }

        impl From<$crate::lines::LinesError> for $name {
            fn from(error: $crate::lines::LinesError) -> Self {
                use $crate::lines::LinesError;
                match error {
                    LinesError::Foreign => $name::Foreign,
                    LinesError::Newer(found) => $name::Newer { found },
                    LinesError::Damaged(why) => $name::Damaged(why),
                }
            }
        }
    };
}
pub(crate) use error_of_format;

#[derive(Serialize, Deserialize)]
struct Tail {
    crc32c: String,
}

/// The file.
///
/// # Panics
/// Never: a first line of plain fields always serialises.
pub(crate) fn encode(head: &impl Serialize, content: &[u8]) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(head).expect("a head serialises");
    bytes.push(b'\n');
    bytes.extend_from_slice(content);
    bytes.push(b'\n');
    let tail = Tail { crc32c: format!("{:08x}", crate::crc32c(&bytes)) };
    bytes.extend(serde_json::to_vec(&tail).expect("a tail serialises"));
    bytes.push(b'\n');
    bytes
}

/// The first line and the content of a file of this format, in this version or an older one. `length` is
/// how many bytes the first line says that the content has.
///
/// # Errors
/// If the bytes are not exactly what was written once.
pub(crate) fn decode<'a, H: DeserializeOwned>(
    bytes: &'a [u8],
    format: &str,
    version: u32,
    length: impl FnOnce(&H) -> usize,
) -> Result<(H, &'a [u8]), LinesError> {
    #[derive(Deserialize)]
    struct Shape {
        format: String,
        format_version: u32,
    }
    let damaged = |why: &str| LinesError::Damaged(why.to_owned());
    let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
    let shape: Shape = serde_json::from_slice(&bytes[..end]).map_err(|_| LinesError::Foreign)?;
    if shape.format != format {
        return Err(LinesError::Foreign);
    }
    if shape.format_version > version {
        return Err(LinesError::Newer(shape.format_version));
    }
    let head: H = serde_json::from_slice(&bytes[..end]).map_err(|e| damaged(&e.to_string()))?;
    let content_end = (end + 1).checked_add(length(&head)).filter(|e| *e < bytes.len());
    let content_end = content_end.ok_or_else(|| damaged("it is cut off"))?;
    let tail: Tail = serde_json::from_slice(&bytes[content_end + 1..])
        .map_err(|_| damaged("its last line is no checksum"))?;
    let found = format!("{:08x}", crate::crc32c(&bytes[..=content_end]));
    if tail.crc32c != found {
        return Err(damaged(&format!("checksum {found}, expected {}", tail.crc32c)));
    }
    Ok((head, &bytes[end + 1..content_end]))
}
