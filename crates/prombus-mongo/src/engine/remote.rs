//! Implements [`RemoteDatabase`], the interface through which the network engine uses a database. Reads are repeated while the server is
//! unreachable.

use crate::engine::database::MongoDatabase;
use crate::engine::document::prepared_fields;
use crate::engine::keys::kept_in;
use prombus::ReadError;
use prombus::engine::network::{
    CommitAnswer, CommitError, DeadEvents, FetchLimit, PendingCommit, Piece, ReadableSeqs, RemoteDatabase,
    RemoveError, Removed,
};
use prombus::engine::{EventHead, EventId, NewEvent, TopicId, TopicUsage};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

/// The maximum number of seqs whose events are counted in one query.
const USAGE_SEQS: usize = 200_000;

impl RemoteDatabase for MongoDatabase {
    fn availability(&self) -> watch::Receiver<Option<String>> {
        self.availability.subscribe()
    }

    fn prepare(&self, event: &NewEvent<'_>) -> Box<[u8]> {
        prepared_fields(event.ts, event.body, self.options.readable)
    }

    async fn commit(&self, commit: &PendingCommit) -> Result<CommitAnswer, CommitError> {
        let mut writer = self.writer.lock().await;
        let committed = self.commit_bulk(&mut writer, commit).await;
        if let Err(CommitError::Deposed(_) | CommitError::Stopped(_)) = &committed {
            self.end_background().await;
        }
        committed
    }

    async fn fetch(&self, topic: TopicId, first_seq: u64, limit: FetchLimit) -> Result<Piece, ReadError> {
        self.reading(|| self.fetch_piece(topic, first_seq, limit)).await
    }

    async fn head_in(&self, topic: TopicId, seqs: ReadableSeqs) -> Result<Option<EventHead>, ReadError> {
        self.reading(|| self.find_head(topic, seqs)).await
    }

    async fn find(&self, topic: TopicId, id: EventId, seqs: ReadableSeqs) -> Result<Option<u64>, ReadError> {
        self.reading(|| self.find_id(topic, id, seqs)).await
    }

    async fn first_at_or_after(
        &self,
        topic: TopicId,
        ts: i64,
        seqs: ReadableSeqs,
    ) -> Result<Option<u64>, ReadError> {
        self.reading(|| self.find_time(topic, ts, seqs)).await
    }

    async fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
        seqs: ReadableSeqs,
    ) -> Result<Vec<Result<bool, ReadError>>, ReadError> {
        let found = self.reading(|| self.find_keys_before(topic, &keys, seqs)).await?;
        Ok(found.into_iter().map(Ok).collect())
    }

    async fn first_within_bytes(
        &self,
        topic: TopicId,
        bytes: u64,
        seqs: ReadableSeqs,
    ) -> Result<u64, ReadError> {
        self.reading(|| self.find_within_bytes(topic, bytes, seqs)).await
    }

    async fn usage(&self, topic: TopicId, _seqs: ReadableSeqs) -> Result<Option<TopicUsage>, ReadError> {
        let upto = match self.usage.get(topic) {
            Ok(usage) => return Ok(Some(usage)),
            Err(upto) => upto,
        };
        let mut counted = TopicUsage::default();
        for first_seq in (0..=upto.last_seq).step_by(USAGE_SEQS) {
            let seqs =
                ReadableSeqs { first_seq, last_seq: upto.last_seq.min(first_seq + USAGE_SEQS as u64 - 1) };
            let part = self.reading(|| self.count_usage(kept_in(topic, seqs))).await?;
            counted.events += part.events;
            counted.bytes += part.bytes;
        }
        Ok(Some(self.usage.counted(topic, upto, counted)))
    }

    async fn seqs(&self, topic: TopicId, seqs: ReadableSeqs, limit: usize) -> Result<Vec<u64>, ReadError> {
        self.reading(|| self.find_seqs(topic, seqs, limit)).await
    }

    async fn remove(&self, dead: DeadEvents) -> Result<Removed, RemoveError> {
        self.remove_dead(dead).await
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn backup_hint(&self) -> Option<String> {
        let database = self.collections.database.name();
        Some(format!(
            "use MongoDB's own tools to back up the database. While no gateway runs: mongodump --uri=\"<connection string>\" --db={database}; on a replica set, also while gateways run: mongodump --uri=\"<connection string>\" --oplog"
        ))
    }

    async fn closed(&self) {
        self.end_background().await;
        // Writes the last cursors, so that people and tools see them without waiting for the next leader.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.derived.write(&self.collections)).await;
    }
}
