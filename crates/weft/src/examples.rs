//! Commands that people are shown: each one in the guide, in the README and in the help must be one that this program
//! takes. They are parsed, never carried out.

use crate::Program;
use clap::{CommandFactory, Parser};
use std::fs;
use std::path::Path;

/// The commands of a line as a shell would see them, each as its words; without redirections and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut characters = line.chars().peekable();
    let mut is_redirected = false;
    while let Some(c) = characters.next() {
        match c {
            '\'' | '"' => {
                let text: String = characters.by_ref().take_while(|next| *next != c).collect();
                word.get_or_insert_default().push_str(&text);
            }
            '#' if word.is_none() => break,
            ' ' | '|' | '&' | ';' | '>' | '<' => {
                // What stands behind `>` or `<` is a file, and the digit before it a stream.
                match word.take() {
                    Some(_) if is_redirected => is_redirected = false,
                    Some(stream) if matches!(c, '>' | '<') && stream.parse::<u8>().is_ok() => {}
                    Some(complete) => found.last_mut().expect("one is there").push(complete),
                    None => {}
                }
                match c {
                    '>' | '<' => is_redirected = true,
                    '|' | '&' | ';' => found.push(Vec::new()),
                    _ => {}
                }
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    match word {
        Some(complete) if !is_redirected => found.last_mut().expect("one is there").push(complete),
        _ => {}
    }
    found
}

/// The calls of `weft` among the commands of a line.
fn calls(line: &str) -> Vec<Vec<String>> {
    let is_prefix = |word: &String| word == "sudo" || word == "$" || word.split_once('=').is_some();
    let stripped = commands(line).into_iter().map(|words| words.into_iter().skip_while(is_prefix).collect());
    stripped.filter(|words: &Vec<String>| words.first().is_some_and(|first| first == "weft")).collect()
}

/// The lines of a page's fenced blocks, with those that end in a backslash joined to the next.
fn fenced(page: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_inside, mut is_joined): (Vec<(usize, String)>, _, _) = (Vec::new(), false, false);
    for (i, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_inside = !is_inside;
        } else if is_inside {
            let part = line.trim_end_matches('\\');
            match found.last_mut().filter(|_| is_joined) {
                Some((_, begun)) => begun.push_str(part),
                None => found.push((i + 1, part.to_owned())),
            }
            is_joined = line.ends_with('\\');
        }
    }
    found
}

/// What is wrong with a call, in clap's words.
fn complaint(words: &[String]) -> Option<String> {
    let words = crate::words(words.iter().map(Into::into).collect());
    match Program::try_parse_from(words).map(|_| ()) {
        Err(error) if error.use_stderr() => Some(error.to_string()),
        _ => None,
    }
}

/// How many calls a page has, and what is wrong with them.
fn examine(name: &str, page: &str) -> (usize, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    for (number, line) in fenced(page) {
        for call in calls(&line) {
            count += 1;
            wrong.extend(complaint(&call).map(|why| format!("{name}:{number}: {}: {why}", call.join(" "))));
        }
    }
    (count, wrong)
}

#[test]
fn every_command_of_the_guide_and_the_readme_exists() {
    for (name, at_least) in [("README.md", 15), ("docs/guide.md", 60)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
        let page = fs::read_to_string(path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (count, wrong) = examine(name, &page);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(count >= at_least, "{name} has {count} commands, expected at least {at_least}");
    }
}

#[test]
fn every_example_of_the_help_exists() {
    let mut program = Program::command();
    program.build();
    let (mut waiting, mut count) = (vec![&program], 0);
    while let Some(command) = waiting.pop() {
        waiting.extend(command.get_subcommands());
        let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let Some((_, examples)) = text.split_once("Examples:\n") else { continue };
        for call in examples.lines().flat_map(calls) {
            count += 1;
            assert_eq!(complaint(&call), None, "{}", call.join(" "));
        }
    }
    assert!(count > 80, "only {count} examples were found");
}

#[test]
fn commands_that_do_not_exist_are_noticed() {
    for bad in [
        "weft volum list",
        "weft volume list --colour",
        "weft volume create data",
        "zstd -dc x | weft volume import",
        "weft up && sudo weft down --dstroy  # all of it",
        "WEFT_FABRIC=x weft volume create data --size 10GB",
        "weft status \\\n  --jsno",
    ] {
        assert_eq!(examine("x", &format!("```sh\n{bad}\n```\n")).1.len(), 1, "{bad}");
    }
    assert_eq!(examine("x", "weft volum list\n```\n$ weft help volume create\n```\nweft no\n"), (1, vec![]));
}

#[test]
fn lines_are_read_as_a_shell_reads_them() {
    let words = |line| calls(line).into_iter().map(|words| words.join(" ")).collect::<Vec<_>>();
    assert_eq!(words("A=1 sudo weft a 'b c' > f 2>&1 | jq . # weft x"), ["weft a b c"]);
    assert_eq!(words("weft a >f; weft b && echo weft c &"), ["weft a", "weft b"]);
    assert_eq!(words("apt-get install weft"), Vec::<String>::new());
}
