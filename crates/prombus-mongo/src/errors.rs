//! Classifies the errors of the driver, and returns their texts without credentials.

use mongodb::error::{Error, ErrorKind};

/// The collection already exists.
pub(crate) const NAMESPACE_EXISTS: i32 = 48;
/// A unique index already has the key.
pub(crate) const DUPLICATE_KEY: i32 = 11_000;

/// A document is larger than 16 MB.
pub(crate) const TOO_LARGE: i32 = 10_334;
/// The error codes of a server that is unreachable, not ready, or no longer the primary: the same operation may succeed later, or on
/// another server.
const OUTAGES: [i32; 13] = [6, 7, 89, 91, 189, 262, 9_001, 10_058, 10_107, 11_600, 11_602, 13_435, 13_436];

/// The text of an error, for logs and messages. The driver's errors do not contain the connection string.
pub(crate) fn reason(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::Command(command) => {
            format!("MongoDB refused: {} ({})", command.message, command.code_name)
        }
        ErrorKind::ServerSelection { message, .. } => {
            let short = message.split("Topology:").next().unwrap_or(message).trim();
            format!("no MongoDB server that takes writes can be reached: {short}")
        }
        ErrorKind::Authentication { message, .. } => format!("MongoDB refused the login: {message}"),
        kind => kind.to_string(),
    }
}

/// Whether the server responded with this code.
pub(crate) fn is_code(error: &Error, code: i32) -> bool {
    match &*error.kind {
        ErrorKind::Command(command) => command.code == code,
        ErrorKind::Write(mongodb::error::WriteFailure::WriteError(write)) => write.code == code,
        _ => false,
    }
}

/// Whether the server responded, so that the operation is not running any more.
pub(crate) fn is_answer(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Command(_) | ErrorKind::Write(_) | ErrorKind::InsertMany(_))
}

/// Whether the server is temporarily unusable, so that waiting helps.
pub(crate) fn is_outage(error: &Error) -> bool {
    match &*error.kind {
        ErrorKind::Command(command) => OUTAGES.contains(&command.code),
        ErrorKind::Io(_)
        | ErrorKind::ConnectionPoolCleared { .. }
        | ErrorKind::ServerSelection { .. }
        | ErrorKind::DnsResolve { .. }
        | ErrorKind::Authentication { .. } => true,
        _ => false,
    }
}
