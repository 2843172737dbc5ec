//! Paths, as bytes: their names one by one.

/// The names of a path. Empty ones and `.` say nothing; `..` is kept.
pub(crate) fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// A path as text for people, whatever bytes it has.
pub(crate) fn text(path: &[u8]) -> String {
    match path {
        b"" => "/".to_owned(),
        path => String::from_utf8_lossy(path).escape_debug().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_paths() {
        let of = |path: &'static [u8]| names(path).collect::<Vec<_>>();
        assert!(of(b"").is_empty() && of(b"//./").is_empty());
        assert_eq!(of(b"/a/./b//../c/"), [&b"a"[..], b"b", b"..", b"c"]);
    }

    #[test]
    fn text_of_any_bytes() {
        assert_eq!(text(b""), "/");
        assert_eq!(text(b"a\n\xff"), "a\\n\u{fffd}");
    }
}
