//! Blacking out what looks like a secret.
//!
//! Nothing that Weft writes has secrets in it; this is the second line of defence, for what others write into a
//! name, a path or a message. It works on text alone, line by line, and rather blacks out too much: words that say what
//! they are (`password=x`, `"token": "x"`), credentials in addresses (`//user:password@host`), `Bearer` tokens, and
//! private keys in PEM form.

/// What stands where a secret stood.
const BLACK: &str = "[redacted]";

/// Names of values that are secret, in lower case; also as a part of a longer name.
const NAMES: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "api_key",
    "apikey",
    "private_key",
    "authorization",
    "credential",
    "psk",
];

/// The text without what looks like a secret, and how often something was blacked out.
pub(super) fn redact(text: &str) -> (String, u64) {
    let (mut out, mut count) = (String::with_capacity(text.len()), 0);
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        let ends = line.ends_with('\n');
        let body = line.strip_suffix('\n').unwrap_or(line);
        if in_key {
            in_key = !body.contains("-----END");
            continue;
        }
        if body.contains("-----BEGIN") && body.contains("PRIVATE KEY") {
            // A document on one line may hold all of it; what is left of that line is not worth the risk.
            in_key = !body.contains("-----END");
            count += 1;
            out.push_str(BLACK);
        } else {
            out.push_str(&redact_line(body, &mut count));
        }
        if ends {
            out.push('\n');
        }
    }
    (out, count)
}

fn redact_line(line: &str, count: &mut u64) -> String {
    let mut line = blacken_named(line, count);
    line = blacken_bearer(line, count);
    blacken_userinfo(line, count)
}

/// Blacks out what follows a secret's name and `=` or `:`: a quoted text whole, else up to the next blank or comma.
fn blacken_named(line: &str, count: &mut u64) -> String {
    let lower = line.to_ascii_lowercase();
    let (mut out, mut copied) = (String::new(), 0);
    let mut from = 0;
    while let Some((at, name)) = next_name(&lower, from) {
        from = at + name.len();
        let Some((start, end)) = value_after(line, from) else { continue };
        if start < copied || &line[start..end] == BLACK {
            continue;
        }
        out.push_str(&line[copied..start]);
        out.push_str(BLACK);
        (copied, from) = (end, end);
        *count += 1;
    }
    out.push_str(&line[copied..]);
    out
}

fn next_name(lower: &str, from: usize) -> Option<(usize, &'static str)> {
    let found = NAMES.iter().filter_map(|name| Some((from + lower.get(from..)?.find(name)?, *name)));
    found.min()
}

/// Where the value of a name lies that ends here; none if no value follows. Names may go on a little: `token_file=`.
fn value_after(line: &str, name_end: usize) -> Option<(usize, usize)> {
    let rest = line.get(name_end..)?;
    let name_rest = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c)))?;
    let after = rest[name_rest..].trim_start_matches(['"', '\\', '\'']).trim_start();
    let value = after.strip_prefix(['=', ':'])?.trim_start();
    let start = line.len() - value.len();
    let quote = value.trim_start_matches('\\').chars().next().filter(|c| matches!(c, '"' | '\''));
    let Some(quote) = quote else {
        let end = value.find([' ', ',', ';', '&', '}', ']', '\t']).unwrap_or(value.len());
        // Authorization: Basic xyz has its secret in the second word.
        let rest_is_secret = matches!(&value[..end], "Basic" | "Bearer" | "basic" | "bearer");
        let end = if rest_is_secret { value.len() } else { end };
        return (end > 0).then_some((start, start + end));
    };
    let opening = value.find(quote)? + 1;
    let inner = &value[opening..];
    let mut end = inner.len();
    let mut is_escaped = opening > 1;
    for (i, c) in inner.char_indices() {
        match c {
            '\\' if opening == 1 => is_escaped = !is_escaped,
            // In a document inside of a text the quotes themselves are escaped.
            c if c == quote && (opening > 1 || !is_escaped) => {
                end = if opening > 1 { i.saturating_sub(1) } else { i };
                break;
            }
            _ if opening == 1 => is_escaped = false,
            _ => {}
        }
    }
    let (from, to) = (start + opening, start + opening + end);
    (from < to).then_some((from, to))
}

fn blacken_bearer(line: String, count: &mut u64) -> String {
    let Some(at) = line.find("Bearer ") else { return line };
    let start = at + "Bearer ".len();
    let end = line[start..].find([' ', '"', ',']).map_or(line.len(), |n| start + n);
    if start == end {
        return line;
    }
    *count += 1;
    format!("{}{BLACK}{}", &line[..start], &line[end..])
}

/// Blacks out what stands before the `@` of an address's host.
fn blacken_userinfo(line: String, count: &mut u64) -> String {
    let (mut out, mut rest) = (String::new(), line.as_str());
    while let Some(at) = rest.find("//") {
        let start = at + 2;
        let end = rest[start..].find(['/', ' ', '"', '?', '\\']).map_or(rest.len(), |n| start + n);
        out.push_str(&rest[..start]);
        match rest[start..end].rfind('@') {
            Some(host) => {
                *count += 1;
                out.push_str(BLACK);
                out.push_str(&rest[start + host..end]);
            }
            None => out.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_blacked_out_and_the_rest_stays() {
        for (text, expected) in [
            ("password=hunter2 rest", "password=[redacted] rest"),
            ("PASSWORD: hunter2, rest", "PASSWORD: [redacted], rest"),
            (r#"{"auth_token": "abc\"def", "group": 7}"#, r#"{"auth_token": "[redacted]", "group": 7}"#),
            (r#"{"message":"{\"secret\":\"abc\"}"}"#, r#"{"message":"{\"secret\":\"[redacted]\"}"}"#),
            ("Authorization: Basic dXNlcjpw", "Authorization: [redacted]"),
            ("sent Bearer abc.def", "sent Bearer [redacted]"),
            ("http://me:pw@host:80/x?a=b", "http://[redacted]@host:80/x?a=b"),
            (
                "a -----BEGIN EC PRIVATE KEY-----\nMHc\nx\n-----END EC PRIVATE KEY-----\nb\n",
                "[redacted]\nb\n",
            ),
            ("token_file=/run/x and psk='abc'", "token_file=[redacted] and psk='[redacted]'"),
            ("the session's token", "the session's token"),
            ("nbd://127.0.0.1:10809/data, weft_node_up 1", "nbd://127.0.0.1:10809/data, weft_node_up 1"),
            ("name@host key=5 größe=7", "name@host key=5 größe=7"),
            ("passwörd token=größe;x", "passwörd token=[redacted];x"),
        ] {
            let (out, count) = redact(text);
            assert_eq!(out, expected, "of {text}");
            assert_eq!(count > 0, text != expected, "{text}: {count}");
        }
    }

    #[test]
    fn every_name_of_a_secret_is_known() {
        let names =
            "password passwd passphrase secret token api_key apikey private_key authorization credential psk";
        for name in names.split(' ') {
            for text in [format!("{name}=hunter2"), format!("my_{}: hunter2", name.to_uppercase())] {
                let (out, count) = redact(&text);
                assert!(count == 1 && out.ends_with("[redacted]"), "{text}: {out}");
            }
            let (out, _) = redact(&format!("{{\"{name}s\": \"hunter2\", \"group\": 7}}"));
            assert!(!out.contains("hunter2") && out.ends_with("\"group\": 7}"), "{name}: {out}");
        }
    }

    #[test]
    fn several_on_one_line_are_all_found() {
        let (out, count) = redact("password=a password=b secret: \"c d\" x=1");
        assert_eq!(out, "password=[redacted] password=[redacted] secret: \"[redacted]\" x=1");
        assert_eq!(count, 3);
    }
}
