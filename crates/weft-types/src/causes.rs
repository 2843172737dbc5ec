//! An error with all its causes, for a log line or an answer.

use std::error::Error;

/// The error and, behind colons, everything that caused it, on one line.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl std::fmt::Display for Layer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn causes_follow_in_order() {
        let disk = Layer("no space left", None);
        let error = Layer("the log", Some(Box::new(Layer("a write", Some(Box::new(disk))))));
        assert_eq!(with_causes(&error), "the log: a write: no space left");
    }
}
