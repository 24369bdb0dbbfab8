//! Small values that are kept with the events and outlive the process with them, such as a key to sign with. There is one per
//! name and it never changes.

use super::Local;
use super::groups::{Tried, with_room};
use super::quiet::Quiet;
use crate::error::StoreError;
use crate::store::{AppendBatch, StateRecord};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;

/// The values, by name.
pub(super) struct KeptValues(Mutex<BTreeMap<String, Kept>>);

#[derive(Clone)]
struct Kept {
    value: Vec<u8>,
    /// The value is durable when this batch is.
    batch: u64,
}

impl KeptValues {
    /// Those that the store had when it was opened.
    pub(super) fn new(stored: Vec<(String, Vec<u8>)>) -> Self {
        let values = stored.into_iter().map(|(name, value)| (name, Kept { value, batch: 0 }));
        Self(Mutex::new(values.collect()))
    }

    pub(super) fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().get(name).map(|kept| kept.value.clone())
    }
}

impl Local {
    /// Keeps a value unless there is one under this name; resolves with the one that is kept, when it is durable.
    pub(super) async fn keep_first(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        self.check_open()?;
        let kept = with_room(self, || {
            let _quiet = Quiet::enter();
            // Held while it is appended: two that come at once get the same value.
            let mut values = self.kept.0.lock();
            if let Some(kept) = values.get(name) {
                return Ok(Tried::Done(kept.clone()));
            }
            let records = [StateRecord::Kept { name: name.to_owned(), value: value.clone() }];
            let batch = AppendBatch { records: &records, use_reserve: true, events: &[] };
            match self.store.append(&batch, &mut Vec::new()) {
                Ok(batch) => {
                    let kept = Kept { value: value.clone(), batch };
                    values.insert(name.to_owned(), kept.clone());
                    Ok(Tried::Done(kept))
                }
                Err(StoreError::Busy) => Ok(Tried::Busy),
                Err(error) => Err(error),
            }
        });
        let kept = kept.await?;
        self.flusher.appended(kept.batch);
        poll_fn(|context| self.watch.poll_durable(kept.batch, context)).await?;
        Ok(kept.value)
    }
}
