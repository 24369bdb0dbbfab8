//! Buffers of large batches and reads, used again when their last holder drops them.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Buffers of large batches and reads, reused when the last holder drops them. Allocating new ones would cost a page fault
/// for every 4 KiB on the hot path.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Mutex<FreeBuffers>,
    /// No more than this is kept.
    limit_bytes: usize,
}

#[derive(Debug, Default)]
struct FreeBuffers {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    pub(crate) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::default(), limit_bytes })
    }

    /// An empty buffer, with or without capacity.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut free = self.free.lock();
        let buffer = free.buffers.pop().unwrap_or_default();
        free.bytes -= buffer.capacity();
        buffer
    }

    /// Shares a filled buffer; it comes back here when the last share is dropped.
    pub(crate) fn share(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Pooled { buffer, pool: Arc::downgrade(self) })
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        let mut free = self.free.lock();
        if free.bytes + buffer.capacity() <= self.limit_bytes {
            buffer.clear();
            free.bytes += buffer.capacity();
            free.buffers.push(buffer);
        }
    }
}

struct Pooled {
    buffer: Vec<u8>,
    pool: Weak<BufferPool>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.give_back(std::mem::take(&mut self.buffer));
        }
    }
}
