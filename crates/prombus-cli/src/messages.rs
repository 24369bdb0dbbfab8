//! What the program says to its user when something is wrong: one line each, on stderr.

use std::io::{ErrorKind, Write, stderr};

/// Says what is wrong, in one line on stderr.
pub fn complain(what: &str) {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(stderr(), "prombus: {what}");
}

/// An error and its causes in one line. An error that repeats its cause in its own text is not followed by it.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }
    line
}

/// Why the system refused, without its error number.
pub fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("disk gone").context("writing a: disk gone").context("closing");
        assert_eq!(one_line(&error), "closing: writing a: disk gone");
    }
}
