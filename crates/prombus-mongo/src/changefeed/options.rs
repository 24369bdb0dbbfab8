//! Options, errors and counters of a changefeed.

use crate::server_abilities::ServerError;
use mongodb::bson::Document;
use mongodb::options::FullDocumentType;
use prombus_protocol::TopicError;

/// Which document the event of an update contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullDocument {
    /// No document, only the changed fields.
    No,
    /// The document at the time at which the change is read; it may contain later changes.
    #[default]
    Newest,
    /// The document right after the change. The collection needs `changeStreamPreAndPostImages`.
    AfterChange,
}

impl FullDocument {
    pub(super) fn driver_type(self) -> Option<FullDocumentType> {
        match self {
            Self::No => None,
            Self::Newest => Some(FullDocumentType::UpdateLookup),
            Self::AfterChange => Some(FullDocumentType::Required),
        }
    }
}

/// Options of a changefeed.
#[derive(Clone, Debug)]
pub struct ChangefeedOptions {
    /// The name under which the feed's position is stored. Only one feed with this name may run at a time.
    pub name: String,
    /// The collection whose changes are published.
    pub collection: String,
    /// The topic of the events.
    pub topic: String,
    /// Which document the events of updates contain. Default: the newest.
    pub full_document: FullDocument,
    /// Aggregation stages that filter the changes, e.g. `$match`. They must keep the fields `_id`, `operationType`, `documentKey` and
    /// `clusterTime`.
    pub filter: Vec<Document>,
    /// Publishes all documents first, and then the changes since then. Default: no.
    pub reseed: bool,
    /// The collection of positions. Default: `prombus_changefeeds`.
    pub places: String,
}

impl ChangefeedOptions {
    /// The default options for a collection. Set the [`topic`](Self::topic).
    pub fn collection(collection: impl Into<String>) -> Self {
        Self {
            name: String::new(),
            collection: collection.into(),
            topic: String::new(),
            full_document: FullDocument::default(),
            filter: Vec::new(),
            reseed: false,
            places: "prombus_changefeeds".to_owned(),
        }
    }

    /// The topic of the events: a typed topic, or a name. If the feed has no name, its name becomes `<collection>::<topic>`.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self.named()
    }

    /// Gives a feed without a name the name `<collection>::<topic>`, so that two feeds do not share a position.
    pub(super) fn named(mut self) -> Self {
        if self.name.is_empty() {
            self.name = format!("{}::{}", self.collection, self.topic);
        }
        self
    }

    /// Publishes all documents first, and then the changes since then.
    #[must_use]
    pub fn reseed(mut self) -> Self {
        self.reseed = true;
        self
    }
}

/// Why a changefeed could not start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangefeedError {
    /// The server lacks a required feature, or cannot be reached.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The topic of the events is not set, or is not valid.
    #[error("the topic of the changefeed: {0}")]
    Topic(#[from] TopicError),
    /// The collection was dropped or renamed, so its stream has ended.
    #[error(
        "the change stream of the collection {collection} has ended ({why}): when the collection exists again, start the feed with reseed"
    )]
    Invalidated {
        /// The collection.
        collection: String,
        /// What happened.
        why: String,
    },
    /// The feed was stopped for longer than the oplog covers.
    #[error(
        "the changes since {feed} was stopped are no longer in the oplog: start it with reseed, which publishes all documents and continues from there (to allow longer stops, use a larger oplog or storage.oplogMinRetentionHours)"
    )]
    HistoryLost {
        /// The feed.
        feed: String,
    },
    /// The bus permanently refuses an event.
    #[error(
        "the change of document {key} cannot be published: {error}; use map to make the event smaller or leave it out"
    )]
    Refused {
        /// The document.
        key: String,
        /// The error of the bus.
        error: String,
    },
    /// The stream failed.
    #[error("the change stream failed: {0}")]
    Stream(String),
    /// The server is unreachable. A running feed waits for it.
    #[error("{0}")]
    Away(String),
}

impl From<mongodb::error::Error> for ChangefeedError {
    fn from(error: mongodb::error::Error) -> Self {
        match crate::errors::is_outage(&error) {
            true => Self::Away(crate::errors::reason(&error)),
            false => Self::Server(error.into()),
        }
    }
}

/// Counters and current state of a changefeed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangefeedFigures {
    /// Events that were added.
    pub published: u64,
    /// Changes whose event already existed.
    pub duplicates: u64,
    /// Documents that were published by a reseed.
    pub seeded: u64,
    /// How often the feed failed, for example because the server or the bus was unreachable.
    pub failures: u64,
    /// Why the feed cannot work at present; `None` if it can.
    pub trouble: Option<String>,
}

impl ChangefeedFigures {
    /// The figures in the Prometheus text format.
    pub fn to_prometheus(&self, feed: &str) -> String {
        crate::figures_text::prometheus(
            "prombus_mongo_changefeed",
            &[("feed", feed)],
            &[
                ("published_total", "Events that were published.", self.published),
                ("duplicates_total", "Changes that had been published before.", self.duplicates),
                ("seeded_total", "Documents that were published when the feed was seeded.", self.seeded),
                ("failures_total", "How often the database or the bus was unusable.", self.failures),
                ("up", "1 while the feed works.", u64::from(self.trouble.is_none())),
            ],
        )
    }
}
