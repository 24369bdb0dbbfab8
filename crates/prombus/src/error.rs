//! Errors, one family per operation. Each says what is wrong and, where there is a limit, what is allowed.

use prombus_protocol::{ErrorCode, GroupNameError, JsonError, OptionError, TopicError, Uuid};

/// The bus cannot make something durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// A write or a sync failed; what was pending has an unknown fate.
    #[error("writing stopped after a failure ({0}); restart to recover")]
    Poisoned(String),
    /// The bus was closed.
    #[error("the bus is closed")]
    Closed,
    /// The disk is full, with the room that is reserved for groups. What was said applies, but is lost with a restart unless there
    /// is room before.
    #[error("the storage is full")]
    StorageFull,
    /// The engine cannot commit for now. Whether something that was sent before is kept is unknown; try again.
    #[error("the engine is not available: {0}")]
    Suspended(String),
    /// Another process leads the store. The text says which one, as far as it is known.
    #[error("another process leads this store: {0}")]
    Deposed(String),
}

impl Unavailable {
    /// What it is called on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::StorageFull => ErrorCode::StorageFull,
            Self::Poisoned(_) | Self::Closed | Self::Suspended(_) | Self::Deposed(_) => {
                ErrorCode::Unavailable
            }
        }
    }
}

impl From<prombus_log::Unavailable> for Unavailable {
    fn from(error: prombus_log::Unavailable) -> Self {
        match error {
            prombus_log::Unavailable::Closed => Self::Closed,
            prombus_log::Unavailable::Poisoned(reason) => Self::Poisoned(reason),
            other => Self::Poisoned(other.to_string()),
        }
    }
}

/// Why a bus could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The log in the folder could not be opened.
    #[error(transparent)]
    Log(#[from] prombus_log::OpenError),
    /// The groups in the log could not be understood.
    #[error("the groups of this log cannot be read: {0}")]
    Groups(String),
    /// A setting is out of range.
    #[error("{name} is {value}: {allowed}")]
    BadSetting {
        /// Which one.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// A thread could not be started.
    #[error("starting a thread")]
    Thread(#[source] std::io::Error),
    /// Another process leads the store.
    #[error("another process leads this store: {address}")]
    Led {
        /// Where it is reached, as far as it is known.
        address: String,
        /// Its term, by the fence in the store or by the lease record.
        term: u64,
    },
    /// The store on the network cannot be used. The text says why, without credentials.
    #[error("{0}")]
    Store(String),
}

/// Why a store took nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Too much is waiting to be committed; try again when told.
    #[error("the commit queue is full")]
    Busy,
    /// There is no room.
    #[error("the storage is full")]
    Full,
    /// It alone is more than a batch can hold.
    #[error("{0}")]
    TooLarge(String),
    /// There is no such topic, or no longer.
    #[error("there is no topic with the number {0}")]
    UnknownTopic(u32),
    /// Writing stopped.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// Whether an id is known could not be read: the event may be a duplicate, so it is not taken. Try again.
    #[error("{0}")]
    Lookup(String),
    /// The store failed in another way.
    #[error("{0}")]
    Other(String),
}

/// A setting of a topic that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {why}")]
pub struct SettingError {
    /// Which one.
    pub name: &'static str,
    /// What is wrong, or what is allowed.
    pub why: String,
}

/// Why something about a topic did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicAdminError {
    /// There is no such topic.
    #[error("there is no topic {0:?}")]
    UnknownTopic(String),
    /// A setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// There are as many topics as allowed.
    #[error("topic limit reached (max_topics = {0})")]
    TooManyTopics(usize),
    /// There is no room for the record.
    #[error("the storage is full")]
    StorageFull,
    /// The bus writes no more.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store failed in another way.
    #[error("{0}")]
    Store(String),
}

impl From<StoreError> for TopicAdminError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::StorageFull,
            StoreError::Unavailable(reason) => Self::Unavailable(reason),
            other => Self::Store(other.to_string()),
        }
    }
}

/// Why there is no backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// What is kept nowhere cannot be backed up.
    #[error("this store keeps nothing on disk; there is nothing to back up")]
    NotDurable,
    /// The engine keeps its data elsewhere, and other tools back it up. The text says how.
    #[error("{0}")]
    Elsewhere(String),
    /// The folder is not empty, cannot be made or written, or is inside the data folder.
    #[error("{0}")]
    Folder(String),
    /// The folder's disk has no room.
    #[error("{0}")]
    Full(String),
    /// Copying failed.
    #[error("{0}")]
    Failed(String),
}

impl From<ReadError> for BackupError {
    fn from(error: ReadError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such topic.
    #[error("there is no topic {0:?}")]
    UnknownTopic(String),
    /// The topic has no event with this id.
    #[error("there is no event with the id {0}")]
    UnknownId(Uuid),
    /// A position that no reader of this store can have.
    #[error("the position is not one of this server's events")]
    UnknownPosition,
    /// The keys of the topic take more memory than is allowed.
    #[error(
        "the keys of {topic:?} take more than {limit_bytes} bytes (state_memory_bytes); read the topic instead"
    )]
    TooManyKeys {
        /// The topic.
        topic: String,
        /// The limit.
        limit_bytes: usize,
    },
    /// A file cannot be read now. Nothing is known about what it holds; try again later.
    #[error("{0}")]
    Io(String),
    /// Some events cannot be read now. They are neither damaged nor gone; try again later.
    #[error("{reason}")]
    Unreadable {
        /// The first of them.
        first_seq: u64,
        /// The last one, as far as that is known.
        last_seq: u64,
        /// What the system said.
        reason: String,
    },
    /// A fault of prombus.
    #[error("reading failed: {0}")]
    Failed(String),
    /// The bus was closed.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl ReadError {
    /// Whether a file could not be read: that may pass, and nothing may be concluded from it.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Unreadable { .. })
    }
}

/// Why an event was not published. Nothing of it, or of its batch, was kept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The name of the topic.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// An option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The payload is not JSON, or nested too deeply.
    #[error("the payload is {0}")]
    Payload(#[from] JsonError),
    /// The payload could not be written as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Serialize(String),
    /// The payload is too large.
    #[error("the payload has {bytes} bytes; at most {limit_bytes} are allowed")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The whole batch is too large.
    #[error("the batch is too large: {0}")]
    BatchTooLarge(String),
    /// There are as many topics as allowed.
    #[error("topic limit reached (max_topics = {0})")]
    TooManyTopics(usize),
    /// There is no room on the disk, or in memory.
    #[error("the storage is full")]
    StorageFull,
    /// The bus writes no more; whether the event was kept is unknown.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// Whether the event is a duplicate could not be read now. It was not kept; try again.
    #[error("{0}")]
    Lookup(String),
    /// The store failed in another way.
    #[error("{0}")]
    Store(String),
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::StorageFull,
            StoreError::TooLarge(why) => Self::BatchTooLarge(why),
            StoreError::Unavailable(reason) => Self::Unavailable(reason),
            StoreError::Lookup(why) => Self::Lookup(why),
            other => Self::Store(other.to_string()),
        }
    }
}

impl PublishError {
    /// What it is called on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Topic(_) => ErrorCode::BadTopic,
            Self::Payload(JsonError::TooDeep { .. }) | Self::Option(_) | Self::Serialize(_) => {
                ErrorCode::BadRequest
            }
            Self::Payload(_) => ErrorCode::BadJson,
            Self::TooLarge { .. } | Self::BatchTooLarge(_) => ErrorCode::TooLarge,
            Self::TooManyTopics(_) => ErrorCode::LimitReached,
            Self::StorageFull => ErrorCode::StorageFull,
            Self::Unavailable(_) | Self::Lookup(_) => ErrorCode::Unavailable,
            Self::Store(_) => ErrorCode::PublishFailed,
        }
    }
}

/// Why something about a group did not work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The name of a topic or a pattern.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The name of a group.
    #[error(transparent)]
    Group(#[from] GroupNameError),
    /// An option.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// There is no such group.
    #[error("there is no group {group:?} on {topic:?}; name the subscription as written, e.g. \"orders.*\"")]
    UnknownGroup {
        /// The subscription as written.
        topic: String,
        /// The group.
        group: String,
    },
    /// The group was made with other topics or another filter.
    #[error("the group {group:?} on {topic:?} has another {what}; all members of a group share it")]
    Conflict {
        /// The subscription as written.
        topic: String,
        /// The group.
        group: String,
        /// What differs.
        what: &'static str,
    },
    /// No event has this id.
    #[error("there is no event with the id {0}")]
    UnknownId(Uuid),
    /// A cursor of another subscription.
    #[error("the cursor is of {other:?}, not of {topic:?}")]
    OtherTopic {
        /// The subscription as written.
        topic: String,
        /// The cursor's.
        other: String,
    },
    /// There are as many groups as allowed.
    #[error("group limit reached (max_groups = {0})")]
    TooManyGroups(usize),
    /// There are as many topics as allowed.
    #[error("topic limit reached (max_topics = {0})")]
    TooManyTopics(usize),
    /// The group was deleted.
    #[error("the group was deleted")]
    Deleted,
    /// Another member took the group over.
    #[error("another member took the group over")]
    TakenOver,
    /// There is no room for the record.
    #[error("the storage is full")]
    StorageFull,
    /// Reading the events failed.
    #[error(transparent)]
    Read(ReadError),
    /// The bus writes no more.
    #[error(transparent)]
    Unavailable(Unavailable),
    /// The store failed in another way.
    #[error("{0}")]
    Store(String),
}

impl From<Unavailable> for GroupError {
    fn from(reason: Unavailable) -> Self {
        match reason {
            Unavailable::StorageFull => Self::StorageFull,
            other => Self::Unavailable(other),
        }
    }
}

impl From<StoreError> for GroupError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::StorageFull,
            StoreError::Unavailable(reason) => Self::Unavailable(reason),
            other => Self::Store(other.to_string()),
        }
    }
}

impl From<ReadError> for GroupError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::UnknownId(id) => Self::UnknownId(id),
            ReadError::Unavailable(reason) => Self::Unavailable(reason),
            other => Self::Read(other),
        }
    }
}

impl GroupError {
    /// What it is called on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Topic(_) | Self::Option(OptionError::Topic { .. }) => ErrorCode::BadTopic,
            Self::Option(_) | Self::Group(_) | Self::OtherTopic { .. } => ErrorCode::BadRequest,
            Self::UnknownGroup { .. } | Self::Deleted | Self::TakenOver => ErrorCode::NotSubscribed,
            Self::Conflict { .. } => ErrorCode::GroupConflict,
            Self::UnknownId(_) => ErrorCode::UnknownId,
            Self::TooManyGroups(_) | Self::TooManyTopics(_) => ErrorCode::LimitReached,
            Self::StorageFull => ErrorCode::StorageFull,
            Self::Unavailable(_) => ErrorCode::Unavailable,
            Self::Read(error) if error.is_unreadable() => ErrorCode::Unavailable,
            Self::Read(_) | Self::Store(_) => ErrorCode::Internal,
        }
    }
}
