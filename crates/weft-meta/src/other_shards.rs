//! How the shards that a process serves reach the others of their file system (F3).
//!
//! It owns which server is asked, and what becomes of a question that arrives. What is asked is in `peer.rs`.

use crate::error::{MediumError, MetaError};
use crate::peer::{PeerAnswer, PeerAsk, Peers};
use crate::peer_message::PeerRequest;
use crate::server::{ShardServer, framed};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rpc::{Answer as Reply, Request};
use weft_types::{VolumeId, with_causes};
use weft_wire::{Kind, Status};

/// How long a shard is waited for: a little longer than it lets a question wait for what sessions hold.
const PEER_PATIENCE: Duration = Duration::from_secs(12);

/// The other shards of a file system, for one that this process serves.
pub(crate) struct OtherShards {
    server: Weak<ShardServer>,
    file_system: VolumeId,
}

impl OtherShards {
    /// Those of this file system.
    pub(crate) fn of(server: &Rc<ShardServer>, file_system: VolumeId) -> OtherShards {
        OtherShards { server: Rc::downgrade(server), file_system }
    }
}

impl Peers for OtherShards {
    fn ask(&self, shard: u16, ask: PeerAsk) -> Pin<Box<dyn Future<Output = Option<PeerAnswer>>>> {
        let (server, file_system) = (self.server.clone(), self.file_system);
        Box::pin(async move { server.upgrade()?.ask_peer(PeerRequest { file_system, shard, ask }).await })
    }
}

impl ShardServer {
    /// Asks a shard, here or where the map says that it is served.
    async fn ask_peer(&self, request: PeerRequest) -> Option<PeerAnswer> {
        if let Some(shard) = self.shard((request.file_system, request.shard)) {
            return shard.answer_peer(&request.ask).await.ok();
        }
        let fabric = self.fabric_now()?;
        let server = {
            let map = fabric.map();
            let files = map.volumes.get(&request.file_system)?.files()?;
            files.shards.get(usize::from(request.shard))?.server?
        };
        let answer = fabric.ask_beside(server, Kind::AskPeer, &request.encode(), PEER_PATIENCE).await?;
        let answer = PeerAnswer::decode(&answer);
        if let Err(error) = &answer {
            let (file_system, shard) = (request.file_system.0, request.shard);
            tracing::warn!(file_system, shard, error = with_causes(error), "a shard's answer cannot be read");
        }
        answer.ok()
    }

    /// Answers a question of another shard.
    pub(crate) async fn answer_peer(&self, request: &Request) -> Reply {
        let bytes = if request.head.is_empty() { &request.body } else { &request.head };
        let asked = match PeerRequest::decode(bytes) {
            Ok(asked) => asked,
            Err(error) => return Reply::error(Status::Invalid, with_causes(&error)),
        };
        let Some(shard) = self.shard((asked.file_system, asked.shard)) else {
            let text =
                format!("shard {} of file system {} is not served here", asked.shard, asked.file_system);
            return Reply::error(Status::NotServing, text);
        };
        match shard.answer_peer(&asked.ask).await {
            Ok(answer) => framed(answer.encode()),
            Err(error @ (MetaError::Medium(MediumError::Fenced) | MetaError::Closed)) => {
                Reply::error(Status::NotServing, with_causes(&error))
            }
            Err(error) => Reply::error(Status::NotReady, with_causes(&error)),
        }
    }
}
