//! The reference of all commands as Markdown, made from their help so that the two cannot differ.

/// The reference page of a program.
pub fn reference(program: &clap::Command) -> String {
    let mut program = program.clone().term_width(100);
    program.build();
    let mut text = String::from(
        "# Reference of the command line\n\n\
         Made from the program itself by `weft reference`; a test compares the two. Every command ends with 0 if it \
         did what was asked, 1 if it failed, 2 if it was called wrongly, 3 if no manager of the fabric answers, and 4 \
         if it was refused because data or somebody's work could be lost.\n",
    );
    section(&mut text, &mut program);
    text
}

/// A command, then those below it.
fn section(text: &mut String, command: &mut clap::Command) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
    for below in command.get_subcommands_mut().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        section(text, below);
    }
}
