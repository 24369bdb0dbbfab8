//! The errors of the crate, one enum per family of operations.

use prombus_protocol::{ErrorCode, GroupNameError, JsonError, OptionError, TopicError, Uuid};

/// The text of an error with its causes, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Why the bus cannot make writes durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// A write or a sync failed. Whether the pending writes are on disk is unknown.
    #[error("writing stopped after a failure ({0}); restart to recover")]
    Poisoned(String),
    /// The bus was closed.
    #[error("the bus is closed")]
    Closed,
    /// The disk is full, including the space that is reserved for group records. The change applies in memory, but it is
    /// lost at a restart, unless space becomes free before the restart.
    #[error("the storage is full")]
    StorageFull,
    /// The engine cannot commit at the moment. Whether earlier writes were kept is unknown; try again.
    #[error("the engine is not available: {0}")]
    Suspended(String),
    /// This process no longer leads the store. The text names the leader, if it is known, or the reason.
    #[error("this process no longer leads the store: {0}")]
    Deposed(String),
}

impl Unavailable {
    /// The error's code on the wire.
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
    /// The group records of the log could not be decoded.
    #[error("the groups of this log cannot be read: {0}")]
    Groups(String),
    /// A setting is out of range.
    #[error("{name} is {value}: {allowed}")]
    BadSetting {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A thread could not be started.
    #[error("a thread could not be started")]
    Thread(#[source] std::io::Error),
    /// Another process leads the store.
    #[error("another process leads this store: {address}")]
    Led {
        /// The address of that process, if it is known.
        address: String,
        /// The number of that process's leadership (its term), as the store reports it.
        term: u64,
    },
    /// The store on the network cannot be used. The text says why, without credentials.
    #[error("{0}")]
    Store(String),
}

/// Why a store refused a write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Too much is waiting to be committed. Try again when the engine reports room.
    #[error("the commit queue is full")]
    Busy,
    /// The storage has no room.
    #[error("the storage is full")]
    Full,
    /// This append alone is larger than a batch may be.
    #[error("{0}")]
    TooLarge(String),
    /// The topic does not exist, or was deleted.
    #[error("there is no topic with the number {0}")]
    UnknownTopic(u32),
    /// The store does not accept writes.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The lookup of an id failed, so the event may be a duplicate and was not accepted. Try again.
    #[error("{0}")]
    Lookup(String),
    /// The store failed in another way.
    #[error("{0}")]
    Other(String),
}

/// A topic setting that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {why}")]
pub struct SettingError {
    /// The setting.
    pub name: &'static str,
    /// The problem with the value, or which values are allowed.
    pub why: String,
}

/// Why an operation on a topic failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicAdminError {
    /// The topic does not exist.
    #[error("there is no topic {0:?}")]
    UnknownTopic(String),
    /// A setting is invalid.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The limit on topics is reached.
    #[error("topic limit reached (max_topics = {0})")]
    TooManyTopics(usize),
    /// The storage has no room for the record.
    #[error("the storage is full")]
    StorageFull,
    /// The bus does not accept writes.
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

/// Why a backup failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The store is in memory only, so it has nothing to back up.
    #[error("this store keeps nothing on disk; there is nothing to back up")]
    NotDurable,
    /// The engine keeps its data in another system, which has its own backup tools. The text says how to use them.
    #[error("{0}")]
    Elsewhere(String),
    /// The folder is not empty, cannot be created or written, or is inside the data folder.
    #[error("{0}")]
    Folder(String),
    /// The disk of the folder is full.
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

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The topic does not exist.
    #[error("there is no topic {0:?}")]
    UnknownTopic(String),
    /// The topic has no event with this id.
    #[error("there is no event with the id {0}")]
    UnknownId(Uuid),
    /// A position that this store cannot have returned.
    #[error("this server cannot have issued this position")]
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
    /// A file cannot be read at the moment. Its content is unknown; try again later.
    #[error("{0}")]
    Io(String),
    /// Some events cannot be read at the moment. They are neither damaged nor removed; try again later.
    #[error("{reason}")]
    Unreadable {
        /// The first unreadable seq.
        first_seq: u64,
        /// The last unreadable seq, as far as it is known.
        last_seq: u64,
        /// The error of the operating system.
        reason: String,
    },
    /// A bug in prombus.
    #[error("reading failed: {0}")]
    Failed(String),
    /// The bus is not available.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl ReadError {
    /// Whether a file could not be read. That may be temporary, so the caller must not conclude that events are damaged or
    /// removed.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Self::Io(_) | Self::Unreadable { .. })
    }
}

/// Why an event was not published. Unless a variant says otherwise, neither the event nor its batch was kept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The name of the topic is invalid.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// An option is invalid.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The payload is not JSON, or is nested too deeply.
    #[error("the payload is {0}")]
    Payload(#[from] JsonError),
    /// The payload could not be serialized as JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    Serialize(String),
    /// The payload is too large.
    #[error("the payload has {bytes} bytes; at most {limit_bytes} are allowed")]
    TooLarge {
        /// The size of the payload.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The whole batch is too large.
    #[error("the batch is too large: {0}")]
    BatchTooLarge(String),
    /// The limit on topics is reached.
    #[error("topic limit reached (max_topics = {0})")]
    TooManyTopics(usize),
    /// The group that the event is addressed to does not exist.
    #[error("the event is addressed to the group {group:?} on {subscription:?}, which does not exist")]
    UnknownGroup {
        /// The topic or pattern of the group.
        subscription: String,
        /// The name of the group.
        group: String,
    },
    /// The group that the event is addressed to does not read the event's topic.
    #[error(
        "the event is addressed to the group {group:?} on {subscription:?}, which does not read the topic {topic}"
    )]
    NotRead {
        /// The topic or pattern of the group.
        subscription: String,
        /// The name of the group.
        group: String,
        /// The topic of the event.
        topic: String,
    },
    /// The disk, or the memory of an in-memory store, is full.
    #[error("the storage is full")]
    StorageFull,
    /// The bus does not accept writes. Whether the event was kept is unknown.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The check for a duplicate failed. The event was not kept; try again.
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
    /// The error's code on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Topic(_) => ErrorCode::BadTopic,
            Self::Payload(JsonError::TooDeep { .. }) | Self::Option(_) | Self::Serialize(_) => {
                ErrorCode::BadRequest
            }
            Self::Payload(_) => ErrorCode::BadJson,
            Self::TooLarge { .. } | Self::BatchTooLarge(_) => ErrorCode::TooLarge,
            Self::TooManyTopics(_) => ErrorCode::LimitReached,
            Self::UnknownGroup { .. } | Self::NotRead { .. } => ErrorCode::NotFound,
            Self::StorageFull => ErrorCode::StorageFull,
            Self::Unavailable(_) | Self::Lookup(_) => ErrorCode::Unavailable,
            Self::Store(_) => ErrorCode::PublishFailed,
        }
    }
}

/// Why an operation on a group failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The name of a topic or a pattern is invalid.
    #[error(transparent)]
    Topic(#[from] TopicError),
    /// The name of the group is invalid.
    #[error(transparent)]
    Group(#[from] GroupNameError),
    /// An option is invalid.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The group does not exist.
    #[error(
        "there is no group {group:?} on {topic:?}; use the topic or pattern with which the group was created, e.g. \"orders.*\""
    )]
    UnknownGroup {
        /// The subscription as written.
        topic: String,
        /// The group.
        group: String,
    },
    /// No topic or pattern has a group of this name.
    #[error("there is no group {group:?}")]
    NoSuchGroup {
        /// The group.
        group: String,
    },
    /// The group was created with other topics or another filter.
    #[error("the group {group:?} on {topic:?} has another {what}; all members of a group share it")]
    Conflict {
        /// The subscription as written.
        topic: String,
        /// The group.
        group: String,
        /// What differs: the topics or the filter.
        what: &'static str,
    },
    /// No event has this id.
    #[error("there is no event with the id {0}")]
    UnknownId(Uuid),
    /// The cursor belongs to another subscription.
    #[error("the cursor belongs to {other:?}, not to {topic:?}")]
    OtherTopic {
        /// The subscription as written.
        topic: String,
        /// The subscription of the cursor.
        other: String,
    },
    /// The limit on groups is reached.
    #[error("group limit reached (max_groups = {0})")]
    TooManyGroups(usize),
    /// The limit on topics is reached.
    #[error("topic limit reached (max_topics = {0})")]
    TooManyTopics(usize),
    /// The group was deleted.
    #[error("the group was deleted")]
    Deleted,
    /// Another member called [`take_over`](crate::Membership::take_over), which removed this member.
    #[error("another member took the group over")]
    TakenOver,
    /// The storage has no room for the record.
    #[error("the storage is full")]
    StorageFull,
    /// Reading the events failed.
    #[error(transparent)]
    Read(ReadError),
    /// The bus does not accept writes.
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
    /// The error's code on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Topic(_) | Self::Option(OptionError::Topic { .. }) => ErrorCode::BadTopic,
            Self::Option(_) | Self::Group(_) | Self::OtherTopic { .. } => ErrorCode::BadRequest,
            Self::UnknownGroup { .. } | Self::NoSuchGroup { .. } | Self::Deleted | Self::TakenOver => {
                ErrorCode::NotSubscribed
            }
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
