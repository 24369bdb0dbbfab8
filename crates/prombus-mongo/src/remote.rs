//! The store as the network engine sees it. Reads are repeated until they succeed.

use crate::database::MongoDatabase;
use crate::document::prepared_fields;
use crate::keys::kept_in;
use prombus::ReadError;
use prombus::engine::network::{
    CommitAnswer, CommitError, DeadEvents, FetchLimit, PendingCommit, Piece, ReadableSeqs, RemoteDatabase,
    RemoveError, Removed,
};
use prombus::engine::{EventHead, EventId, NewEvent, TopicId, TopicUsage};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::watch;

impl RemoteDatabase for MongoDatabase {
    fn availability(&self) -> watch::Receiver<Option<String>> {
        self.availability.subscribe()
    }

    fn prepare(&self, event: &NewEvent<'_>) -> Box<[u8]> {
        prepared_fields(event.ts, event.body, self.options.readable)
    }

    async fn commit(&self, commit: &PendingCommit) -> Result<CommitAnswer, CommitError> {
        let mut writer = self.writer.lock().await;
        self.commit_bulk(&mut writer, commit).await
    }

    async fn fetch(&self, topic: TopicId, first_seq: u64, limit: FetchLimit) -> Result<Piece, ReadError> {
        Ok(self.reading(|| self.fetch_piece(topic, first_seq, limit)).await)
    }

    async fn head_in(&self, topic: TopicId, seqs: ReadableSeqs) -> Result<Option<EventHead>, ReadError> {
        Ok(self.reading(|| self.find_head(topic, seqs)).await)
    }

    async fn find(&self, topic: TopicId, id: EventId, seqs: ReadableSeqs) -> Result<Option<u64>, ReadError> {
        Ok(self.reading(|| self.find_id(topic, id, seqs)).await)
    }

    async fn first_at_or_after(
        &self,
        topic: TopicId,
        ts: i64,
        seqs: ReadableSeqs,
    ) -> Result<Option<u64>, ReadError> {
        Ok(self.reading(|| self.find_time(topic, ts, seqs)).await)
    }

    async fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
        seqs: ReadableSeqs,
    ) -> Result<Vec<Result<bool, ReadError>>, ReadError> {
        let found = self.reading(|| self.find_keys_before(topic, &keys, seqs)).await;
        Ok(found.into_iter().map(Ok).collect())
    }

    async fn first_within_bytes(
        &self,
        topic: TopicId,
        bytes: u64,
        seqs: ReadableSeqs,
    ) -> Result<u64, ReadError> {
        Ok(self.reading(|| self.find_within_bytes(topic, bytes, seqs)).await)
    }

    async fn usage(&self, topic: TopicId, _seqs: ReadableSeqs) -> Result<Option<TopicUsage>, ReadError> {
        let upto = match self.usage.get(topic) {
            Ok(usage) => return Ok(Some(usage)),
            Err(upto) => upto,
        };
        let all = ReadableSeqs { first_seq: 0, last_seq: upto.last_seq };
        let counted = self.reading(|| self.count_usage(kept_in(topic, all))).await;
        Ok(Some(self.usage.counted(topic, upto, counted)))
    }

    async fn seqs(&self, topic: TopicId, seqs: ReadableSeqs, limit: usize) -> Result<Vec<u64>, ReadError> {
        Ok(self.reading(|| self.find_seqs(topic, seqs, limit)).await)
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
            "back the database up with MongoDB's own tool: mongodump --uri=\"<connection string>\" --db={database}"
        ))
    }

    async fn closed(&self) {
        // People see the last cursors at once.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.derived.write(&self.collections)).await;
    }
}
