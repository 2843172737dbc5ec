//! What the manager asks of a target.
//!
//! It owns taking the request apart and answering; the work is done where it belongs. It never acts on the word of
//! anyone but a manager; how it is, it tells people's tools as well, which ask when there is no manager to ask.

use crate::follow::News;
use crate::target::Target;
use weft_rpc::{Answer, Peer, Request};
use weft_rt::Buf;
use weft_rt::sync::join_all;
use weft_rules::{Path, mark};
use weft_store::StoreError;
use weft_types::limits::FRAME_HEAD_MAX;
use weft_types::{DriveId, MapVersion, VolumeId, with_causes};
use weft_wire::Status;
use weft_wire::control::{self, TargetAnswer, TargetRequest};
use weft_wire::handshake::PeerRole;

impl Target {
    /// Carries out a manager's request.
    pub(crate) async fn command(&self, peer: &Peer, request: Request) -> Answer {
        let asked = match control::decode::<TargetRequest>(&request.head) {
            Ok(asked) => asked,
            Err(error) => return Answer::error(Status::Invalid, error.to_string()),
        };
        let is_tools_question = peer.role == PeerRole::Tool && asked == TargetRequest::Status;
        if peer.role != PeerRole::Manager && !is_tools_question {
            return Answer::error(Status::Refused, format!("'{}' is no manager", peer.name));
        }
        match asked {
            TargetRequest::AdoptMap { nonce, .. } => self.answer_news(News::map(&request.body, nonce)).await,
            TargetRequest::AdoptDelta { nonce, .. } => {
                self.answer_news(News::delta(&request.body, nonce)).await
            }
            TargetRequest::AdoptPart { version, nonce, part, parts } => {
                self.answer_part((version, nonce), (part, parts), &request.body).await
            }
            TargetRequest::KeepPart { drive, version } => self.keep_part(drive, version, &request.body).await,
            TargetRequest::StopVouching { victim, .. } => {
                mark(Path::PeerPromised);
                self.lease.promise(victim);
                done()
            }
            TargetRequest::EndSessions { sessions } => {
                self.end_sessions(&sessions).await;
                done()
            }
            TargetRequest::Sweep { sessions, volume, map } => {
                match self.sweep(&sessions, volume, map).await {
                    Ok(()) => done(),
                    Err(why) => Answer::error(Status::NotReady, why),
                }
            }
            TargetRequest::DropVolume { volume } => self.drop_volume(volume).await,
            TargetRequest::Inventory { detail } => {
                let found = self.inventory(&detail.into_iter().collect()).await;
                let found = TargetAnswer::Inventory(Box::new(found));
                Answer::ok(vec![], vec![Buf::from(control::encode(&found))])
            }
            TargetRequest::HoldsData { volume } => match self.holds_data_of(volume).await {
                Ok(holds) => answer(&TargetAnswer::HoldsData { holds }),
                Err(error) => Answer::error(Status::DriveFailed, with_causes(&error)),
            },
            TargetRequest::Scrub { orders } => answer(&TargetAnswer::Scrubs(self.take_scrubs(orders))),
            TargetRequest::HeardOf { sessions } => {
                answer(&TargetAnswer::HeardOf { heard: self.meters.heard_of(&sessions) })
            }
            TargetRequest::Floors { close } => {
                answer(&TargetAnswer::Floors { groups: self.floors(&close).await })
            }
            TargetRequest::Status => answer(&TargetAnswer::Status(self.status())),
            TargetRequest::Load => {
                let load = TargetAnswer::Load(Box::new(self.load().await));
                Answer::ok(vec![], vec![Buf::from(control::encode(&load))])
            }
        }
    }

    /// Keeps a part of the whole map on a drive, for a recovery. What it says is not looked at.
    async fn keep_part(&self, id: DriveId, version: MapVersion, part: &Buf) -> Answer {
        let Some(drive) = self.drives.get(&id).filter(|d| !d.has_failed()) else {
            return Answer::error(Status::NotFound, format!("drive {id} is not served by this target"));
        };
        match drive.store.put_map_part(version.0, part).await {
            Ok(()) => done(),
            Err(error @ StoreError::TooLarge { .. }) => Answer::error(Status::Refused, with_causes(&error)),
            Err(error) => drive.refusal(&error),
        }
    }

    /// Returns all blocks of a volume that is being deleted. Its generation fences every client already.
    async fn drop_volume(&self, volume: VolumeId) -> Answer {
        let drives: Vec<_> = self.drives.values().filter(|d| !d.has_failed()).collect();
        let dropped = join_all(drives.iter().map(|d| d.store.drop_objects(volume))).await;
        for (drive, dropped) in drives.iter().zip(dropped) {
            if let Err(error) = dropped {
                let refusal = drive.refusal(&error);
                if !drive.has_failed() {
                    return refusal;
                }
            }
        }
        done()
    }
}

fn done() -> Answer {
    answer(&TargetAnswer::Done)
}

/// The answer as the head, or as the body where it is longer than a head may be.
fn answer(answer: &TargetAnswer) -> Answer {
    let bytes = control::encode(answer);
    if bytes.len() > FRAME_HEAD_MAX {
        return Answer::ok(vec![], vec![Buf::from(bytes)]);
    }
    Answer::ok(bytes, vec![])
}
