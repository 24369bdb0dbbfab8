//! Errors of options. Messages name the field as it is called in JSON, the value, and what is allowed.

use crate::topic_name::TopicError;
use thiserror::Error;

/// An invalid option. Fields are named as in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// The options as a whole cannot be read.
    #[error("options cannot be read: {why}")]
    Unreadable {
        /// The problem.
        why: String,
    },
    /// An id that is not a UUID.
    #[error("\"{field}\": not a UUID: {got}")]
    NotUuid {
        /// The field.
        field: String,
        /// The value.
        got: String,
    },
    /// A number out of range, a fraction, or a value that is not a number.
    #[error("\"{field}\": {got} is not allowed, only a whole number from {least} to {most}")]
    NotInRange {
        /// The field.
        field: String,
        /// The value.
        got: String,
        /// The least that is allowed.
        least: i64,
        /// The most that is allowed.
        most: i64,
    },
    /// A value of the wrong type, or one that is not allowed.
    #[error("\"{field}\": {got} is not allowed, only {allowed}")]
    NotAllowed {
        /// The field.
        field: String,
        /// The value.
        got: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A text that is too long or too short.
    #[error("\"{field}\" of {bytes} bytes: {least} to {most} are allowed")]
    Length {
        /// The field.
        field: String,
        /// The length of the value.
        bytes: usize,
        /// The least number of bytes that is allowed.
        least: usize,
        /// The greatest number of bytes that is allowed.
        most: usize,
    },
    /// A list with too many items.
    #[error("\"{field}\" has {count} items: at most {most} are allowed")]
    TooMany {
        /// The field.
        field: String,
        /// The number of items.
        count: usize,
        /// The greatest number of items that is allowed.
        most: usize,
    },
    /// A missing field that another field requires.
    #[error("\"{field}\" is missing: \"from\": \"{needed_by}\" needs it")]
    Missing {
        /// The field.
        field: String,
        /// The value of `from` that needs it.
        needed_by: &'static str,
    },
    /// An unknown field whose name resembles a known one.
    #[error("\"{field}\" is not known: did you mean \"{meant}\"?")]
    Mistyped {
        /// The field as the client wrote it.
        field: String,
        /// The known name.
        meant: String,
    },
    /// A known field in the wrong place.
    #[error("\"{field}\" has no effect here: did you mean \"{meant}\"?")]
    Misplaced {
        /// The field as the client wrote it.
        field: String,
        /// The path of the right place, e.g. `opts.key`.
        meant: String,
    },
    /// Both spellings of a field, with different values.
    #[error("\"{field}\" and \"{other}\" are one option and have different values: send one of them")]
    Contradiction {
        /// The first.
        field: String,
        /// The second.
        other: String,
    },
    /// Two fields of which only one may be present.
    #[error("\"{field}\" and \"{other}\" exclude each other: send one of them")]
    Exclusive {
        /// The first.
        field: &'static str,
        /// The second.
        other: &'static str,
    },
    /// A topic or pattern that is not valid.
    #[error("\"{field}\": {source}")]
    Topic {
        /// The field.
        field: String,
        /// The rule that it breaks.
        source: TopicError,
    },
}

impl OptionError {
    pub(crate) fn refused(field: &str, got: &impl std::fmt::Display, allowed: &'static str) -> Self {
        Self::NotAllowed { field: field.to_owned(), got: got.to_string(), allowed }
    }

    pub(crate) fn unreadable(why: impl std::fmt::Display) -> Self {
        Self::Unreadable { why: why.to_string() }
    }
}
