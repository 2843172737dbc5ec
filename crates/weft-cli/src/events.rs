//! `weft events`: what happened, who did it, and why.

use crate::connection::Connection;
use crate::error::CliError;
use crate::interrupt::unless_interrupted;
use crate::locate::FabricPlace;
use crate::output::{Output, note};
use crate::paint::{Paint, Tone};
use crate::span::{Span, span_ms};
use std::str::FromStr;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, EventFilter, EventInfo, Timestamp};
use weft_rt::{sleep, wall_clock_us};

/// How often the manager is asked for news: below what people notice, and next to no work.
const POLL: Duration = Duration::from_millis(300);

/// How often a manager that is away is looked for.
const RETRY: Duration = Duration::from_secs(1);

/// A clock that was set back by less is corrected all the time; only the JSON document tells of it.
const CLOCK_BACK_SHOWN_MS: u64 = 1_000;

/// Show what happened in the fabric lately
///
/// Every change of the fabric map is an event with its reason and who asked for it: nodes that join and leave,
/// replicas that are evicted, come back or are rebuilt, volumes that are made and deleted, settings. So is data
/// that cannot be used any more or again, a pool that fills up, damage that was found, and a scrub. The manager keeps
/// the last 5,000, also across its restarts.
///
/// Events are shown in the order in which they happened, which is that of their numbers. Where the manager's clock
/// was set back in between, that is said.
///
/// --add puts an event of your own among them, a `note`: what was done to a machine, or when a test began. Reports
/// that `weft report` makes of a recording mark it on their charts.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  weft events\n  weft events --follow\n  weft events --limit 10 --json\n  \
                             weft events --since 2h --node node-2\n  \
                             weft events --kind evict --kind promote --volume data\n  \
                             weft events --follow --json | jq -r .what\n  weft events --add 'node-3: new firmware'"
)]
pub struct EventsArgs {
    /// Go on and show events as they happen, until Ctrl-C; with --json one document per line
    #[arg(long)]
    pub follow: bool,
    /// Show at most this many, the newest
    #[arg(long, value_name = "N")]
    pub limit: Option<u32>,
    /// Only events from this time on: how long ago, such as 90s, 2h or 7d, or a time such as 2026-01-31T23:59:59Z
    ///
    /// By the times that the events carry, which are the manager's.
    #[arg(long, value_name = "TIME")]
    pub since: Option<Since>,
    /// Only events of this kind, as in the second column; may be given several times
    #[arg(long = "kind", value_name = "KIND")]
    pub kinds: Vec<String>,
    /// Only events about this volume
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Only events about this node
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Only events about this drive: its identifier, or the first digits
    #[arg(long, value_name = "ID")]
    pub drive: Option<String>,
    /// Add a note to the events instead of showing them
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["follow", "limit", "since", "kinds", "volume", "node", "drive"])]
    pub add: Option<String>,
}

/// A time, or how long ago it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// That long ago.
    Ago(Span),
    /// Then.
    At(Timestamp),
}

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Since, String> {
        if let Ok(span) = text.parse() {
            return Ok(Since::Ago(span));
        }
        // Of an RFC 3339 time in UTC the parts at the end may be left out.
        let whole = match text.len() {
            10 => format!("{text}T00:00:00.000Z"),
            20 => format!("{}.000Z", text.trim_end_matches('Z')),
            _ => text.to_owned(),
        };
        whole.parse().map(Since::At).map_err(|_| {
            "expected how long ago, such as 90s, 2h or 7d, or a time such as 2026-01-31 or 2026-01-31T23:59:59Z"
                .to_owned()
        })
    }
}

impl Since {
    /// The time, if it is this time now.
    fn before(self, now_ms: u64) -> Timestamp {
        match self {
            Since::At(time) => time,
            Since::Ago(span) => {
                let ms = u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
                Timestamp::from_millis(now_ms.saturating_sub(ms))
            }
        }
    }
}

pub(crate) async fn events(place: &FabricPlace, args: &EventsArgs, output: Output) -> Result<(), CliError> {
    let filter = EventFilter {
        since: args.since.map(|since| since.before(wall_clock_us() / 1000)),
        kinds: args.kinds.clone(),
        volume: args.volume.clone(),
        node: args.node.clone(),
        drive: args.drive.clone(),
    };
    let mut connection = Connection::open(place).await?;
    if let Some(text) = &args.add {
        let answer = connection.ask(&ApiRequest::EventAdd { text: text.clone() }).await?;
        let ApiAnswer::Events { events } = &answer else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        return output.show(&answer, |_, paint| events.iter().map(|e| line(e, paint)).collect());
    }
    if !args.follow {
        let answer = connection.ask(&ApiRequest::Events { after: 0, limit: args.limit, filter }).await?;
        let ApiAnswer::Events { events } = &answer else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        return output.show(&answer, |_, paint| events.iter().map(|e| line(e, paint)).collect());
    }
    let (mut after, mut limit) = (0, args.limit);
    loop {
        match connection.ask(&ApiRequest::Events { after, limit, filter: filter.clone() }).await {
            Ok(ApiAnswer::Events { events }) => {
                for event in &events {
                    output.show_line(event, line)?;
                    after = after.max(event.seq);
                }
                limit = None;
            }
            Ok(_) => return Err(CliError::wrong_answer(connection.at())),
            Err(CliError::ConnectionLost { at, .. }) => {
                note(&format!("the manager at {at} is away; events follow once it is back"));
                let Some(again) = unless_interrupted(reconnect(place)).await else { return Ok(()) };
                connection = again?;
                continue;
            }
            Err(error) => return Err(error),
        }
        if unless_interrupted(sleep(POLL)).await.is_none() {
            return Ok(());
        }
    }
}

/// Connects once a manager answers again.
async fn reconnect(place: &FabricPlace) -> Result<Connection, CliError> {
    loop {
        match Connection::open(place).await {
            Err(CliError::Unreachable { .. }) => sleep(RETRY).await,
            opened => return opened,
        }
    }
}

fn line(event: &EventInfo, paint: Paint) -> String {
    let time = paint.text(Tone::Faint, &event.time.to_string());
    let back = event.clock_back_ms.filter(|ms| *ms >= CLOCK_BACK_SHOWN_MS);
    let back = back.map_or_else(String::new, |ms| {
        let text = format!("(the clock was set back by {} before this)", span_ms(ms));
        format!("{}\n", paint.text(Tone::Warning, &text))
    });
    let who = match event.who.as_str() {
        "manager" | "" => String::new(),
        who => paint.text(Tone::Faint, &format!(" [{who}]")),
    };
    format!("{back}{time}  {:18}  {}{who}\n", event.what, event.why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::MapVersion;

    #[test]
    fn times_are_read_as_spans_or_points() {
        let now = 1_767_225_600_000;
        for (text, time) in [
            ("0s", "2026-01-01T00:00:00.000Z"),
            ("2h", "2025-12-31T22:00:00.000Z"),
            ("1d", "2025-12-31T00:00:00.000Z"),
            ("2025-06-01", "2025-06-01T00:00:00.000Z"),
            ("2025-06-01T12:30:00Z", "2025-06-01T12:30:00.000Z"),
            ("2025-06-01T12:30:00.125Z", "2025-06-01T12:30:00.125Z"),
        ] {
            let since: Since = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(since.before(now).to_string(), time, "{text}");
        }
        for text in ["", "yesterday", "2025-13-01", "2025-06-01T12:30", "2025-02-30T00:00:00Z", "-1h"] {
            assert!(text.parse::<Since>().is_err(), "{text}");
        }
    }

    #[test]
    fn who_did_it_and_a_clock_that_went_back_are_told() {
        let event = EventInfo {
            seq: 1,
            time: Timestamp::from_millis(0),
            clock_back_ms: None,
            map: MapVersion(1),
            who: "manager".into(),
            what: "evict".into(),
            why: "why".into(),
            volumes: vec![],
            nodes: vec![],
            drives: vec![],
        };
        assert_eq!(line(&event, Paint::off()), "1970-01-01T00:00:00.000Z  evict               why\n");
        let asked = EventInfo { who: "ada@host".into(), clock_back_ms: Some(86_400_000), ..event };
        let text = line(&asked, Paint::off());
        assert!(text.starts_with("(the clock was set back by 1 d before this)\n"), "{text}");
        assert!(text.ends_with("why [ada@host]\n"), "{text}");
    }
}
