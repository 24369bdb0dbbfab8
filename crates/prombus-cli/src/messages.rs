//! Error messages for the user: one line each, on stderr.

use std::io::{ErrorKind, Write, stderr};

/// Prints an error as one line on stderr.
pub fn print_error(message: &str) {
    // A closed stderr leaves nowhere to report the failure.
    let _ = writeln!(stderr(), "prombus: {message}");
}

/// An error and its causes in one line. A cause that is already part of the text is not repeated.
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

/// The reason of an I/O error, without its error number.
pub fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let error = anyhow::anyhow!("disk gone").context("writing a: disk gone").context("closing");
        assert_eq!(one_line(&error), "closing: writing a: disk gone");
    }
}
