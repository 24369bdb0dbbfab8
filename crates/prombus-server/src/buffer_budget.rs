//! How many bytes the buffers of all connections may take together. Each connection may always have a little; what it wants
//! beyond that it asks for, and while there is none it neither reads nor pulls.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes in buffers.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

/// What one connection has of it.
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

    /// Says what a connection's buffers take now.
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
