//! Logging to stderr. Stdout is reserved for the output of commands.

use crate::config::{LogFormat, LogSettings};
use std::io::{IsTerminal, stderr};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging. A process must call this only once.
///
/// # Errors
/// When the filter cannot be parsed.
pub fn start(settings: &LogSettings) -> anyhow::Result<()> {
    let filtered = tracing_subscriber::registry().with(settings.filter.parse::<Targets>()?);
    let has_colours = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt::layer().with_writer(stderr).with_ansi(has_colours);
    match settings.format {
        LogFormat::Text => filtered.with(lines).init(),
        LogFormat::Json => filtered.with(lines.json().flatten_event(true)).init(),
    }
    Ok(())
}
