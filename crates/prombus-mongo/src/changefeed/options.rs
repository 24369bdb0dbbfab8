//! What a changefeed is told, and what it tells.

use crate::server_abilities::ServerError;
use mongodb::bson::Document;
use mongodb::options::FullDocumentType;

/// Which document an event of an update carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullDocument {
    /// None: only what the update changed.
    No,
    /// The document as it is when the change is read; it may have newer changes in it.
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

/// From where to where.
#[derive(Clone, Debug)]
pub struct ChangefeedOptions {
    /// What the feed is called where its place is kept. Feeds of one name are one feed: only one may run.
    pub name: String,
    /// The collection.
    pub collection: String,
    /// The topic.
    pub topic: String,
    /// Which document events of updates carry. Default: the newest.
    pub full_document: FullDocument,
    /// Stages of an aggregation that let changes through, e.g. `$match`. They must keep `_id`, `operationType`, `documentKey` and
    /// `clusterTime`.
    pub filter: Vec<Document>,
    /// Publishes all documents first, and then the changes since. Default: no.
    pub reseed: bool,
    /// Where places are kept. Default: the collection `prombus_changefeeds`.
    pub places: String,
}

impl ChangefeedOptions {
    /// The defaults. The feed is called `<collection>::<topic>`.
    pub fn new(collection: impl Into<String>, topic: impl Into<String>) -> Self {
        let (collection, topic) = (collection.into(), topic.into());
        Self {
            name: format!("{collection}::{topic}"),
            collection,
            topic,
            full_document: FullDocument::default(),
            filter: Vec::new(),
            reseed: false,
            places: "prombus_changefeeds".to_owned(),
        }
    }

    /// Publishes all documents first, and then the changes since.
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
    /// The server cannot do what is needed, or cannot be reached.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The collection is gone, so its stream has ended.
    #[error(
        "the collection {collection} was changed in a way that ends its change stream ({why}): if it is there again, start the feed with reseed"
    )]
    Invalidated {
        /// The collection.
        collection: String,
        /// What happened.
        why: String,
    },
    /// The feed was away for longer than the oplog reaches back.
    #[error(
        "the changes since {feed} was stopped are no longer in the oplog: start it with reseed, which publishes all documents and goes on from there (a larger oplog, or storage.oplogMinRetentionHours, lets it be away for longer)"
    )]
    HistoryLost {
        /// The feed.
        feed: String,
    },
    /// The bus refuses an event for good.
    #[error(
        "the change of document {key} cannot be published: {error}; map can make it smaller or leave it out"
    )]
    Refused {
        /// The document.
        key: String,
        /// Why.
        error: String,
    },
    /// The stream failed.
    #[error("the change stream failed: {0}")]
    Stream(String),
    /// The server is away. A feed that runs waits for it.
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

/// What a changefeed did so far, and how it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangefeedFigures {
    /// Events that were added.
    pub published: u64,
    /// Changes whose event was there already.
    pub duplicates: u64,
    /// Documents that were published by a reseed.
    pub seeded: u64,
    /// Times the server or the bus did not let it work.
    pub failures: u64,
    /// Why it cannot work at present.
    pub trouble: Option<String>,
}

impl ChangefeedFigures {
    /// The figures in the text format of Prometheus.
    pub fn to_prometheus(&self, feed: &str) -> String {
        crate::figures_text::prometheus(
            "prombus_mongo_changefeed",
            &[("feed", feed)],
            &[
                ("published_total", self.published),
                ("duplicates_total", self.duplicates),
                ("seeded_total", self.seeded),
                ("failures_total", self.failures),
                ("up", u64::from(self.trouble.is_none())),
            ],
        )
    }
}
