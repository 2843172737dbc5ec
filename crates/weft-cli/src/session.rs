//! `weft session`: who has attached which volume.

use crate::change::{confirm, would_be};
use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{Output, table_or_note};
use crate::paint::Tone;
use crate::span::span_ms;
use crate::table::{Cell, Table, row};
use weft_api::{ApiAnswer, ApiRequest, SessionInfo};
use weft_types::SessionState;

/// Clients that have attached volumes
#[derive(Clone, Debug, clap::Subcommand)]
pub enum SessionCommand {
    /// List the sessions
    ///
    /// Sessions that are over stay listed until the last of their unfinished writes is settled on every drive.
    #[command(after_long_help = "Examples:\n  weft session list\n  weft session list --volume data")]
    List {
        /// Only those of this volume
        #[arg(long, value_name = "NAME")]
        volume: Option<String>,
        /// List those of servers of file systems, too, which attach the volumes that hold metadata
        #[arg(long)]
        all: bool,
    },
    /// End a session: its client loses access at once
    ///
    /// For a client that has died and holds a volume exclusively: its session ends by itself when it has been
    /// silent for long enough, see `weft fabric show`. Writes that were acknowledged are kept.
    #[command(after_long_help = "Examples:\n  weft session end s12\n  weft session end 12 --yes")]
    End {
        /// The session's number, as `weft session list` shows it
        session: String,
        /// Go through all checks and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask first
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) async fn end(
    connection: &Connection,
    text: &str,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> Result<(), CliError> {
    let number = text.strip_prefix('s').unwrap_or(text).parse::<u64>();
    let session = number.map_err(|_| CliError::Usage {
        message: format!("'{text}' is no session: expected a number such as s12"),
        hint: "`weft session list` shows the sessions".into(),
    })?;
    let request = |dry_run| ApiRequest::SessionEnd { session, dry_run };
    if !dry_run {
        connection.ask(&request(true)).await?;
        confirm(&format!("The client of session s{session} loses access at once."), text, yes)?;
    }
    let answer = connection.ask(&request(dry_run)).await?;
    let ApiAnswer::Sessions { .. } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let would = would_be(dry_run);
    output.show(&answer, |_, _| format!("session s{session} {would}ended\n"))
}

pub(crate) async fn list(
    connection: &Connection,
    volume: Option<&str>,
    all: bool,
    output: Output,
) -> Result<(), CliError> {
    let mut answer = connection.ask(&ApiRequest::SessionList { volume: volume.map(str::to_owned) }).await?;
    let ApiAnswer::Sessions { sessions } = &mut answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    // No user can give a volume a name with a colon.
    sessions.retain(|session| all || volume.is_some() || !session.volume.contains(':'));
    let ApiAnswer::Sessions { sessions } = &answer else { unreachable!("it was one just now") };
    output.show(&answer, |_, paint| table_or_note(&table(sessions), paint, "no volume is attached"))
}

fn table(sessions: &[SessionInfo]) -> Table {
    let mut table = Table::new(&["SESSION", "VOLUME", "MODE", ">LANES", "STATE", "LAST HEARD", "CLIENT"]);
    for session in sessions {
        let state = match session.state {
            SessionState::Open => Cell::new("open", Tone::Good),
            SessionState::Over => Cell::new("over", Tone::Warning),
        };
        let heard = session.idle_ms.map_or_else(|| "-".into(), |ms| format!("{} ago", span_ms(ms)));
        table.row(row![
            &session.id,
            session.volume.as_str(),
            &session.mode,
            &session.lanes,
            state,
            heard,
            session.client.as_str()
        ]);
    }
    table
}
