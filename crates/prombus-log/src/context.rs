//! The state that all parts of an open log share: its storage, its options, its hash seed, and whether writing has
//! failed.

use crate::error::Unavailable;
use crate::failed_fsync::WriteFailure;
use crate::keyed_hash::KeyedHash;
use crate::observer::{Notice, Observer};
use crate::options::Options;
use crate::storage::Storage;
use std::sync::Arc;

/// Shared by all parts of an open log. Only `failure` changes after the open.
pub(crate) struct Context {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) options: Options,
    pub(crate) hash: KeyedHash,
    pub(crate) log_id: u64,
    pub(crate) failure: WriteFailure,
}

impl Context {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        options: Options,
        hash: KeyedHash,
        log_id: u64,
    ) -> Arc<Self> {
        Arc::new(Self { storage, options, hash, log_id, failure: WriteFailure::default() })
    }

    #[inline]
    pub(crate) fn observer(&self) -> &dyn Observer {
        &*self.options.observer
    }

    #[inline]
    pub(crate) fn now_ms(&self) -> i64 {
        self.options.clock.now_ms()
    }

    /// Stops writing and notifies the observer. The caller must then wake all waiting threads (`Parts::announcing`).
    pub(crate) fn fail(&self, reason: String) {
        if self.failure.set(reason.clone()) {
            self.observer().notice(&Notice::Poisoned { reason });
        }
    }

    /// The error for a job that was told to stop.
    pub(crate) fn why_stopped(&self) -> Unavailable {
        self.failure.check().err().unwrap_or(Unavailable::Closed)
    }
}
