//! Reasons of I/O errors, in words.

use std::io;

/// The reason of an I/O error, without its error number.
pub(crate) fn io_reason(error: &io::Error) -> String {
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset by the server",
        io::ErrorKind::HostUnreachable => "no route to the host",
        io::ErrorKind::NetworkUnreachable => "network unreachable",
        io::ErrorKind::TimedOut => "no answer",
        io::ErrorKind::UnexpectedEof => "the server closed the connection",
        _ => return plain_text(error),
    };
    text.to_owned()
}

/// The text of an I/O error, without its error number and the name of the system call.
pub(crate) fn plain_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.trim_start_matches("failed to lookup address information: ").to_owned()
}
