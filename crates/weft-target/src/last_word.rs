//! The last words of a target that is stopped in order: that it serves nothing any more, and how far its
//! drives have come in the end.
//!
//! The manager is told twice. First once the target refuses everything and what it had admitted has
//! finished: then its drives can leave their groups at once (R11), and clients go on with the others while
//! the stores are being closed. Again once they are closed: this word lets the manager tell a drive from an
//! older copy of itself.
//!
//! It owns how long the manager is tried. It never holds a stop up for longer than that, and nothing that was
//! acknowledged depends on it: a manager that has heard nothing waits the lease out.

use crate::lease::Silent;
use crate::target::Target;
use std::time::Duration;
use weft_rpc::Link;
use weft_rt::{now, sleep, timeout};
use weft_types::with_causes;
use weft_wire::control::{ManagerAnswer, ManagerRequest};

/// How long the manager is tried with the first word, over the connection that is there: many times what it
/// needs. It is said again with the second one.
const FIRST_WORD_MAX: Duration = Duration::from_millis(200);

/// How long the manager is tried in all: as long as a process that is started anew at the same time needs, and short
/// beside the 10 seconds after which `weft down` kills a node.
const LAST_WORD_MAX: Duration = Duration::from_secs(2);

/// How long to wait before a manager that did not answer is tried again.
const RETRY: Duration = Duration::from_millis(100);

impl Target {
    /// Tells the manager that this target serves nothing any more, once that is so.
    pub(crate) async fn say_first_word(&self) {
        let (Some(target), Some(link)) = (self.id(), self.peers.manager()) else { return };
        let request =
            ManagerRequest::Stopped { target, incarnation: self.incarnation, commits: self.commits() };
        let heard = timeout(FIRST_WORD_MAX, self.ask(&link, &request)).await;
        if !matches!(heard, Ok(Ok((ManagerAnswer::Done, _)))) {
            tracing::debug!("the manager has not heard at once that this target serves nothing any more");
        }
    }

    /// Tells the manager how far the drives have come, after [`Target::stop`] and once their stores are closed:
    /// renewals have not told it what was made durable since the last one. Without this word a copy of a drive that
    /// lacks no more than that could be put in its place unnoticed. Returns within two seconds; what was not heard is
    /// told in the log. Says whether it was heard, or nothing was to be said.
    pub async fn say_last_word(&self) -> bool {
        let commits = self.commits();
        let Some(target) = self.id().filter(|_| !commits.is_empty()) else { return true };
        let request = ManagerRequest::Stopped { target, incarnation: self.incarnation, commits };
        let began = now();
        let mut why = String::from("no manager answers");
        let heard = timeout(LAST_WORD_MAX, self.tell_until_heard(&request, &mut why)).await;
        let is_heard = heard == Ok(true);
        if is_heard {
            tracing::debug!(took = ?began.elapsed(), "the manager knows how far the drives have come");
        } else {
            tracing::warn!(
                why,
                "the manager has not heard the last word: an older copy of a drive that lacks only what was written in \
                 the last moments would not be told from the drive"
            );
        }
        is_heard
    }

    /// Tries one manager after the other, over the connection that is there or a new one, until one has taken note
    /// or refuses for good.
    async fn tell_until_heard(&self, request: &ManagerRequest, why: &mut String) -> bool {
        let mut managers = self.options.managers.iter().cycle();
        loop {
            let link = match self.peers.manager() {
                Some(link) => Ok(link),
                None => {
                    let addr = managers.next().expect("a target has a manager");
                    Link::connect(addr, &self.hello()).await
                }
            };
            match link {
                Ok(link) => match self.ask(&link, request).await {
                    Ok((ManagerAnswer::Done, _)) => return true,
                    Ok((other, _)) => *why = other.unexpected("stopped", "done"),
                    Err(Silent::Refused(text)) => {
                        *why = text;
                        return false;
                    }
                    Err(Silent::NotReady(text) | Silent::Lost(text)) => *why = text,
                },
                Err(error) => *why = with_causes(&error),
            }
            sleep(RETRY).await;
        }
    }
}
