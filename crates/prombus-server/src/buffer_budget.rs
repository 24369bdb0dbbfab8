//! The budget for the buffers of all connections together. While it is used up, each connection may still buffer a small amount
//! (4 to 64 KiB, depending on the buffer), so that it makes progress: WebSockets read and pull little at a time, responses are
//! sent in small pieces, and large request bodies wait.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes in buffers, and their limit.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
}

/// The bytes of the budget that one connection, request or response uses.
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

    /// Sets the size of a share, and adds the difference to the used bytes.
    pub(crate) fn set(&self, share: &mut Share, bytes: usize) {
        if bytes > share.bytes {
            self.used_bytes.fetch_add(bytes - share.bytes, Ordering::Relaxed);
        } else {
            self.used_bytes.fetch_sub(share.bytes - bytes, Ordering::Relaxed);
        }
        share.bytes = bytes;
    }

    /// How many bytes are left. Shares that grow at the same time, in other threads, may each use them, and then exceed the limit.
    pub(crate) fn room_bytes(&self) -> usize {
        self.limit_bytes.saturating_sub(self.used_bytes())
    }

    /// Whether the budget is not used up.
    pub(crate) fn has_room(&self) -> bool {
        self.room_bytes() > 0
    }
}
