//! Doors to what this crate reads from people and from files, for fuzzing: each takes any text, checks what must hold
//! for it, and panics if it does not. Nothing of this is in a build for use.

use crate::local::{LocalConfig, ProcessId, parse_stat};
use crate::{Percent, Since, Size, Span, report, scrub, watch};
use std::path::Path;

/// A value of an option.
///
/// # Panics
/// If a value that is read is not read again from how it is written.
pub fn value(text: &str) {
    if let Ok(size) = text.parse::<Size>() {
        assert_eq!(size.0.to_string().parse(), Ok(size));
        // What people are shown is rounded down.
        let shown = size.to_string().parse::<Size>();
        assert!(shown.is_ok_and(|shown| shown <= size) || size.to_string().contains('.'), "{size}");
    }
    if let Ok(span) = text.parse::<Span>() {
        assert_eq!(format!("{}ms", span.0.as_millis()).parse(), Ok(span));
        assert!(!crate::span(span.0).is_empty());
    }
    if let Ok(process) = text.parse::<ProcessId>() {
        assert_eq!(process.to_string().parse(), Ok(process));
    }
    if let Ok(percent) = text.parse::<Percent>() {
        assert!((1..=99).contains(&percent.0));
    }
    let _ = (text.parse::<Since>(), scrub::parse_time(text), watch::parse_interval(text), parse_stat(text));
}

/// The document of a local fabric.
///
/// # Panics
/// If one that decodes does not read back.
pub fn local_config(bytes: &[u8]) {
    let path = Path::new("fabric.json");
    let Ok(config) = LocalConfig::decode(bytes, path) else { return };
    assert_eq!(LocalConfig::decode(&config.encode(), path).expect("it is one"), config);
    config.total_bytes();
    config.metrics_addr(&config.manager_addr);
    let mut moved = config;
    let _ = moved.set_ports(4800);
}

/// A record of `weft watch`, as figures and as a page.
///
/// # Panics
/// If the page of a record that can be read has no charts.
pub fn record(text: &str) {
    if let Some(page) = report::render(text) {
        assert!(page.contains("<svg"), "{page}");
    }
}
