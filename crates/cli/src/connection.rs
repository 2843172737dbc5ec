//! A tool's connection to the manager: one request, one answer.

use crate::error::CliError;
use crate::locate::FabricPlace;
use weft_api::{ApiAnswer, ApiRequest, decode_reply, encode_request};
use weft_rt::{Buf, Link};
use weft_types::limits::FRAME_HEAD_MAX;
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// A connection to a manager.
pub struct Connection {
    link: Link,
    at: String,
}

impl Connection {
    /// Connects to the first manager of the fabric that answers.
    ///
    /// # Errors
    /// [`CliError::Unreachable`].
    pub async fn open(place: &FabricPlace) -> Result<Connection, CliError> {
        let mut last = None;
        for addr in place.managers()? {
            match Link::connect(&addr, &Hello::new(PeerRole::Tool, None, client_name())).await {
                Ok(link) => return Ok(Connection { link, at: addr.to_string() }),
                Err(error) => last = Some(error),
            }
        }
        Err(CliError::Unreachable { at: place.to_string(), hint: place.hint(), source: last })
    }

    /// Carries out an operation.
    ///
    /// # Errors
    /// [`CliError::Api`] if the manager refuses; otherwise it may or may not have been carried out.
    pub async fn ask(&self, request: &ApiRequest) -> Result<ApiAnswer, CliError> {
        let json = encode_request(request);
        let (head, body) =
            if json.len() <= FRAME_HEAD_MAX { (json, vec![]) } else { (Vec::new(), vec![Buf::from(json)]) };
        let lost = |source| CliError::ConnectionLost { at: self.at.clone(), source };
        let frame = self.link.call(Kind::Api, &head, body).await.map_err(lost)?;
        let status = Status::from_u16(frame.envelope.status);
        if status != Status::Ok {
            let text = String::from_utf8_lossy(&frame.head).into_owned();
            let (who, hint) = match status {
                // A manager understands every question of its own version; a node's target none.
                Status::Invalid => (
                    "what listens",
                    "is that the manager's address, and the same version of weft? `weft up` and the manager's \
                     log say where it listens",
                ),
                _ => ("the manager", "try again in a few seconds; `weft status` says what is missing"),
            };
            return Err(CliError::Failed {
                message: format!("{who} at {} answers '{status}': {text}", self.at),
                hint: hint.into(),
            });
        }
        let unreadable = |source| CliError::Answer { at: self.at.clone(), source };
        let reply = decode_reply(&frame.body).map_err(unreadable)?;
        Ok(reply.into_result()?)
    }

    /// Where the manager is, for texts.
    pub fn at(&self) -> &str {
        &self.at
    }
}

/// Who this process is, for people who list sessions.
pub fn client_name() -> String {
    format!("weft[{}]", std::process::id())
}
