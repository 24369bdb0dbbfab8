//! Reads events of one topic from a seq on, without a group.

use super::groups::start_position::ResolvedStart;
use super::registry::Registry;
use super::run_reads::run_reads;
use super::waiting_readers::WaitingReaders;
use crate::backend::{EventChunk, PullLimit};
use crate::clock::Clock;
use crate::commit_watch::CommitWatch;
use crate::engine::{Engine, EventScanner, TopicId, Visit};
use crate::error::ReadError;
use prombus_protocol::{Start, Topic};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// If a read is limited to at most this many bytes, and the events are in memory, they are copied on the calling
/// thread.
const QUICK_BYTES_MAX: usize = 1 << 20;

/// The parts that readers without a group use.
pub(super) struct Reading {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) registry: Arc<Registry>,
    pub(super) commits: Arc<CommitWatch>,
    pub(super) waiting_readers: Arc<WaitingReaders>,
}

impl Reading {
    pub(super) fn topic_id(&self, topic: &Topic) -> Result<TopicId, ReadError> {
        self.commits.check_open()?;
        self.registry.topic_id(topic).ok_or_else(|| ReadError::UnknownTopic(topic.to_string()))
    }

    /// The seq of the first event that a group with this start position would receive.
    pub(super) async fn locate(&self, topic: &Topic, start: Start) -> Result<u64, ReadError> {
        let id = self.topic_id(topic)?;
        let engine = Arc::clone(&self.engine);
        let locating = async move {
            let start = ResolvedStart::resolve(&*engine, &[id], start).await?;
            let floors = start.floors(&*engine, &[id]).unwrap_or_else(|| vec![0]);
            Ok(floors[0] + 1)
        };
        match start {
            Start::Earliest | Start::Latest => locating.await,
            Start::Ts(_) | Start::AfterId(_) => run_reads(&*self.engine, locating).await,
        }
    }

    /// Reads durable events of a topic. Files are read on threads that may be blocked; events in memory are copied on
    /// the calling thread.
    pub(super) async fn read(
        &self,
        topic: &Topic,
        from: u64,
        limit: PullLimit,
    ) -> Result<EventChunk, ReadError> {
        let id = self.topic_id(topic)?;
        let first_seq = from.max(1);
        let read = TopicRead {
            topic: topic.clone(),
            id,
            limit: PullLimit { events: limit.events.max(1), ..limit },
            first_seq,
            last_seq: self.engine.last_seq(id),
            chunk: EventChunk { next_seq: first_seq, topic_number: id.number(), ..EventChunk::default() },
            is_full: false,
            scanner: self.engine.scanner(),
        };
        if read.is_quick() {
            return read.run().await;
        }
        run_reads(&*self.engine, read.run()).await
    }
}

/// A read of a topic.
struct TopicRead {
    topic: Topic,
    id: TopicId,
    limit: PullLimit,
    /// The first seq to read.
    first_seq: u64,
    /// The last seq to read.
    last_seq: u64,
    chunk: EventChunk,
    /// The limit is reached.
    is_full: bool,
    scanner: Box<dyn EventScanner>,
}

impl TopicRead {
    /// Whether [`run`](Self::run) may run on any thread: there is nothing to read, or only a limited amount that is in
    /// memory.
    fn is_quick(&self) -> bool {
        self.first_seq > self.last_seq
            || (self.limit.bytes <= QUICK_BYTES_MAX && self.scanner.is_in_memory(self.id, self.first_seq))
    }

    async fn run(mut self) -> Result<EventChunk, ReadError> {
        poll_fn(|context| self.poll(context)).await?;
        Ok(self.chunk)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        while !self.is_full && self.chunk.next_seq <= self.last_seq {
            let before = self.chunk.next_seq;
            match ready!(self.poll_more(context)) {
                // Returns the events before the unreadable one; the next read returns the error.
                Err(error) if error.is_unreadable() && before > self.first_seq => break,
                more => more?,
            }
            if self.chunk.next_seq <= before {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        let Self { topic, limit, is_full, chunk: EventChunk { events, next_seq, .. }, scanner, .. } = self;
        let events_left = (limit.events as usize).saturating_sub(events.items().len());
        scanner.expect(events_left, limit.bytes.saturating_sub(events.byte_count()));
        let scanned = scanner.poll_scan(self.id, *next_seq, self.last_seq, context, &mut |event| {
            let is_over = events.byte_count() + event.body.len() > limit.bytes;
            *is_full = events.items().len() >= limit.events as usize || (!events.is_empty() && is_over);
            if *is_full {
                return Visit::Stop;
            }
            events.push(topic, event);
            Visit::Next
        });
        *is_full |= events.items().len() >= limit.events as usize;
        scanned.map_ok(|scanned| *next_seq = scanned.next_seq.max(*next_seq))
    }
}
