//! Colour that repeats what the words say, and is left out where it is not wanted.

use std::io::IsTerminal;

/// What a text means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing in particular.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// To be looked at.
    Warning,
    /// Broken.
    Bad,
    /// Of less interest than the rest.
    Faint,
    /// A heading.
    Strong,
}

/// Whether to colour a stream.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    is_on: bool,
}

impl Paint {
    /// For a stream: coloured on a terminal, unless `NO_COLOR` is set or the terminal is dumb.
    pub fn for_stream(stream: &impl IsTerminal) -> Paint {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Paint { is_on: stream.is_terminal() && !no_color && !is_dumb }
    }

    /// Never coloured.
    pub fn off() -> Paint {
        Paint { is_on: false }
    }

    /// The text in the colour of its tone (SGR codes of ECMA-48, section 8.3.117).
    pub fn text(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Faint => "2",
            Tone::Strong => "1",
        };
        if self.is_on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
