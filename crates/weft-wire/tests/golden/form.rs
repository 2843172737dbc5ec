//! How golden files are written, read and compared: also those of other crates that include this file.
//! `WEFT_GOLDEN=write cargo test -p CRATE --test golden` writes them.

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::path::PathBuf;

/// Says that the files are to be written.
const SWITCH: &str = "WEFT_GOLDEN";

/// Bytes on a line of a hex dump.
const LINE: usize = 16;

/// How a file shows bytes.
#[derive(Clone, Copy)]
pub enum Form {
    /// A hex dump, with offsets.
    Hex,
    /// JSON with line breaks between its tokens, which are no part of the bytes.
    Json,
    /// The bytes are text, with lines of its own.
    Text,
}

/// Says why bytes do not read as the message, if they do not.
type Reader = dyn Fn(&[u8]) -> Result<(), String>;

/// A message: its name in the file, its bytes, and whether bytes read as the same message.
pub struct Case {
    name: String,
    bytes: Vec<u8>,
    read: Box<Reader>,
}

/// A case of a message with its own encoding.
pub fn case<T: Debug + PartialEq + 'static, E: Debug>(
    name: impl Into<String>,
    value: T,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, E> + 'static,
) -> Case {
    let bytes = encode(&value);
    let read = move |bytes: &[u8]| match decode(bytes) {
        Ok(found) if found == value => Ok(()),
        Ok(found) => Err(format!("reads as {found:?}, expected {value:?}")),
        Err(error) => Err(format!("does not read: {error:?}")),
    };
    Case { name: name.into(), bytes, read: Box::new(read) }
}

/// An enum of which each variant must have a case.
pub trait Named {
    /// The names of all variants.
    const NAMES: &'static [&'static str];

    /// The name of this value's variant.
    fn name(&self) -> &'static str;
}

/// Lists the variants of an enum: one that is missing here does not compile.
#[macro_export]
macro_rules! variants {
    ($kind:ty { $($variant:ident),+ $(,)? }) => {
        impl $crate::form::Named for $kind {
            const NAMES: &'static [&'static str] = &[$(stringify!($variant)),+];

            fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => stringify!($variant)),+ }
            }
        }
    };
}

/// Fails unless there is a value of each variant.
pub fn covers<'a, T: Named + 'a>(values: impl IntoIterator<Item = &'a T>) {
    let found: BTreeSet<&str> = values.into_iter().map(|value| value.name()).collect();
    let missing: Vec<_> = T::NAMES.iter().filter(|name| !found.contains(*name)).collect();
    assert!(missing.is_empty(), "no case of {} {missing:?}", std::any::type_name::<T>());
}

/// Cases named by the variants of an enum, made of a name and a value each; one of each variant at least.
pub fn cases_of<T: Named>(values: Vec<T>, make: impl Fn(String, T) -> Case) -> Vec<Case> {
    covers(&values);
    let mut cases: Vec<Case> = Vec::new();
    for value in values {
        let name = value.name();
        let before = cases.iter().filter(|case| case.name.split(' ').next() == Some(name)).count();
        let name = if before == 0 { name.to_owned() } else { format!("{name} {}", before + 1) };
        cases.push(make(name, value));
    }
    cases
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file)
}

/// Compares cases with a file, or writes it.
pub fn check(file: &str, form: Form, cases: &[Case]) {
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names.len(), cases.len(), "{file}: two cases have one name");
    let text: String = cases.iter().map(|case| section(case, form)).collect();
    let path = path(file);
    if std::env::var_os(SWITCH).is_some() {
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let sections = split(&golden);
    let how = format!("{SWITCH}=write cargo test -p {} --test golden", env!("CARGO_PKG_NAME"));
    for case in cases {
        let Some((_, body)) = sections.iter().find(|(name, _)| *name == case.name) else {
            panic!("{file} has no '{}': write it with {how}", case.name);
        };
        // What is in the file is what another release sends.
        let bytes = parse(body, form);
        (case.read)(&bytes).unwrap_or_else(|why| panic!("{file}, '{}' {why}", case.name));
        assert_eq!(
            format!("# {}\n{body}", case.name),
            section(case, form),
            "{file}: the bytes of '{}' have changed. If that is meant, and peers of the release before can \
             read them (docs/format/wire.md): {how}",
            case.name
        );
    }
    let strays: Vec<_> = sections.iter().filter(|(name, _)| !names.contains(name)).map(|(n, _)| n).collect();
    assert!(strays.is_empty(), "{file} has cases that nothing makes: {strays:?}. {how}");
    assert_eq!(golden, text, "{file} has its cases in another order: {how}");
}

/// A case as it stands in a file.
fn section(case: &Case, form: Form) -> String {
    let body = match form {
        Form::Hex => hex(&case.bytes),
        Form::Json => pretty(std::str::from_utf8(&case.bytes).expect("JSON is text")),
        Form::Text => String::from_utf8(case.bytes.clone()).expect("it is text"),
    };
    format!("# {}\n{}\n\n", case.name, body.trim_end_matches('\n'))
}

/// The sections of a file: names, and what stands below them.
fn split(golden: &str) -> Vec<(&str, &str)> {
    let heads: Vec<usize> = golden
        .match_indices("# ")
        .map(|(at, _)| at)
        .filter(|at| *at == 0 || golden.as_bytes()[at - 1] == b'\n')
        .collect();
    let ends = heads.iter().skip(1).copied().chain([golden.len()]);
    heads.iter().zip(ends).filter_map(|(from, to)| golden[from + 2..to].split_once('\n')).collect()
}

/// The bytes that a section shows.
fn parse(body: &str, form: Form) -> Vec<u8> {
    match form {
        Form::Hex => {
            let digits = body.lines().filter_map(|line| line.split_once(':')).map(|(_, digits)| digits);
            let digits: Vec<u8> = digits.flat_map(str::bytes).filter(|b| !b.is_ascii_whitespace()).collect();
            let value = |b: u8| char::from(b).to_digit(16).expect("hex digits only") as u8;
            digits.chunks(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
        }
        Form::Json => compact(body).into_bytes(),
        Form::Text => format!("{}\n", body.trim_end_matches('\n')).into_bytes(),
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, line) in bytes.chunks(LINE).enumerate() {
        let _ = write!(text, "{:4}:", at * LINE);
        for word in line.chunks(4) {
            text.push(' ');
            word.iter().for_each(|b| write!(text, "{b:02x}").expect("a string takes all"));
        }
        text.push('\n');
    }
    text
}

/// JSON with one member or item on a line. Only white space outside of strings is added.
fn pretty(json: &str) -> String {
    let (mut out, mut depth) = (String::new(), 0);
    for_each_token(json, |token, is_string| match (token, is_string) {
        ("{" | "[", false) => {
            depth += 1;
            out.push_str(token);
            break_line(&mut out, depth);
        }
        ("}" | "]", false) => {
            depth -= 1;
            let len = out.trim_end().len();
            // A string ends with a quotation mark: this bracket was opened just now.
            if out[..len].ends_with(['{', '[']) {
                out.truncate(len);
            } else {
                break_line(&mut out, depth);
            }
            out.push_str(token);
        }
        (",", false) => {
            out.push(',');
            break_line(&mut out, depth);
        }
        (":", false) => out.push_str(": "),
        _ => out.push_str(token),
    });
    out
}

fn break_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
}

/// JSON without white space outside of strings.
fn compact(json: &str) -> String {
    let mut out = String::new();
    for_each_token(json, |token, is_string| {
        if is_string || !token.chars().all(char::is_whitespace) {
            out.push_str(token);
        }
    });
    out
}

/// Calls with each string, as a whole, and each other character.
fn for_each_token(json: &str, mut each: impl FnMut(&str, bool)) {
    let mut rest = json;
    while let Some(first) = rest.chars().next() {
        let is_string = first == '"';
        let mut len = first.len_utf8();
        if is_string {
            let mut is_escaped = false;
            for c in rest[1..].chars() {
                len += c.len_utf8();
                match c {
                    '"' if !is_escaped => break,
                    _ => is_escaped = c == '\\' && !is_escaped,
                }
            }
        }
        each(&rest[..len], is_string);
        rest = &rest[len..];
    }
}

#[test]
fn what_is_shown_is_read_as_the_same_bytes() {
    let json = r#"{"a":[1,{"b c":"d, {e}: \"f\" \\"},[]],"g":{},"h":null}"#;
    assert_eq!(compact(&pretty(json)), json);
    assert!(pretty(json).contains("\n  \"g\": {},\n"), "{}", pretty(json));
    let bytes: Vec<u8> = (0..=255).chain([7]).collect();
    assert_eq!(parse(&hex(&bytes), Form::Hex), bytes);
    let case = |name: &str| case(name, [1, 2], |_| b"[1,2]".to_vec(), |_| Ok::<_, ()>([1, 2]));
    let text = section(&case("x"), Form::Json) + &section(&case("y 2"), Form::Json);
    let sections = split(&text);
    assert_eq!(sections.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["x", "y 2"]);
    assert_eq!(parse(sections[1].1, Form::Json), b"[1,2]");
}
