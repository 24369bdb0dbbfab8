//! Progress bars on stderr. There are none when stderr is not a terminal.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::io::{IsTerminal, stderr};

const EVENTS: &str = "{bar:40} {human_pos} of {human_len} events, {msg}{per_sec}, {eta} left";
const BYTES: &str = "{bar:40} {bytes} of {total_bytes}, {msg}{bytes_per_sec}, {eta} left";
const ENDLESS: &str = "{spinner} {bytes}, {msg}{bytes_per_sec}";

/// Progress over a known number of events.
pub fn events(total: u64) -> ProgressBar {
    bar(total, EVENTS)
}

/// Progress over a known number of bytes.
pub fn bytes(total: u64) -> ProgressBar {
    bar(total, BYTES)
}

/// Progress of a stream of unknown length.
pub fn endless() -> ProgressBar {
    bar(0, ENDLESS)
}

/// A size in bytes, formatted for the message of a bar.
pub fn size(bytes: u64) -> String {
    format!("{}, ", HumanBytes(bytes))
}

/// A bar with this template; hidden if stderr is not a terminal. It is removed from the screen when it is dropped, also after an error.
pub fn bar(total: u64, template: &str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_finish(ProgressFinish::AndClear)
}
