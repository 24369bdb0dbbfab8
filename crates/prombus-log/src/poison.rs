//! Once a write or an fdatasync failed, nobody knows what is on disk: writing stops for good, and reading goes on.
//!
//! An fsync is never retried: the kernel may have dropped the dirty pages, and the next fsync would call that good.

use crate::error::Unavailable;
use std::sync::OnceLock;

/// The first failure, kept for everyone who asks.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    reason: OnceLock<String>,
}

impl Poison {
    /// Remembers the first reason; answers whether this was it.
    pub(crate) fn set(&self, reason: String) -> bool {
        self.reason.set(reason).is_ok()
    }

    pub(crate) fn get(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    pub(crate) fn check(&self) -> Result<(), Unavailable> {
        match self.get() {
            None => Ok(()),
            Some(reason) => Err(Unavailable::Poisoned(reason.to_owned())),
        }
    }
}
