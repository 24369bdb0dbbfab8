//! The outcomes of published events. They are known at the append or, if the engine assigns seqs later, with the commit.

use crate::error::StoreError;
use parking_lot::Mutex;
use prombus_protocol::Uuid;
use serde::Serialize;
use std::sync::Arc;

/// The outcome of publishing an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    /// The id of the event.
    pub id: Uuid,
    /// The position of the event in its topic. For a duplicate: that of the existing event.
    pub seq: u64,
    /// Whether the topic already had an event with this id; then no event was added.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// A batch that was appended.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The commit that makes the batch durable.
    pub commit: u64,
    /// Will contain the outcomes of the events, if they are not known yet; `None` if they are known.
    pub late: Option<LateOutcomes>,
}

impl From<u64> for Appended {
    fn from(commit: u64) -> Self {
        Self { commit, late: None }
    }
}

/// Outcomes that become known only with the commit: an engine on a network learns seqs and duplicates from the database's
/// response. The engine sets them before it reports the commit. If they are an error, the commit is never reported, because then
/// the records of the batch would count as durable.
#[derive(Clone, Debug, Default)]
pub struct LateOutcomes(Arc<Mutex<Option<Outcomes>>>);

/// One outcome per event, or the reason why nothing was stored.
type Outcomes = Result<Vec<Published>, StoreError>;

impl LateOutcomes {
    /// Sets the outcomes, one per event. An error says why nothing of the batch was stored; its commit is then never reported.
    pub fn fill(&self, outcomes: Result<Vec<Published>, StoreError>) {
        *self.0.lock() = Some(outcomes);
    }

    /// Removes and returns the outcomes.
    ///
    /// # Errors
    /// The reason why nothing of the batch was stored.
    pub fn take(&self) -> Result<Vec<Published>, StoreError> {
        let lost = || Err(StoreError::Other("the engine reported a commit without its outcomes".to_owned()));
        self.0.lock().take().unwrap_or_else(lost)
    }
}
