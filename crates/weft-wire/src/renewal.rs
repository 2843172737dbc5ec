//! A target's renewal of its lease, and the grant: in a fixed form, because they are most of what a manager
//! of many targets reads and writes.
//!
//! Little-endian. What they mean is in `control.rs`, where peers of protocol 2 and before have them as JSON.

use crate::{DecodeError, Decoder, Encoder};
use weft_types::limits::DRIVES_PER_TARGET_MAX;
use weft_types::{DriveId, MapVersion, TargetId};

/// The first protocol in which a renewal has this form.
pub const RENEWAL_PROTOCOL: u16 = 3;

/// A target asks for its lease. It counts the lease from when it sent this.
///
/// 24 bytes, and 24 more for each entry of the lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The target.
    pub target: TargetId,
    /// The start of the target that joined.
    pub incarnation: u64,
    /// The map that it has adopted durably.
    pub adopted: MapVersion,
    /// Per drive the newest commit that is durable there; at most [`DRIVES_PER_TARGET_MAX`].
    pub commits: Vec<(DriveId, u64)>,
    /// Drives that have adopted a later map than `adopted`, with the version of each; at most as many.
    pub ahead: Vec<(DriveId, MapVersion)>,
}

/// The answer: the lease holds once the map of this version is adopted.
///
/// 16 bytes as the head of a frame; the body has 4 bytes for each suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The map that must be adopted for the lease to count.
    pub map: MapVersion,
    /// The manager's wall clock, which never goes back, in microseconds since 1970-01-01T00:00:00Z.
    pub clock_us: u64,
    /// Targets that must not be vouched for: they are being evicted (R11).
    pub suspects: Vec<TargetId>,
}

impl Renewal {
    /// The head of the frame.
    ///
    /// # Panics
    /// If a list is longer than it may be.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(24 + 24 * (self.commits.len() + self.ahead.len()));
        let count = |n: usize| {
            assert!(n <= DRIVES_PER_TARGET_MAX, "{n} drives of a target");
            n as u16
        };
        e.u32(self.target.0).u16(count(self.commits.len())).u16(count(self.ahead.len()));
        e.u64(self.incarnation).u64(self.adopted.0);
        for (drive, commit) in &self.commits {
            e.bytes(&drive.to_bytes()).u64(*commit);
        }
        for (drive, version) in &self.ahead {
            e.bytes(&drive.to_bytes()).u64(version.0);
        }
        e.0
    }

    /// Reads the head of a frame.
    ///
    /// # Errors
    /// If it is no renewal.
    pub fn decode(bytes: &[u8]) -> Result<Renewal, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (target, commits, ahead) = (TargetId(d.u32()?), d.u16()?, d.u16()?);
        let (incarnation, adopted) = (d.u64()?, MapVersion(d.u64()?));
        let entry = |d: &mut Decoder<'_>| Ok((DriveId::from_bytes(d.array()?), d.u64()?));
        let mut list = |count: u16| {
            if usize::from(count) > DRIVES_PER_TARGET_MAX {
                return Err(DecodeError::Invalid { field: "drives of a target", value: count.into() });
            }
            (0..count).map(|_| entry(&mut d)).collect::<Result<Vec<(DriveId, u64)>, DecodeError>>()
        };
        let (commits, ahead) = (list(commits)?, list(ahead)?);
        d.finish()?;
        let ahead = ahead.into_iter().map(|(drive, version)| (drive, MapVersion(version))).collect();
        Ok(Renewal { target, incarnation, adopted, commits, ahead })
    }
}

impl Grant {
    /// The head and the body of the frame.
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let mut head = Encoder::with_capacity(16);
        head.u64(self.map.0).u64(self.clock_us);
        let mut body = Encoder::with_capacity(4 * self.suspects.len());
        for suspect in &self.suspects {
            body.u32(suspect.0);
        }
        (head.0, body.0)
    }

    /// Reads the head and the body of a frame.
    ///
    /// # Errors
    /// If they are no grant.
    pub fn decode(head: &[u8], body: &[u8]) -> Result<Grant, DecodeError> {
        let mut d = Decoder::new(head);
        let (map, clock_us) = (MapVersion(d.u64()?), d.u64()?);
        d.finish()?;
        let mut d = Decoder::new(body);
        let mut suspects = Vec::with_capacity(body.len() / 4);
        while d.left() > 0 {
            suspects.push(TargetId(d.u32()?));
        }
        Ok(Grant { map, clock_us, suspects })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn renewal() -> impl Strategy<Value = Renewal> {
        let drives = || proptest::collection::vec((any::<u128>(), any::<u64>()), 0..4);
        (any::<(u32, u64, u64)>(), drives(), drives()).prop_map(
            |((target, incarnation, adopted), commits, ahead)| Renewal {
                target: TargetId(target),
                incarnation,
                adopted: MapVersion(adopted),
                commits: commits.into_iter().map(|(d, c)| (DriveId(d), c)).collect(),
                ahead: ahead.into_iter().map(|(d, v)| (DriveId(d), MapVersion(v))).collect(),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_what_is_cut_short_is_refused(r in renewal(), cut in any::<usize>()) {
            let bytes = r.encode();
            prop_assert_eq!(Renewal::decode(&bytes), Ok(r));
            prop_assert!(Renewal::decode(&bytes[..cut % bytes.len()]).is_err());
            prop_assert!(Renewal::decode(&[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn a_grant_is_read_as_written(map: u64, clock_us: u64, suspects: Vec<u32>) {
            let suspects = suspects.into_iter().map(TargetId).collect();
            let grant = Grant { map: MapVersion(map), clock_us, suspects };
            let (head, body) = grant.encode();
            prop_assert_eq!(Grant::decode(&head, &body), Ok(grant));
            prop_assert!(Grant::decode(&head[1..], &body).is_err());
        }

        #[test]
        fn hostile_bytes_do_no_harm(bytes: Vec<u8>) {
            let _ = (Renewal::decode(&bytes), Grant::decode(&bytes, &bytes));
        }
    }
}
