//! Progress messages and result files of the programs that measure.

use anyhow::Context;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Prints a line to stderr. Errors are ignored, because stderr may be closed.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Formats a duration in seconds or minutes.
#[must_use]
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 100 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// Writes a result file and reports it.
///
/// # Errors
/// If it cannot be written.
pub fn write_file(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}
