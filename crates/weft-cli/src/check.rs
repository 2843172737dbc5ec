//! `weft fabric check`: the map, compared with what every drive says. It changes nothing.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::Output;
use crate::paint::{Paint, Tone};
use weft_api::{ApiAnswer, ApiRequest, CheckInfo, CheckSeverity};

/// Prints what was found. A fault makes the command fail, after everything was printed.
pub(crate) async fn check(connection: &Connection, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::FabricCheck {}).await?;
    let ApiAnswer::Check(check) = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(check, paint))?;
    if check.sound {
        return Ok(());
    }
    let faults = check.findings.iter().filter(|f| f.severity == CheckSeverity::Fault).count();
    Err(CliError::Failed {
        message: format!("the fabric is not sound: {faults} faults were found"),
        hint: "each finding says what to do; nothing was changed".into(),
    })
}

fn describe(check: &CheckInfo, paint: Paint) -> String {
    let mut text = String::new();
    for finding in &check.findings {
        let (word, tone) = match finding.severity {
            CheckSeverity::Fault => ("fault", Tone::Bad),
            CheckSeverity::Warning => ("warning", Tone::Warning),
            CheckSeverity::Note => ("note", Tone::Faint),
        };
        let word = paint.text(tone, &format!("{word}:"));
        text.push_str(&format!("{word} {}: {}\n  {}\n", finding.subject, finding.what, finding.todo));
    }
    let verdict = match check.sound {
        true => paint.text(Tone::Good, "sound"),
        false => paint.text(Tone::Bad, "not sound"),
    };
    text.push_str(&format!(
        "{verdict}: map {}, {} groups, {} of {} nodes asked, {} drives compared\n",
        check.map, check.groups, check.nodes_asked, check.nodes, check.drives_compared
    ));
    text
}
