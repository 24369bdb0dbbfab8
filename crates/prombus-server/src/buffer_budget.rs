//! The budget for the buffers of all connections together. Every connection has a small minimum for free. Memory beyond that
//! counts against the budget; while the budget is used up, a connection neither reads nor pulls events.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes in buffers, and their limit.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

/// The share of one connection.
#[derive(Debug, Default)]
pub(crate) struct Share {
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, used_bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Updates the share of a connection to the current size of its buffers.
    pub(crate) fn set(&self, share: &mut Share, bytes: usize) {
        if bytes > share.bytes {
            self.used_bytes.fetch_add(bytes - share.bytes, Ordering::Relaxed);
        } else {
            self.used_bytes.fetch_sub(share.bytes - bytes, Ordering::Relaxed);
        }
        share.bytes = bytes;
    }

    /// Whether buffers may grow.
    pub(crate) fn has_room(&self) -> bool {
        self.used_bytes() < self.limit_bytes
    }
}
