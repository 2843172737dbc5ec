//! What a benchmark asks of the manager, as any tool would.

use crate::BenchError;
use weft_api::{ApiAnswer, ApiRequest, FabricLoad, decode_reply, encode_request};
use weft_rpc::{Body, CallError, Link};
use weft_rt::Addr;
use weft_wire::Kind;
use weft_wire::handshake::{Hello, PeerRole};

/// A connection to the first manager that answers, made anew when it was lost.
pub(crate) struct Tool {
    managers: Vec<Addr>,
    link: Option<Link>,
}

impl Tool {
    /// For a fabric whose managers may answer there; at least one.
    pub(crate) fn new(managers: Vec<Addr>) -> Tool {
        Tool { managers, link: None }
    }

    /// Asks the manager.
    ///
    /// # Errors
    /// [`BenchError::Link`] if none answers, [`BenchError::Manager`] if it refuses.
    pub(crate) async fn ask(
        &mut self,
        operation: &'static str,
        request: &ApiRequest,
    ) -> Result<ApiAnswer, BenchError> {
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => self.connect().await?,
        };
        let refused = |message: String| BenchError::Manager { operation, message };
        let reply = match link.call(Kind::Api, &encode_request(request), Body::none()).await {
            Err(error @ CallError::Refused { .. }) => Err(refused(error.to_string())),
            called => Ok(called?),
        };
        self.link = Some(link);
        let reply = decode_reply(&reply?.body).map_err(|e| refused(e.to_string()))?;
        reply.into_result().map_err(|e| refused(e.to_string()))
    }

    /// The counters of all nodes that are up, as they are now.
    ///
    /// # Errors
    /// Those of [`Tool::ask`].
    pub(crate) async fn load(&mut self) -> Result<FabricLoad, BenchError> {
        match self.ask("load", &ApiRequest::Load {}).await? {
            ApiAnswer::Load(load) => Ok(*load),
            _ => Err(not_an_answer("load")),
        }
    }

    async fn connect(&self) -> Result<Link, BenchError> {
        let hello = Hello::new(PeerRole::Tool, None, "weft bench");
        let mut failed = None;
        for addr in &self.managers {
            match Link::connect(addr, &hello).await {
                Ok(link) => return Ok(link),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| not_an_answer("connect"), BenchError::from))
    }
}

pub(crate) fn not_an_answer(operation: &'static str) -> BenchError {
    BenchError::Manager { operation, message: "an answer to something else".into() }
}
