//! The members' side of a scrub: read one chunk from the drive, verify every block, say what was found.
//!
//! It never changes anything but that the store remembers which blocks it found damaged, and sends no data: checksums
//! are enough to see whether members hold the same, at a thousandth of the bytes.

use crate::admit::{Claim, Need};
use crate::serve::{parse_peer, read_answer};
use crate::target::Target;
use crate::throttle::{PEER_WAIT, Work};
use weft_rpc::{Answer, Peer, Request};
use weft_types::Version;

impl Target {
    /// Answers the member that leads a scrub. Only an in-sync member does, at the same epoch.
    pub(crate) async fn answer_verify(&self, peer: &Peer, request: &Request) -> Answer {
        let asked = match parse_peer(peer, request) {
            Ok(asked) => asked,
            Err(answer) => return answer,
        };
        if !asked.is_urgent {
            self.throttle.turn(Work::Verify, PEER_WAIT).await;
        }
        let claim = Claim {
            drive: asked.drive,
            group: asked.group,
            epoch: asked.epoch,
            need: Need::ReadSet,
            attached: None,
            of_inode: None,
            version: Version::ZERO,
            is_repair: false,
        };
        // Like a reader's read: it changes nothing, so a newer epoch need not wait for it.
        let drive = match self.admit(&claim).await {
            Ok(admitted) => admitted.drive().clone(),
            Err(answer) => return answer,
        };
        let _piece = self.throttle.begin(Work::Verify);
        match drive.store.read(asked.group, asked.object, asked.blocks).await {
            Ok(extents) => {
                let (head, _data) = read_answer(self.clock(), extents);
                Answer::ok(head, vec![])
            }
            Err(error) => drive.refusal(&error),
        }
    }
}
