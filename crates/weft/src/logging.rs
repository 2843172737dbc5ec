//! Logs on the standard error, filtered by `WEFT_LOG`.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// For a daemon: what happens to it, with the time.
pub(crate) fn start_for_daemon() {
    start(LevelFilter::INFO);
}

/// For a command: only what its user should know.
pub(crate) fn start_for_command() {
    start(LevelFilter::ERROR);
}

fn start(default: LevelFilter) {
    let filter =
        EnvFilter::builder().with_default_directive(default.into()).with_env_var("WEFT_LOG").from_env_lossy();
    let is_coloured = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(is_coloured)
        .init();
}
