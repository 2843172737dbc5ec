//! `weft events`: what happened, and why.

use crate::connection::Connection;
use crate::error::CliError;
use crate::interrupt::unless_interrupted;
use crate::output::Output;
use crate::paint::{Paint, Tone};
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, EventInfo};
use weft_rt::sleep;

/// How often the manager is asked for news: below what people notice, and next to no work.
const POLL: Duration = Duration::from_millis(300);

/// Show what happened in the fabric lately
///
/// Every change of the fabric map is an event with its reason: nodes that join and leave, replicas that are
/// evicted, come back or are rebuilt, volumes that are made and deleted. The manager keeps the last 1,000
/// since its start.
///
/// --add puts an event of your own among them, a `note`: what was done to a machine, or when a test began. Reports
/// that `weft report` makes of a recording mark it on their charts.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft events\n  weft events --follow\n  \
                             weft events --limit 10 --json\n  weft events --add 'node-3: new firmware'")]
pub struct EventsArgs {
    /// Go on and show events as they happen, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
    /// Show at most this many, the newest
    #[arg(long, value_name = "N")]
    pub limit: Option<u32>,
    /// Add a note to the events instead of showing them
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["follow", "limit"])]
    pub add: Option<String>,
}

pub(crate) async fn events(
    connection: &Connection,
    args: &EventsArgs,
    output: Output,
) -> Result<(), CliError> {
    if let Some(text) = &args.add {
        let answer = connection.ask(&ApiRequest::EventAdd { text: text.clone() }).await?;
        let ApiAnswer::Events { events } = &answer else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        return output.show(&answer, |_, paint| events.iter().map(|e| line(e, paint)).collect());
    }
    let mut after = 0;
    let mut limit = args.limit;
    loop {
        let answer = connection.ask(&ApiRequest::Events { after, limit }).await?;
        let ApiAnswer::Events { events } = &answer else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        if !args.follow {
            return output.show(&answer, |_, paint| events.iter().map(|e| line(e, paint)).collect());
        }
        for event in events {
            output.show_line(event, line)?;
            after = after.max(event.seq);
        }
        limit = None;
        if unless_interrupted(sleep(POLL)).await.is_none() {
            return Ok(());
        }
    }
}

fn line(event: &EventInfo, paint: Paint) -> String {
    let time = paint.text(Tone::Faint, &event.time.to_string());
    format!("{time}  {:18}  {}\n", event.what, event.why)
}
