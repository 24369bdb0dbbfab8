//! Converts errors of the log into errors of the bus.

use crate::error::{ReadError, StoreError, with_causes};
use prombus_log::AppendError;

impl From<AppendError> for StoreError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::QueueFull => Self::Busy,
            AppendError::StorageFull => Self::Full,
            AppendError::TooLarge { .. } | AppendError::KeyTooLong { .. } => {
                Self::TooLarge(error.to_string())
            }
            AppendError::UnknownTopic(number) => Self::UnknownTopic(number),
            AppendError::Unavailable(reason) => Self::Unavailable(reason.into()),
            AppendError::Lookup(_) => Self::Lookup(error.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<prombus_log::ReadError> for ReadError {
    fn from(error: prombus_log::ReadError) -> Self {
        match error {
            prombus_log::ReadError::UnknownTopic(number) => Self::UnknownTopic(format!("number {number}")),
            prombus_log::ReadError::Unreadable { first_seq, last_seq, .. } => {
                Self::Unreadable { first_seq, last_seq, reason: with_causes(&error) }
            }
            other => Self::Io(with_causes(&other)),
        }
    }
}
