//! What became of published events, known at the append or with the commit.

use crate::error::StoreError;
use parking_lot::Mutex;
use prombus_protocol::Uuid;
use serde::Serialize;
use std::sync::Arc;

/// What became of a published event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    /// Its id.
    pub id: Uuid,
    /// Its position in its topic.
    pub seq: u64,
    /// The topic had this id already; nothing was added.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// A batch that was appended.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The commit that makes it durable.
    pub commit: u64,
    /// Where the outcomes of its events will be, if they are not known yet.
    pub late: Option<LateOutcomes>,
}

impl From<u64> for Appended {
    fn from(commit: u64) -> Self {
        Self { commit, late: None }
    }
}

/// Outcomes that come with the commit: an engine behind a network learns ids, seqs and duplicates from the answer. The engine
/// fills them before it reports the commit. Filled with an error, they say that the commit will never be reported: group records
/// that are in the batch count as durable when the commit is reported, whatever became of the events.
#[derive(Clone, Debug, Default)]
pub struct LateOutcomes(Arc<Mutex<Option<Outcomes>>>);

/// One outcome per event, or why nothing was stored.
type Outcomes = Result<Vec<Published>, StoreError>;

impl LateOutcomes {
    /// Sets the outcomes, one per event, or why nothing of the batch was stored and its commit is never reported.
    pub fn fill(&self, outcomes: Result<Vec<Published>, StoreError>) {
        *self.0.lock() = Some(outcomes);
    }

    /// Takes the outcomes out.
    ///
    /// # Errors
    /// Why nothing of the batch was stored.
    pub fn take(&self) -> Result<Vec<Published>, StoreError> {
        let lost = || Err(StoreError::Other("the engine reported a commit without its outcomes".to_owned()));
        self.0.lock().take().unwrap_or_else(lost)
    }
}
