//! What a program that measures says while it does, and the files that it writes.

use anyhow::Context;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// A line on stderr. Whoever closed it does not want to know.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A time in words.
#[must_use]
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 100 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// Writes a file of results, and says so.
///
/// # Errors
/// When it can't be written.
pub fn write_file(folder: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    say(&format!("wrote {}", path.display()));
    Ok(())
}
