//! Wrong arguments, told in the same form as every other error.

use crate::error::Exit;
use crate::output::note;
use crate::paint::{Paint, Tone};
use clap::error::ErrorKind;
use std::io;

/// Prints what the argument parser says: help and version on the standard output, errors with their hint on the
/// standard error. Returns the exit code.
pub fn report_usage(error: &clap::Error, is_json: bool) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nobody reads any more: then nobody misses it either.
        let _ = error.print();
        return Exit::Done;
    }
    let text = error.render().to_string();
    let (message, hint) = split(&text);
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

/// The parser's text without its own prefix and closing line, and what to do.
fn split(text: &str) -> (String, String) {
    let text = text.trim().trim_start_matches("error:").trim();
    let kept: Vec<&str> = text.lines().filter(|l| !l.starts_with("For more information")).collect();
    let message = kept.join("\n").trim().to_owned();
    let usage = text.lines().find_map(|l| l.trim().strip_prefix("Usage: "));
    // The words of the command itself: what is before the first option or value.
    let words: Vec<&str> = usage
        .unwrap_or("weft")
        .split(' ')
        .take_while(|word| {
            word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') && !word.starts_with('-')
        })
        .collect();
    (message, format!("see `{} --help`", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parsers_words_become_an_error_and_a_hint() {
        let text = "error: the following required arguments were not provided:\n  --size <SIZE>\n\n\
                    Usage: weft volume create --size <SIZE> <NAME>\n\nFor more information, try '--help'.\n";
        let (message, hint) = split(text);
        assert!(message.starts_with("the following") && message.ends_with("<NAME>"), "{message}");
        assert_eq!(hint, "see `weft volume create --help`");
    }
}
