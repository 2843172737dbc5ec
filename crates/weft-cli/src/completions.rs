//! `weft completions`: what a shell needs to complete commands and options, made from their definitions.

use crate::error::CliError;
use crate::output::Output;
use clap_complete::aot;

/// Arguments of `weft completions`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Where a shell looks for them, for one user:\n  \
                       bash: ~/.local/share/bash-completion/completions/weft\n  \
                       zsh:  a file _weft in a folder of $fpath, named before compinit is called\n  \
                       fish: ~/.config/fish/completions/weft.fish\n\n\
                       The Debian package brings them for everybody.\n\n\
                       Examples:\n  \
                       weft completions bash > ~/.local/share/bash-completion/completions/weft\n  \
                       weft completions zsh > ~/.zfunc/_weft\n  \
                       weft completions fish > ~/.config/fish/completions/weft.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// A shell that can complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// GNU Bash, with the package bash-completion
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

/// Completions, for programs.
#[derive(serde::Serialize)]
struct Completions {
    shell: &'static str,
    script: String,
}

/// Prints the completions of a program.
///
/// # Errors
/// [`CliError::Output`].
pub fn completions(program: &clap::Command, args: &CompletionsArgs, output: Output) -> Result<(), CliError> {
    let (shell, name) = match args.shell {
        Shell::Bash => (aot::Shell::Bash, "bash"),
        Shell::Zsh => (aot::Shell::Zsh, "zsh"),
        Shell::Fish => (aot::Shell::Fish, "fish"),
    };
    output.show(&Completions { shell: name, script: script(program, shell) }, |c, _| c.script.clone())
}

fn script(program: &clap::Command, shell: aot::Shell) -> String {
    let mut built = program.clone();
    built.build();
    let mut program = shown(&built);
    let name = program.get_name().to_owned();
    let mut bytes = Vec::new();
    aot::generate(shell, &mut program, name, &mut bytes);
    String::from_utf8(bytes).expect("definitions are UTF-8")
}

/// What the generators need of a built command, without hidden commands and options: they would offer those like the
/// others.
fn shown(command: &clap::Command) -> clap::Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    clap::Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().unwrap_or_default().to_owned())
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .args(arguments.map(shown_argument))
        .subcommands(below.map(shown))
}

/// What the generators need of an argument. Its relations to others are left out: those may be hidden.
fn shown_argument(argument: &clap::Arg) -> clap::Arg {
    let mut kept = clap::Arg::new(argument.get_id().clone())
        .action(argument.get_action().clone())
        .value_parser(argument.get_value_parser().clone())
        .value_hint(argument.get_value_hint())
        // Behind an argument of several values, clap takes another one only if it is required.
        .required(argument.is_positional() && argument.is_required_set())
        .help(argument.get_help().cloned().unwrap_or_default());
    if let Some(long) = argument.get_long() {
        kept = kept.long(long.to_owned());
    }
    if let Some(short) = argument.get_short() {
        kept = kept.short(short);
    }
    if let Some(names) = argument.get_value_names() {
        kept = kept.value_names(names.iter().cloned());
    }
    if let Some(count) = argument.get_num_args() {
        kept = kept.num_args(count);
    }
    kept
}
