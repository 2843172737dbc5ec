//! The terminal while `weft watch` has it: the alternate screen, keys, and giving everything back.
//!
//! It owns the terminal's state: what was changed is changed back when the screen is dropped, and before the message
//! of a panic. It knows nothing of what is shown.

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{self, ClearType};
use crossterm::{cursor, execute, queue, style};
use std::io::{self, IsTerminal, Write};
use std::panic;
use std::time::Duration;

/// What a person wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A letter was typed.
    Key(char),
    /// The window has another size.
    Redraw,
    /// The end: `q`, Escape or Ctrl-C.
    Quit,
}

/// The alternate screen.
pub(super) struct Screen;

impl Screen {
    /// Takes the terminal, if there is one to look at and to type on.
    pub(super) fn open() -> Option<Screen> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if is_dumb || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return None;
        }
        terminal::enable_raw_mode().ok()?;
        let screen = Screen;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide).ok()?;
        let former = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            restore();
            former(what);
        }));
        Some(screen)
    }

    /// Shows this text, cut to the window.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn draw(&self, text: &str) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let (width, height) = (usize::from(width), usize::from(height));
        let lines: Vec<&str> = text.lines().collect();
        let shown = if lines.len() > height { height.saturating_sub(1) } else { lines.len() };
        let mut out = io::stdout().lock();
        queue!(out, cursor::MoveTo(0, 0))?;
        for (row, line) in lines[..shown].iter().enumerate() {
            queue!(out, cursor::MoveTo(0, row as u16), style::Print(clip(line, width)))?;
            queue!(out, terminal::Clear(ClearType::UntilNewLine))?;
        }
        if shown < lines.len() {
            let more = clip(&format!("and {} more lines", lines.len() - shown), width);
            queue!(out, cursor::MoveTo(0, shown as u16), style::Print(more))?;
            queue!(out, terminal::Clear(ClearType::UntilNewLine))?;
        } else if shown < height {
            queue!(out, cursor::MoveTo(0, shown as u16), terminal::Clear(ClearType::FromCursorDown))?;
        }
        out.flush()
    }

    /// What was wished since the last call, if anything; does not wait.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn wish(&self) -> io::Result<Option<Wish>> {
        while event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Resize(..) => return Ok(Some(Wish::Redraw)),
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(Some(Wish::Quit));
                    }
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(Some(Wish::Quit)),
                    KeyCode::Char(key) => return Ok(Some(Wish::Key(key.to_ascii_lowercase()))),
                    _ => {}
                },
                _ => {}
            }
        }
        Ok(None)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        if !std::thread::panicking() {
            // The hook is that of this screen, which is gone.
            let _ = panic::take_hook();
        }
    }
}

/// Gives the terminal back. May be called more than once; where the terminal is gone there is nobody to tell.
fn restore() {
    let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// The first `width` characters of a line; colours (ECMA-48 SGR) take no room, and are ended.
fn clip(line: &str, width: usize) -> String {
    let mut clipped = String::with_capacity(line.len());
    let (mut room, mut in_escape, mut is_coloured) = (width, false, false);
    for c in line.chars() {
        if in_escape || c == '\x1b' {
            in_escape = c != 'm';
            is_coloured = true;
        } else if room == 0 {
            continue;
        } else {
            room -= 1;
        }
        clipped.push(c);
    }
    if is_coloured {
        clipped.push_str("\x1b[0m");
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_to_the_window_and_colours_take_no_room() {
        assert_eq!(clip("abcdef", 4), "abcd");
        assert_eq!(clip("ab", 4), "ab");
        assert_eq!(clip("\x1b[31mabc\x1b[0mdef", 4), "\x1b[31mabc\x1b[0md\x1b[0m");
        assert_eq!(clip("ééé", 2), "éé");
    }
}
