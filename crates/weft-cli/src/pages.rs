//! `weft man`: the manual pages, made from the commands' definitions so that the two cannot differ.

use crate::error::CliError;
use crate::output::Output;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io;
use std::path::PathBuf;

/// Arguments of `weft man`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft man ~/.local/share/man/man1\n  \
                             weft man ./man && man -l ./man/weft-volume-create.1")]
pub struct ManArgs {
    /// The folder to write to, made if there is none; pages that it holds are replaced
    pub dir: PathBuf,
}

/// Pages that were written, for programs.
#[derive(serde::Serialize)]
struct Written {
    dir: PathBuf,
    pages: Vec<String>,
}

/// Writes the manual pages of a program and of each command below it.
///
/// # Errors
/// [`CliError::File`] if the folder or a page in it cannot be written.
pub fn man(program: &clap::Command, args: &ManArgs, output: Output) -> Result<(), CliError> {
    let dir = &args.dir;
    fs::create_dir_all(dir).map_err(CliError::file("create the folder", dir))?;
    let mut names = Vec::new();
    for (name, text) in pages(program) {
        let path = dir.join(&name);
        fs::write(&path, text).map_err(CliError::file("write", &path))?;
        names.push(name);
    }
    output.show(&Written { dir: dir.clone(), pages: names }, |w, _| {
        format!("{} pages written to {}\n", w.pages.len(), w.dir.display())
    })
}

/// File names and texts of all pages, the program's own first.
fn pages(program: &clap::Command) -> Vec<(String, String)> {
    let mut program = program.clone();
    program.build();
    let source = format!("{} {}", program.get_name(), program.get_version().unwrap_or_default());
    let mut found = Vec::new();
    collect(&program, None, source.trim_end(), &mut found);
    found
}

fn collect(command: &clap::Command, above: Option<&str>, source: &str, found: &mut Vec<(String, String)>) {
    let title = command.get_display_name().unwrap_or_else(|| command.get_name());
    let text = page(command, title, above, source).expect("writing to memory does not fail");
    found.push((format!("{title}.1"), text));
    for below in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        collect(below, Some(title), source, found);
    }
}

fn page(command: &clap::Command, title: &str, above: Option<&str>, source: &str) -> io::Result<String> {
    // The usage line of --help says more than options one by one: which are required, and with what value.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let man = Man::new(command.clone().override_usage(usage).subcommand_help_heading("COMMANDS"));
    let mut bytes = Vec::new();
    man.render_name_section(&mut bytes)?;
    man.render_synopsis_section(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(&mut bytes)?;
    }
    man.render_options_section(&mut bytes)?;
    let mut more = Roff::new();
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        notes(&mut more, &after.to_string());
    }
    see_also(&mut more, command, title, above);
    more.to_writer(&mut bytes)?;
    let body = String::from_utf8(bytes).expect("definitions are UTF-8");
    // Each section came with the definitions that a page needs once.
    let preamble = Roff::new().render();
    let body = body.replace(&preamble, "");
    let lines: Vec<String> = body.lines().map(line).collect();
    Ok(format!("{preamble}.TH {title} 1 \"\" \"{source}\" \"Weft Manual\"\n{}\n", lines.join("\n")))
}

/// A line as it should be on a page: blank ones as requests for space, which keep the indentation, and names in
/// backticks in bold.
fn line(text: &str) -> String {
    if text.trim().is_empty() {
        return ".sp".into();
    }
    let parts: Vec<&str> = text.split('`').collect();
    if text.starts_with('.') || parts.len().is_multiple_of(2) {
        return text.to_owned();
    }
    let part = |(i, part): (usize, &&str)| match i % 2 {
        0 => (*part).to_owned(),
        _ => format!("\\fB{part}\\fR"),
    };
    parts.iter().enumerate().map(part).collect()
}

/// The text behind the options: examples and exit codes under headings of their own, all else as notes.
fn notes(roff: &mut Roff, text: &str) {
    let mut has_notes = false;
    for paragraph in text.split("\n\n") {
        if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
            roff.control("SH", ["EXAMPLES"]);
            verbatim(roff, examples);
            continue;
        }
        if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
            roff.control("SH", ["EXIT STATUS"]).text([roman(codes)]);
            continue;
        }
        match has_notes {
            true => roff.control("PP", []),
            false => roff.control("SH", ["NOTES"]),
        };
        has_notes = true;
        match paragraph.split_once('\n') {
            Some((lead, list)) => {
                roff.text([roman(lead)]);
                verbatim(roff, list);
            }
            None => {
                roff.text([roman(paragraph)]);
            }
        }
    }
}

/// Lines that are shown as they are, to be copied.
fn verbatim(roff: &mut Roff, text: &str) {
    roff.control("sp", []).control("RS", ["4"]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line.trim())]);
    }
    roff.control("fi", []).control("RE", []);
}

fn see_also(roff: &mut Roff, command: &clap::Command, title: &str, above: Option<&str>) {
    let program = title.split('-').next().unwrap_or(title);
    let mut names: Vec<&str> = above.into_iter().filter(|above| *above != program).collect();
    if title != program {
        names.insert(0, program);
    }
    let below: Vec<String> = match above {
        // Its commands are listed above already, with what they do.
        Some(_) => Vec::new(),
        None => ["up", "status", "volume", "node", "drive"]
            .iter()
            .filter(|name| command.get_subcommands().any(|below| below.get_name() == **name))
            .map(|name| format!("{title}-{name}"))
            .collect(),
    };
    names.extend(below.iter().map(String::as_str));
    if names.is_empty() {
        return;
    }
    roff.control("SH", ["SEE ALSO"]);
    for (i, name) in names.iter().enumerate() {
        let end = if i + 1 < names.len() { "(1)," } else { "(1)" };
        roff.text([bold(*name), roman(end)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> clap::Command {
        let create = clap::Command::new("create")
            .about("Make one")
            .long_about("Make one\n\nSee `tool list`.")
            .arg(clap::Arg::new("size").long("size").required(true).help("How large").value_name("SIZE"))
            .after_long_help("Why.\n\nExamples:\n  tool volume create --size '1'\n  tool volume create");
        let hidden = clap::Command::new("secret").hide(true);
        let volume = clap::Command::new("volume").about("Volumes").subcommand(create).subcommand(hidden);
        clap::Command::new("tool").version("1.2.3").about("Does it").subcommand(volume)
    }

    #[test]
    fn every_shown_command_has_a_page() {
        let names: Vec<String> = pages(&program()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["tool.1", "tool-volume.1", "tool-volume-create.1"]);
    }

    #[test]
    fn a_page_says_all() {
        let (_, text) = pages(&program()).pop().expect("there are pages");
        let mut at = 0;
        for wanted in [
            ".TH tool-volume-create 1 \"\" \"tool 1.2.3\" \"Weft Manual\"\n",
            ".SH NAME\ntool\\-volume\\-create \\- Make one\n",
            ".SH SYNOPSIS\n\\fBtool volume create\\fR",
            "\\-\\-size <SIZE>",
            ".SH DESCRIPTION\n",
            "See \\fBtool list\\fR.",
            ".SH OPTIONS\n",
            ".SH NOTES\nWhy.\n",
            ".SH EXAMPLES\n.sp\n.RS 4\n.nf\ntool volume create \\-\\-size \\*(Aq1\\*(Aq\ntool volume create\n.fi\n",
            ".SH \"SEE ALSO\"\n\\fBtool\\fR(1),\n\\fBtool\\-volume\\fR(1)\n",
        ] {
            let found =
                text[at..].find(wanted).unwrap_or_else(|| panic!("no {wanted:?} from {at} on in\n{text}"));
            at += found + wanted.len();
        }
        assert_eq!(text.matches(".ds Aq").count(), 2, "the definitions are there once:\n{text}");
        assert!(!text.contains("\n\n"), "blank lines end an indentation:\n{text}");
    }
}
