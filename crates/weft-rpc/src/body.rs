//! What travels behind the head of a message.

use weft_rt::Buf;

/// The body of a request or an answer: buffers that follow each other.
#[derive(Clone, Debug, Default)]
pub struct Body {
    bufs: Vec<Buf>,
    are_blocks: bool,
}

impl Body {
    /// Nothing.
    pub fn none() -> Body {
        Body::default()
    }

    /// Blocks, each with a checksum that its users verify. Where both ends share memory, they are used where
    /// they lie; the other end could still change them there, so nobody may rely on two looks being the same.
    pub fn blocks(bufs: Vec<Buf>) -> Body {
        Body { bufs, are_blocks: true }
    }

    /// Whether it was made by [`Body::blocks`].
    pub fn are_blocks(&self) -> bool {
        self.are_blocks
    }

    /// Bytes of all buffers.
    pub fn len(&self) -> usize {
        self.bufs.iter().map(|buf| buf.len()).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffers.
    pub fn into_bufs(self) -> Vec<Buf> {
        self.bufs
    }
}

/// A document, or anything else that is no blocks: it is copied out of shared memory before anybody looks at
/// it.
impl From<Vec<Buf>> for Body {
    fn from(bufs: Vec<Buf>) -> Body {
        Body { bufs, are_blocks: false }
    }
}

impl From<Buf> for Body {
    fn from(buf: Buf) -> Body {
        Body::from(vec![buf])
    }
}

/// A document that may be missing.
impl From<Option<Vec<u8>>> for Body {
    fn from(document: Option<Vec<u8>>) -> Body {
        Body::from(document.into_iter().map(Buf::from).collect::<Vec<_>>())
    }
}
