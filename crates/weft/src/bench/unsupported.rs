//! Options of other tools that a command of the same name knows, and does not carry out: each is refused
//! with what it means there and what to do instead.

use weft_cli::CliError;

/// An option that is refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsupported {
    /// Its letter.
    pub(super) letter: char,
    /// Whether a value follows it.
    pub(super) has_value: bool,
    /// What it means in the other tool.
    pub(super) meaning: &'static str,
    /// What to do instead.
    pub(super) instead: &'static str,
}

/// The options of one tool.
pub(super) trait Tool {
    /// Its name.
    const NAME: &'static str;
    /// What of it is refused.
    const UNSUPPORTED: &'static [Unsupported];
}

/// Those that were given. The parser takes them, hidden, so that the refusal can say more than that they
/// are unknown.
#[derive(Clone, Debug)]
pub(super) struct Refused<T: Tool> {
    given: Vec<Unsupported>,
    tool: std::marker::PhantomData<T>,
}

impl<T: Tool> Refused<T> {
    /// Fails if there are any.
    ///
    /// # Errors
    /// [`CliError::Usage`] with the first one.
    pub(super) fn check(&self) -> Result<(), CliError> {
        match self.given.first() {
            None => Ok(()),
            Some(Unsupported { letter, meaning, instead, .. }) => Err(CliError::Usage {
                message: format!("-{letter} is not supported: in {} it means {meaning}", T::NAME),
                hint: (*instead).to_owned(),
            }),
        }
    }
}

impl<T: Tool> clap::Args for Refused<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        T::UNSUPPORTED.iter().fold(command, |command, option| {
            let action = if option.has_value { clap::ArgAction::Append } else { clap::ArgAction::Count };
            let arg = clap::Arg::new(id(option.letter)).short(option.letter).hide(true).action(action);
            command.arg(if option.has_value { arg.allow_hyphen_values(true) } else { arg })
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl<T: Tool> clap::FromArgMatches for Refused<T> {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |option: &&Unsupported| match option.has_value {
            true => matches.contains_id(&id(option.letter)),
            false => matches.get_count(&id(option.letter)) > 0,
        };
        let given = T::UNSUPPORTED.iter().filter(is_given).copied().collect();
        Ok(Refused { given, tool: std::marker::PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The name by which the parser knows an option: that of no other.
fn id(letter: char) -> String {
    format!("unsupported-{letter}")
}
