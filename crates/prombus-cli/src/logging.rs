//! Logging to stderr. Stdout is reserved for the output of commands.

use crate::config::{LogFormat, LogSettings};
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Starts logging. A process must call this only once.
///
/// # Errors
/// When the filter cannot be parsed.
pub fn start(settings: &LogSettings) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(&settings.filter)?;
    let has_colours = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(has_colours);
    match settings.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}
