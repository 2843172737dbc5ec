//! On whose request something is done: for the events.
//!
//! It owns the name of whoever has asked, as long as code runs that acts on it. It never checks who anyone
//! is: names are what peers call themselves.

use crate::manager::Manager;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use weft_rpc::Peer;
use weft_types::limits::ACTOR_CHARS_MAX;
use weft_wire::handshake::PeerRole;

/// Who a peer is, in an event. A person's tool calls itself `USER@HOST PROGRAM[PID]`; the program says
/// nothing.
pub(crate) fn name_of(peer: &Peer) -> String {
    let escaped = peer.name.chars().flat_map(char::escape_debug);
    let name: String = escaped.take(ACTOR_CHARS_MAX).collect();
    match peer.role {
        PeerRole::Tool => match name.split_once(' ') {
            Some((person, _)) if person.contains('@') => person.to_owned(),
            _ => name,
        },
        PeerRole::Client => format!("client {name}"),
        PeerRole::Target(_) => format!("target {name}"),
        PeerRole::Manager => format!("manager {name}"),
    }
}

impl Manager {
    /// Carries something out on somebody's request: whatever it commits or tells carries the name. Others
    /// that run while it waits do not.
    pub(crate) async fn on_behalf_of<T>(&self, who: String, operation: impl Future<Output = T>) -> T {
        let who: Rc<str> = who.into();
        let mut operation = pin!(operation);
        poll_fn(|context| {
            let before = self.acting.replace(Some(who.clone()));
            let poll = operation.as_mut().poll(context);
            *self.acting.borrow_mut() = before;
            poll
        })
        .await
    }

    /// Carries something out on somebody's request that waits for nothing.
    pub(crate) fn acting_for<T>(&self, who: String, operation: impl FnOnce() -> T) -> T {
        let before = self.acting.replace(Some(who.into()));
        let done = operation();
        *self.acting.borrow_mut() = before;
        done
    }

    /// Decides something of the manager's own accord, whoever is being served just now.
    pub(crate) fn of_own_accord<T>(&self, decide: impl FnOnce() -> T) -> T {
        let before = self.acting.take();
        let decided = decide();
        *self.acting.borrow_mut() = before;
        decided
    }

    /// On whose request the code that runs now acts.
    pub(crate) fn actor(&self) -> Option<Rc<str>> {
        self.acting.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::Instant;

    #[test]
    fn people_are_named_by_user_and_host() {
        let name = |role, name: &str| {
            let (name, since) = (name.to_owned(), Instant::default());
            name_of(&Peer { role, name, protocol: weft_wire::PROTOCOL, since })
        };
        assert_eq!(name(PeerRole::Tool, "ada@host-1 weft[7]"), "ada@host-1");
        assert_eq!(name(PeerRole::Tool, "some tool"), "some tool");
        assert_eq!(name(PeerRole::Client, "nbd ada@host-1 weft[7]"), "client nbd ada@host-1 weft[7]");
        assert_eq!(name(PeerRole::Tool, "a\nb"), "a\\nb", "no line of a log is made up");
        assert_eq!(name(PeerRole::Tool, &"x".repeat(1000)).len(), ACTOR_CHARS_MAX);
    }
}
