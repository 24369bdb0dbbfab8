//! Small named values that are stored in the engine and outlive the process, such as a signing key. The value of a name never
//! changes.

use super::groups::act::GroupRuntime;
use super::groups::{Tried, with_room};
use crate::commit_watch::CommitWatch;
use crate::deferred_wakes::DeferredWakes;
use crate::engine::{AppendBatch, Engine, StateRecord};
use crate::error::StoreError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;

/// The values, by name.
pub(super) struct KeptValues(Mutex<BTreeMap<String, KeptValue>>);

#[derive(Clone)]
struct KeptValue {
    value: Vec<u8>,
    /// The commit with which the value is durable; zero if the value was stored before the engine was opened.
    commit: u64,
}

impl KeptValues {
    /// The values that the engine had when it was opened.
    pub(super) fn new(stored: Vec<(String, Vec<u8>)>) -> Self {
        let values = stored.into_iter().map(|(name, value)| (name, KeptValue { value, commit: 0 }));
        Self(Mutex::new(values.collect()))
    }

    pub(super) fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().get(name).map(|kept| kept.value.clone())
    }

    /// Stores a value, unless the name already has one. Resolves when the value of the name is durable, and returns that value.
    pub(super) async fn keep_first(
        &self,
        name: &str,
        value: Vec<u8>,
        engine: &dyn Engine,
        runtime: &GroupRuntime,
        commits: &CommitWatch,
    ) -> Result<Vec<u8>, StoreError> {
        commits.check_open()?;
        let kept = with_room(commits, || {
            let _deferred = DeferredWakes::enter();
            // Held during the append, so that two concurrent callers get the same value.
            let mut values = self.0.lock();
            if let Some(kept) = values.get(name) {
                return Ok(Tried::Done(kept.clone()));
            }
            let records = [StateRecord::Kept { name: name.to_owned(), value: value.clone() }];
            match engine.append(&AppendBatch::of_records(&records), &mut Vec::new()) {
                Ok(appended) => {
                    let kept = KeptValue { value: value.clone(), commit: appended.commit };
                    values.insert(name.to_owned(), kept.clone());
                    Ok(Tried::Done(kept))
                }
                Err(StoreError::Busy) => Ok(Tried::Busy),
                Err(error) => Err(error),
            }
        });
        let kept = kept.await?;
        runtime.records.appended(kept.commit);
        poll_fn(|context| commits.poll_durable(kept.commit, context)).await?;
        Ok(kept.value)
    }
}
