//! A session as the fabric below it sees it.

use crate::lane::Reached;
use std::pin::Pin;
use std::time::Duration;
use weft_types::{Generation, SessionId, VolumeId};

/// Why a session is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Fenced,
    Over,
    /// By this client itself.
    Detached,
}

impl Ended {
    /// What may have ended it, where the manager has not said so.
    pub(crate) fn guess(self) -> &'static str {
        match self {
            Ended::Fenced => {
                "another client attached the volume exclusively, the volume was deleted, or the fabric's \
                 map was recovered"
            }
            Ended::Over => "its client was out of touch for too long, or somebody ended it",
            Ended::Detached => "it was detached",
        }
    }
}

/// A session that uses a fabric. The fabric tells it what has happened below.
pub(crate) trait Attached {
    /// Which.
    fn id(&self) -> SessionId;

    /// Of which volume.
    fn volume(&self) -> VolumeId;

    /// The volume's name, for people.
    fn volume_name(&self) -> &str;

    /// The volume's generation when it was attached.
    fn generation(&self) -> Generation;

    /// Whether it is of no further use, as far as this client knows.
    fn has_ended(&self) -> bool;

    /// The session is of no further use.
    fn end(&self, why: Ended);

    /// The fabric holds another map.
    fn map_changed(&self);

    /// Adds what other lanes of the attach have said of targets within this time.
    fn add_reach_of_others(&self, within: Duration, own: &mut Reached);

    /// A connection to a target has ended: what was sent last may be lost.
    fn connection_ended(&self);

    /// Tells targets that the client is alive.
    fn show_life(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;
}
