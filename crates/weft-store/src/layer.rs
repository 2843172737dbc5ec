//! Layers of a chunk: which of its leaves a key of the block map names. Only [`Layer::Live`] is written
//! today; the others are places in the order of keys for what will come.

/// One of a chunk's leaves. The order is that of the keys: a read at a cut begins at the cut's leaf and
/// goes on through those behind it up to the live one, and the first that has the block decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    /// Versions that the committed parity of a coded group covers.
    Base,
    /// Versions of a change of parity that is under way.
    Prepared,
    /// Versions that a cut sees and that were replaced since. A cut is a counter of versions, below 2^48.
    Cut(u64),
    /// The newest versions.
    Live,
}

impl Layer {
    /// Bytes of an encoded layer: its kind, and the number of a cut.
    pub(crate) const BYTES: usize = 7;

    /// The layer as bytes, of which the order is the layers' order.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, number) = match self {
            Layer::Base => (kind::BASE, 0),
            Layer::Prepared => (kind::PREPARED, 0),
            Layer::Cut(counter) => (kind::CUT, counter),
            Layer::Live => (kind::LIVE, 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&number.to_be_bytes()[1..]);
        bytes[0] = kind;
        bytes
    }

    /// The layer with these bytes; `None` if this program knows none.
    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<Layer> {
        let number = bytes[1..].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        match (bytes[0], number) {
            (kind::BASE, 0) => Some(Layer::Base),
            (kind::PREPARED, 0) => Some(Layer::Prepared),
            (kind::CUT, counter) => Some(Layer::Cut(counter)),
            (kind::LIVE, 0) => Some(Layer::Live),
            _ => None,
        }
    }
}

/// The first byte of a layer. There is room between them.
mod kind {
    pub(super) const BASE: u8 = 0x10;
    pub(super) const PREPARED: u8 = 0x20;
    pub(super) const CUT: u8 = 0x40;
    pub(super) const LIVE: u8 = 0xff;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_in_the_order_in_which_a_read_looks_through_them() {
        let cuts = [1, 2, 255, 256, 1 << 40, (1 << 48) - 1].map(Layer::Cut);
        let all = [&[Layer::Base, Layer::Prepared][..], &cuts, &[Layer::Live]].concat();
        assert!(all.is_sorted());
        let bytes: Vec<_> = all.iter().map(|layer| layer.to_bytes()).collect();
        assert!(bytes.windows(2).all(|pair| pair[0] < pair[1]), "{bytes:?}");
        for (layer, bytes) in all.iter().zip(bytes) {
            assert_eq!(Layer::from_bytes(bytes), Some(*layer));
        }
        for unknown in [[0; 7], [0x30, 0, 0, 0, 0, 0, 0], [0xff, 0, 0, 0, 0, 0, 1], [0x10, 1, 0, 0, 0, 0, 0]]
        {
            assert_eq!(Layer::from_bytes(unknown), None);
        }
    }
}
