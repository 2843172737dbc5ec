//! `weft session`: who has attached which volume.

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
    },
}

pub(crate) async fn list(
    connection: &Connection,
    volume: Option<&str>,
    output: Output,
) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::SessionList { volume: volume.map(str::to_owned) }).await?;
    let ApiAnswer::Sessions { sessions } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| table_or_note(&table(sessions), paint, "no volume is attached"))
}

fn table(sessions: &[SessionInfo]) -> Table {
    let mut table = Table::new(&["SESSION", "VOLUME", "MODE", "STATE", "LAST HEARD", "CLIENT"]);
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
            state,
            heard,
            session.client.as_str()
        ]);
    }
    table
}
