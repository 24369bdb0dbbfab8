//! The simulated network between an engine and its database: latency, lost requests and responses, outages.

use super::database::{Database, FenceState};
use super::faults::{Fault, NetworkOptions, Random};
use super::topic_events::TopicEvents;
use crate::clock::Clock;
use crate::engine::network::{
    CommitAnswer, CommitError, DeadEvents, FetchLimit, PendingCommit, Piece, ReadableSeqs, RemoteDatabase,
    RemoveError, Removed,
};
use crate::engine::{EventHead, EventId, TopicId, TopicUsage};
use crate::error::ReadError;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use tokio::sync::watch;

/// The connection of one engine to a [`Database`].
pub struct SimulatedLink {
    options: NetworkOptions,
    database: Database,
    /// The term in which the engine leads.
    term: u64,
    clock: Arc<dyn Clock>,
    /// Why the network is down; `None` while it works. While it is down, nothing reaches the database.
    outage: watch::Sender<Option<String>>,
    /// Held while a commit is applied, so that no outage begins meanwhile.
    arriving: Mutex<()>,
    random: Mutex<Random>,
}

impl SimulatedLink {
    pub(super) fn new(database: Database, term: u64, options: NetworkOptions, clock: Arc<dyn Clock>) -> Self {
        let random = Mutex::new(Random::new(options.seed));
        let (outage, arriving) = (watch::Sender::new(None), Mutex::new(()));
        Self { options, database, term, clock, outage, arriving, random }
    }

    #[cfg(test)]
    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    /// Begins an outage. Returns false if another one is already in progress.
    pub(super) fn suspend(&self, reason: &str) -> bool {
        let _arriving = self.arriving.lock();
        self.outage.send_if_modified(|outage| {
            let is_new = outage.is_none();
            outage.get_or_insert_with(|| reason.to_owned());
            is_new
        })
    }

    pub(super) fn resume(&self) {
        self.outage.send_replace(None);
    }

    async fn wait_for_network(&self) {
        // Waiting cannot fail, because the sender is owned by `self`.
        let _ = self.outage.subscribe().wait_for(Option::is_none).await;
    }

    async fn travel(&self, latency_us: &RangeInclusive<u64>) {
        let latency = self.random.lock().duration_us(latency_us);
        tokio::time::sleep(latency / 2).await;
    }

    /// Applies the commit at the database, unless the network is down.
    fn apply(&self, commit: &PendingCommit) -> Option<Arc<CommitAnswer>> {
        let _arriving = self.arriving.lock();
        let is_up = self.outage.borrow().is_none();
        is_up.then(|| self.database.commit_if(self.term, commit.number, &commit.changes)).flatten()
    }

    /// Queries the database about a topic, over the network.
    async fn ask<T>(&self, topic: TopicId, question: impl FnOnce(&TopicEvents) -> T) -> Result<T, ReadError> {
        self.travel(&self.options.read_latency_us).await;
        self.wait_for_network().await;
        let answer = self.database.with_topic(topic, question);
        self.travel(&self.options.read_latency_us).await;
        self.wait_for_network().await;
        Ok(answer)
    }
}

impl RemoteDatabase for SimulatedLink {
    fn availability(&self) -> watch::Receiver<Option<String>> {
        self.outage.subscribe()
    }

    /// Sends a commit. If no response arrives, it is unknown whether the commit was applied. This then asks the database
    /// for the commit's fence, the entry that every applied commit leaves.
    async fn commit(&self, commit: &PendingCommit) -> Result<CommitAnswer, CommitError> {
        let outage = self.random.lock().outage(&self.options);
        if let Some(outage) = outage
            && self.suspend("simulated outage")
        {
            tokio::time::sleep(outage).await;
            self.resume();
        }
        let fault = self.options.fault(&mut self.random.lock());
        self.travel(&self.options.commit_latency_us).await;
        let mut answer = None;
        if matches!(fault, Fault::None | Fault::AnswerLost) {
            answer = self.apply(commit);
        }
        self.travel(&self.options.commit_latency_us).await;
        self.wait_for_network().await;
        if let (Some(answer), Fault::None) = (answer, fault) {
            return Ok(CommitAnswer::clone(&answer));
        }
        if fault != Fault::None {
            tokio::time::sleep(self.options.answer_timeout()).await;
        }
        self.wait_for_network().await;
        let state = self.database.fence(self.term, commit.number);
        if fault == Fault::RequestLate {
            self.apply(commit);
        }
        match state {
            FenceState::Applied(answer) => Ok(CommitAnswer::clone(&answer)),
            FenceState::Deposed { leader } => Err(CommitError::Deposed(leader)),
            FenceState::Missing => Err(CommitError::Unreachable("the request was lost".to_owned())),
        }
    }

    async fn fetch(&self, topic: TopicId, first_seq: u64, limit: FetchLimit) -> Result<Piece, ReadError> {
        self.ask(topic, |events| events.fetch(first_seq, limit)).await
    }

    async fn head_in(&self, topic: TopicId, seqs: ReadableSeqs) -> Result<Option<EventHead>, ReadError> {
        self.ask(topic, |events| events.head_in(seqs.first_seq, seqs.last_seq)).await
    }

    async fn find(&self, topic: TopicId, id: EventId, seqs: ReadableSeqs) -> Result<Option<u64>, ReadError> {
        self.ask(topic, |events| events.find(id).filter(|&seq| seq <= seqs.last_seq)).await
    }

    async fn first_at_or_after(
        &self,
        topic: TopicId,
        ts: i64,
        seqs: ReadableSeqs,
    ) -> Result<Option<u64>, ReadError> {
        self.ask(topic, |events| events.first_at_or_after(ts, seqs.first_seq, seqs.last_seq)).await
    }

    async fn have_keys_before(
        &self,
        topic: TopicId,
        keys: Vec<(u64, Vec<u8>)>,
        _seqs: ReadableSeqs,
    ) -> Result<Vec<Result<bool, ReadError>>, ReadError> {
        self.ask(topic, |events| events.have_keys_before(&keys).into_iter().map(Ok).collect()).await
    }

    async fn first_within_bytes(
        &self,
        topic: TopicId,
        bytes: u64,
        _seqs: ReadableSeqs,
    ) -> Result<u64, ReadError> {
        self.ask(topic, |events| events.first_within_bytes(bytes)).await
    }

    async fn usage(&self, topic: TopicId, seqs: ReadableSeqs) -> Result<Option<TopicUsage>, ReadError> {
        let usage = self.ask(topic, |events| events.usage(seqs.first_seq)).await?;
        Ok(self.database.has_topic(topic).then_some(usage))
    }

    async fn seqs(&self, topic: TopicId, seqs: ReadableSeqs, limit: usize) -> Result<Vec<u64>, ReadError> {
        let ReadableSeqs { first_seq, last_seq } = seqs;
        self.ask(topic, |events| {
            let kept = events.seqs().into_iter();
            kept.filter(|seq| (first_seq..=last_seq).contains(seq)).take(limit).collect()
        })
        .await
    }

    async fn remove(&self, dead: DeadEvents) -> Result<Removed, RemoveError> {
        let (topic, dead) = match dead {
            // There is nothing to remove: the simulated database removes the events of a topic when the topic is deleted.
            DeadEvents::DeletedTopics => return Ok(Removed::default()),
            DeadEvents::Seqs(topic, seqs) => (topic, seqs),
            DeadEvents::Below(topic, first) => {
                let mut seqs = self.database.with_topic(topic, TopicEvents::seqs);
                seqs.retain(|&seq| seq < first);
                (topic, seqs)
            }
        };
        if self.outage.borrow().is_some() {
            return Err(RemoveError::Later("simulated outage".to_owned()));
        }
        let bytes = self.database.remove(self.term, topic, &dead, self.clock.wall_ms());
        let bytes = bytes.map_err(RemoveError::Deposed)?;
        Ok(Removed { events: dead.len() as u64, bytes })
    }

    fn bytes(&self) -> u64 {
        self.database.bytes()
    }
}
