//! The errors of a projector.

use crate::error::{GroupError, PublishError, ReadError, Unavailable};
use prombus_protocol::TopicError;

/// Why a projector could not start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectorError {
    /// A topic name is invalid.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// An option that every projector needs is not set.
    #[error("the {0} topic of the projector is not set")]
    Missing(&'static str),
    /// The group could not read the input.
    #[error("cannot read the input")]
    Group(#[from] GroupError),
    /// The output topic could not be read.
    #[error("cannot read the states")]
    Read(#[from] ReadError),
    /// The states could not be published.
    #[error("cannot publish states")]
    Publish(#[from] PublishError),
    /// Another projector of the group was opened in this process.
    #[error("another projector of the group was opened")]
    Superseded,
}

impl ProjectorError {
    /// Whether the cause is only that the bus was closed.
    pub fn is_closed(&self) -> bool {
        matches!(
            self,
            Self::Group(GroupError::Unavailable(Unavailable::Closed))
                | Self::Read(ReadError::Unavailable(Unavailable::Closed))
                | Self::Publish(PublishError::Unavailable(Unavailable::Closed))
        )
    }
}
