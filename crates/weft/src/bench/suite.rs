//! What `weft bench ior`, `weft bench mdtest` and `weft bench io500` have in common: where their ranks come
//! from, sizes as those tools write them, and the hidden command that serves as a rank.

use super::failed;
use std::io::IsTerminal;
use std::path::Path;
use weft_bench::{Launched, RanksOptions};
use weft_cli::{CliError, Output, Step};

/// Arguments of `weft bench rank`, which a suite starts for each of its ranks.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RankArgs {
    /// Its number
    rank: u32,
}

pub(crate) fn serve_as_rank(args: &RankArgs) -> Result<(), CliError> {
    weft_bench::serve_as_rank(args.rank).map_err(|error| failed(error, "ior"))
}

/// What the launcher of this process says, if one has started it as one of several.
///
/// # Errors
/// [`CliError::Usage`] if it contradicts itself.
pub(super) fn launched() -> Result<Option<Launched>, CliError> {
    Launched::by_environment().map_err(|message| CliError::Usage {
        message,
        hint: "start it by mpirun or srun, or by itself with --processes".into(),
    })
}

/// Takes part in the suite of rank 0, if this process is another rank of a launcher: true once that is done.
///
/// # Errors
/// If rank 0 is not found.
pub(super) fn follows(launched: Option<&Launched>, folder: &Path, command: &str) -> Result<bool, CliError> {
    let Some(launched) = launched.filter(|launched| launched.rank > 0) else { return Ok(false) };
    weft_bench::follow(folder, launched).map_err(|error| failed(error, command))?;
    Ok(true)
}

/// Ranks of this program.
///
/// # Errors
/// If it does not know where it is.
pub(super) fn ranks(launched: Option<Launched>) -> Result<RanksOptions, CliError> {
    let program = std::env::current_exe().map_err(CliError::file("find", "weft"))?;
    Ok(RanksOptions { program, words: vec!["bench".into(), "rank".into()], launched })
}

/// Numbers of processes: those that were asked for, or as many as were started, or one.
pub(super) fn numbers(asked: &[u32], launched: Option<&Launched>) -> Vec<u32> {
    match asked {
        [] => vec![launched.map_or(1, |launched| launched.size)],
        asked => asked.to_vec(),
    }
}

/// Runs a suite with its progress on the terminal, where there is one.
pub(super) fn with_progress<T>(run: impl FnOnce(&mut dyn FnMut(&str)) -> T) -> T {
    let is_watched = std::io::stderr().is_terminal();
    // Made when there is something to say, by when signals are held back: it has a thread of its own.
    let mut step = None;
    run(&mut |line: &str| {
        if is_watched {
            step.get_or_insert_with(Step::new).says(line);
        }
    })
}

/// Prints a plan.
pub(super) fn show_plan<T: serde::Serialize>(
    plan: &T,
    text: impl FnOnce(&T) -> String,
    output: Output,
) -> Result<(), CliError> {
    output.show(plan, |plan, _| text(plan))
}

/// A size as IOR and mdtest have it: bytes, or with k, m, g or t for powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let expected = || format!("expected a number of bytes such as 4096, 4k, 32m or 1g, found '{text}'");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return Err(expected()),
    };
    let number: u64 = digits.parse().map_err(|_| expected())?;
    number.checked_mul(1 << power).ok_or_else(|| format!("'{text}' is more bytes than can be counted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_tools() {
        for (text, bytes) in [("8", 8), ("4k", 4096), ("32M", 32 << 20), ("4G", 4 << 30), ("64KiB", 64 << 10)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "4kb", "1.5g", "4 k", "99999999999t", "\u{df}"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
