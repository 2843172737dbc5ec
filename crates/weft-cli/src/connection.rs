//! A tool's connection to the manager: one request, one answer.

use crate::error::CliError;
use crate::locate::FabricPlace;
use std::fs;
use std::os::unix::fs::MetadataExt;
use weft_api::{ApiAnswer, ApiRequest, decode_reply, encode_request};
use weft_rpc::Link;
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
        let (head, body) = if json.len() <= FRAME_HEAD_MAX { (json, None) } else { (Vec::new(), Some(json)) };
        let called = self.link.call(Kind::Api, &head, body).await;
        if let Err(error) = &called
            && let Some(status) = error.status()
        {
            let text = error.text();
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
        let lost = |source| CliError::ConnectionLost { at: self.at.clone(), source };
        let reply = decode_reply(&called.map_err(lost)?.body).map_err(unreadable)?;
        Ok(reply.into_result()?)
    }

    /// Where the manager is, for texts.
    pub fn at(&self) -> &str {
        &self.at
    }
}

/// Who this process is, for people who list sessions and events: `USER@HOST weft[PID]`.
pub fn client_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = Some(host.trim()).filter(|h| !h.is_empty()).unwrap_or("localhost").to_owned();
    format!("{}@{host} weft[{}]", user(), std::process::id())
}

/// The name of the user that this process runs as, or the number where it has none.
fn user() -> String {
    let Ok(own) = fs::metadata("/proc/self") else { return "somebody".into() };
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_of(&passwd, own.uid()).unwrap_or_else(|| own.uid().to_string())
}

/// The name of a user's number (passwd(5)).
fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.contains(char::is_whitespace))?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_their_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n\nbroken\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_of(passwd, 0).as_deref(), Some("root"));
        assert_eq!(name_of(passwd, 7), None);
        let name = client_name();
        let (person, program) = name.split_once(' ').expect("two words");
        assert!(person.contains('@') && program.starts_with("weft["), "{name}");
    }
}
