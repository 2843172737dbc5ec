//! The rule for names of nodes, pools and volumes. It never looks whether a name is taken.

use weft_types::limits::NAME_BYTES_MAX;

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// It has no characters.
    #[error("it is empty")]
    Empty,
    /// It is too long.
    #[error("it has {found} bytes, at most {NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length in bytes.
        found: usize,
    },
    /// It begins with something else than a letter or digit.
    #[error("it begins with '{found}', the first character must be a letter or digit (A-Z a-z 0-9)")]
    First {
        /// The first character.
        found: char,
    },
    /// It has a character that is not allowed.
    #[error("it contains '{}', only A-Z a-z 0-9 . _ - are allowed", found.escape_debug())]
    Character {
        /// The first such character.
        found: char,
    },
}

/// Checks a name: 1 to 63 bytes of `A-Z a-z 0-9 . _ -`, the first a letter or digit.
///
/// So a name is also a safe file name, a label in a URL, and never an option on a command line.
///
/// # Errors
/// The first fault found: length, then characters.
pub fn validate_name(name: &str) -> Result<(), NameFault> {
    let first = name.chars().next().ok_or(NameFault::Empty)?;
    if name.len() > NAME_BYTES_MAX {
        return Err(NameFault::TooLong { found: name.len() });
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if let Some(found) = name.chars().find(|&c| !allowed(c)) {
        return Err(NameFault::Character { found });
    }
    if !first.is_ascii_alphanumeric() {
        return Err(NameFault::First { found: first });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule() {
        for good in ["a", "0", "vm-disk_1.img", &"x".repeat(63)] {
            assert_eq!(validate_name(good), Ok(()), "{good}");
        }
        for (bad, fault) in [
            ("", NameFault::Empty),
            ("a/b", NameFault::Character { found: '/' }),
            ("a b", NameFault::Character { found: ' ' }),
            ("a\n", NameFault::Character { found: '\n' }),
            ("na\u{ef}ve", NameFault::Character { found: '\u{ef}' }),
            ("-a", NameFault::First { found: '-' }),
            ("..", NameFault::First { found: '.' }),
            (&"x".repeat(300), NameFault::TooLong { found: 300 }),
            (&"x".repeat(64), NameFault::TooLong { found: 64 }),
        ] {
            assert_eq!(validate_name(bad), Err(fault), "{bad}");
        }
    }

    #[test]
    fn a_control_character_is_shown_escaped() {
        assert!(NameFault::Character { found: '\n' }.to_string().contains("'\\n'"));
    }
}
