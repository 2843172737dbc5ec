//! Wrong arguments, told in the same form as every other error.

use crate::error::Exit;
use crate::output::note;
use crate::paint::{Paint, Tone};
use clap::Command;
use clap::error::ErrorKind;
use std::io;

/// Prints what the argument parser says: help and version on the standard output, errors with their hint on the
/// standard error. `program` and `args` are what was parsed. Returns the exit code.
pub fn report_usage(error: &clap::Error, program: &Command, args: &[String], is_json: bool) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nobody reads any more: then nobody misses it either.
        let _ = error.print();
        return Exit::Done;
    }
    let (name, command) = named(program, args);
    let message = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            let below = command.get_subcommands().filter(|c| !c.is_hide_set()).map(Command::get_name);
            format!("a command is missing: {name} {}", below.collect::<Vec<_>>().join("|"))
        }
        _ => stripped(&error.render().to_string()),
    };
    let hint = format!("see `{name} --help`");
    if is_json {
        let document = serde_json::json!({
            "schema_version": weft_api::SCHEMA_VERSION,
            "error": { "message": message, "hint": hint },
            "exit_code": Exit::Usage as u8,
        });
        note(&document.to_string());
        return Exit::Usage;
    }
    let paint = Paint::for_stream(&io::stderr());
    note(&format!("{} {message}", paint.text(Tone::Bad, "error:")));
    note(&format!("{} {hint}", paint.text(Tone::Strong, "hint:")));
    Exit::Usage
}

/// The command that the arguments name, as far as they name one, and its full name.
fn named<'a>(program: &'a Command, args: &[String]) -> (String, &'a Command) {
    let (mut name, mut command) = (program.get_name().to_owned(), program);
    for arg in args {
        if let Some(below) = command.find_subcommand(arg) {
            name = format!("{name} {arg}");
            command = below;
        }
    }
    (name, command)
}

/// The parser's text without its own prefix and closing line.
fn stripped(text: &str) -> String {
    let text = text.trim().trim_start_matches("error:").trim();
    let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with("For more information")).collect();
    kept.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parsers_own_frame_is_taken_off() {
        let text = "error: the following required arguments were not provided:\n  --size <SIZE>\n\n\
                    Usage: weft volume create --size <SIZE> <NAME>\n\nFor more information, try '--help'.\n";
        let message = stripped(text);
        assert!(message.starts_with("the following") && message.ends_with("<NAME>"), "{message}");
    }

    #[test]
    fn the_hint_names_the_command_that_was_meant() {
        let create = Command::new("create");
        let program = Command::new("weft").subcommand(Command::new("volume").subcommand(create));
        let args = ["--json", "volume", "create", "volume"].map(String::from);
        assert_eq!(named(&program, &args).0, "weft volume create");
    }
}
