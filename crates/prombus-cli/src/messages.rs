//! Error messages for the user: one line each, on stderr.

use crate::cmd::style::escape_controls;
use prombus_client::ClientError;
use std::io::{ErrorKind, Write, stderr};

/// Prints an error as one line on stderr. Parts of the message can come from a server or an event: characters that could control the
/// terminal are replaced.
pub fn print_error(message: &str) {
    // A closed stderr leaves nowhere to report the failure.
    let _ = stderr().write_all(error_line(message).as_bytes());
}

/// The line of an error.
pub fn error_line(message: &str) -> String {
    format!("prombus: {}\n", escape_controls(&message.replace(['\n', '\r', '\t'], " ")))
}

/// An error and its causes in one line, and what to do about it. A cause that is already part of the text is not repeated.
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
    if let Some(advice) = error.chain().find_map(|cause| cause.downcast_ref()).and_then(advice) {
        line.push_str("; ");
        line.push_str(advice);
    }
    line
}

/// What a user can do about an error of the client.
fn advice(error: &ClientError) -> Option<&'static str> {
    Some(match error {
        ClientError::Connect { .. } => {
            "start a server with `prombus serve`, or name another with --url, PROMBUS_URL or `prombus context use`"
        }
        ClientError::Certificate { why, .. } if why.contains("not trusted") => {
            "name a file with the certificate of its authority with --ca-cert or PROMBUS_CA_CERT"
        }
        ClientError::Unauthorized { .. } => {
            "give a token with --token, PROMBUS_TOKEN or `prombus context add`"
        }
        ClientError::CaCert { .. } => "--ca-cert, PROMBUS_CA_CERT or the context names it",
        _ => return None,
    })
}

/// A number of things: `1 event`, `2 events`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The verb for a number of things.
pub fn was(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

/// The reason of an I/O error, without its error number.
pub fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// Whether the reader closed the output. Connection errors cannot match: clients wrap them in their own error types.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(
            [counted(0, "event"), counted(1, "event"), counted(2, "event")],
            ["0 events", "1 event", "2 events"]
        );
        assert_eq!([was(0), was(1)], ["were", "was"]);
    }

    #[test]
    fn an_error_of_the_client_comes_with_advice() {
        let connect =
            ClientError::Connect { address: "http://a:1".to_owned(), why: "connection refused".to_owned() };
        let line = one_line(&anyhow::Error::from(connect).context("reading"));
        assert!(
            line.starts_with("reading: cannot connect to http://a:1: connection refused; start a server"),
            "{line}"
        );
        let tls = ClientError::Certificate {
            address: "https://a:1".to_owned(),
            why: "it is not trusted".to_owned(),
        };
        let line = one_line(&tls.into());
        assert!(line.contains("--ca-cert") && !line.contains("prombus serve"), "{line}");
    }

    #[test]
    fn an_error_is_one_line_that_does_not_control_the_terminal() {
        assert_eq!(error_line("status 502:\n\x1b[2J\u{9b}"), "prombus: status 502: \\u001b[2J\\u009b\n");
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let error = anyhow::anyhow!("disk gone").context("writing a: disk gone").context("closing");
        assert_eq!(one_line(&error), "closing: writing a: disk gone");
    }
}
