//! The reason of a nack: the end of a command's standard error or, if it wrote nothing, how it ended.

use crate::time;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

/// The exit code of a command that refuses the event, from sysexits.h: the event becomes a dead letter at once.
pub const EX_DATAERR: i32 = 65;

/// The longest reason, in bytes. It is less than what the server keeps, because the end matters and the server cuts there.
const REASON_BYTES_MAX: usize = 2_000;

/// The reason of a command that ended.
pub fn of_exit(status: ExitStatus, stderr: &str) -> String {
    let end = end_of(stderr);
    match (end, status.code(), status.signal()) {
        ("", Some(code), _) => format!("exit code {code}"),
        ("", None, Some(signal)) => format!("killed by signal {signal}"),
        ("", None, None) => status.to_string(),
        (end, ..) => end.to_owned(),
    }
}

/// The reason of a command that ran too long.
pub fn of_timeout(limit: Duration, stderr: &str) -> String {
    let limit = time::length(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
    match end_of(stderr) {
        "" => format!("stopped after {limit}"),
        end => format!("stopped after {limit}: {end}"),
    }
}

/// The last lines of a text that have room in a reason; of a line that is too long, its end.
fn end_of(text: &str) -> &str {
    let text = text.trim();
    let mut start = text.len().saturating_sub(REASON_BYTES_MAX);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let end = &text[start..];
    // Only whole lines, unless there is just one.
    match end.split_once('\n') {
        Some((_, lines)) if start > 0 && !text[..start].ends_with('\n') => lines.trim(),
        _ => end.trim(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn without_text_the_reason_is_how_the_command_ended() {
        assert_eq!(of_exit(exited(3), " \n"), "exit code 3");
        assert_eq!(of_exit(ExitStatus::from_raw(9), ""), "killed by signal 9");
        assert_eq!(of_exit(exited(65), "no customer\n"), "no customer");
        assert_eq!(of_timeout(Duration::from_secs(90), ""), "stopped after 90 s");
        assert_eq!(of_timeout(Duration::from_secs(60), "x\n"), "stopped after 1 min: x");
    }

    #[test]
    fn a_long_text_is_cut_to_its_last_whole_lines() {
        let lines: String = (0..1000).map(|number| format!("line {number:03} ä\n")).collect();
        let end = of_exit(exited(1), &lines);
        assert!(end.len() <= REASON_BYTES_MAX && end.len() > REASON_BYTES_MAX - 30);
        assert!(end.starts_with("line ") && end.ends_with("line 999 ä"), "{end}");
        let one = of_exit(exited(1), &"ä".repeat(5000));
        assert_eq!(one, "ä".repeat(REASON_BYTES_MAX / 2));
    }
}
