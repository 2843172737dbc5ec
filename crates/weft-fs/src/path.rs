//! Paths, as bytes: their names one by one.

/// The names of a path. Empty ones and `.` say nothing; `..` is kept.
pub(crate) fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// Whether a path says that it is a directory: it ends with `/` or `.`.
pub(crate) fn is_of_directory(path: &[u8]) -> bool {
    path.last().is_some_and(|last| *last == b'/') || ends_with_dot(path)
}

/// Whether the last name of a path is `.`.
pub(crate) fn ends_with_dot(path: &[u8]) -> bool {
    let last = path.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
    last == Some(b".")
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
    fn paths_of_directories() {
        assert!(["/", "a/", "a/.", ".", "./"].iter().all(|path| is_of_directory(path.as_bytes())));
        assert!(["a", "/a/b", "..", ".a", "a."].iter().all(|path| !is_of_directory(path.as_bytes())));
        assert!(ends_with_dot(b"a/.//") && !ends_with_dot(b"a/../b"));
    }

    #[test]
    fn text_of_any_bytes() {
        assert_eq!(text(b""), "/");
        assert_eq!(text(b"a\n\xff"), "a\\n\u{fffd}");
    }
}
