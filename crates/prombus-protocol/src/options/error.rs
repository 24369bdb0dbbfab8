//! What is wrong with an option. Messages name the field as JSON has it, what came, and what is allowed.

use crate::topic_name::TopicError;
use thiserror::Error;

/// An option that cannot be taken. Fields are named as in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// The options as a whole cannot be read.
    #[error("options cannot be read: {why}")]
    Unreadable {
        /// What is wrong.
        why: String,
    },
    /// An id that is none.
    #[error("\"{field}\": not a UUID: {got}")]
    NotUuid {
        /// The field.
        field: String,
        /// What came.
        got: String,
    },
    /// A number out of range, a fraction, or no number.
    #[error("\"{field}\": {got} is not allowed, only a whole number from {least} to {most}")]
    NotInRange {
        /// The field.
        field: String,
        /// What came.
        got: String,
        /// The least that is allowed.
        least: i64,
        /// The most that is allowed.
        most: i64,
    },
    /// Another type or value than the field has.
    #[error("\"{field}\": {got} is not allowed, only {allowed}")]
    NotAllowed {
        /// The field.
        field: String,
        /// What came.
        got: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A text of too many bytes, or none.
    #[error("\"{field}\" of {bytes} bytes: {least} to {most} are allowed")]
    Length {
        /// The field.
        field: String,
        /// The length of what came.
        bytes: usize,
        /// The fewest that are allowed.
        least: usize,
        /// The most that are allowed.
        most: usize,
    },
    /// Too many items.
    #[error("\"{field}\" has {count} items: at most {most} are allowed")]
    TooMany {
        /// The field.
        field: String,
        /// How many came.
        count: usize,
        /// How many may.
        most: usize,
    },
    /// A field that another one needs.
    #[error("\"{field}\" is missing: \"from\": \"{needed_by}\" needs it")]
    Missing {
        /// The field.
        field: String,
        /// The value of `from` that needs it.
        needed_by: &'static str,
    },
    /// A field that is not known, but nearly.
    #[error("\"{field}\" is not known: did you mean \"{meant}\"?")]
    Mistyped {
        /// The field as it came.
        field: String,
        /// The known one.
        meant: String,
    },
    /// A known field where it does not belong.
    #[error("\"{field}\" has no effect here: did you mean \"{meant}\"?")]
    Misplaced {
        /// The field as it came.
        field: String,
        /// Where it belongs, with dots.
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
    /// Two fields of which only one may be there.
    #[error("\"{field}\" and \"{other}\" exclude each other: send one of them")]
    Exclusive {
        /// The first.
        field: &'static str,
        /// The second.
        other: &'static str,
    },
    /// A topic or pattern that breaks the rules.
    #[error("\"{field}\": {source}")]
    Topic {
        /// The field.
        field: String,
        /// Which rule.
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
