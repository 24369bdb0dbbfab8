//! A pool of buffers for large batches and reads.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Buffers for large batches and reads. A buffer returns to the pool when its last holder drops it. Allocating a new one
/// would cost a page fault for every 4 KiB on the hot path.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Mutex<FreeBuffers>,
    /// The maximum size of the free buffers. A buffer that would exceed it is freed.
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

    /// Returns an empty buffer, with or without capacity.
    pub(crate) fn take(&self) -> Vec<u8> {
        let mut free = self.free.lock();
        let buffer = free.buffers.pop().unwrap_or_default();
        free.bytes -= buffer.capacity();
        buffer
    }

    /// Shares a filled buffer. It returns to the pool when the last share is dropped.
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
