//! Why a projector stops.

use crate::error::{GroupError, PublishError, ReadError, Unavailable};
use prombus_protocol::TopicError;

/// Why a projector could not start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectorError {
    /// The name of a topic.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The group that reads the input.
    #[error("reading the input")]
    Group(#[from] GroupError),
    /// The output topic could not be read.
    #[error("reading the states")]
    Read(#[from] ReadError),
    /// The states could not be published.
    #[error("publishing states")]
    Publish(#[from] PublishError),
    /// Another projector of the group was opened in this process.
    #[error("another projector of the group was opened")]
    Superseded,
}

impl ProjectorError {
    /// Whether the only cause is that the bus was closed.
    pub fn is_closed(&self) -> bool {
        matches!(
            self,
            Self::Group(GroupError::Unavailable(Unavailable::Closed))
                | Self::Read(ReadError::Unavailable(Unavailable::Closed))
                | Self::Publish(PublishError::Unavailable(Unavailable::Closed))
        )
    }
}
