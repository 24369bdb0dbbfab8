//! Sends commits to the database, one at a time, and reports their outcomes. Only this task calls the observer.

use super::change::CommitAnswer;
use super::connection::Connection;
use super::database::{CommitError, RemoteDatabase};
use super::pending_commit::PendingCommit;
use crate::engine::EngineObserver;
use crate::error::{StoreError, Unavailable};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The wait before a commit is retried, if the database does not report an outage. During an outage the committer waits for its
/// end.
const RETRY: Duration = Duration::from_millis(2);

pub(super) struct Committer<D: RemoteDatabase> {
    connection: Arc<Connection<D>>,
    /// Why the database cannot be used; `None` while it can.
    outage: watch::Receiver<Option<String>>,
}

/// Why the committer ended before it had sent all commits.
enum Ended {
    /// The engine was closed during an outage.
    Closed,
    /// See [`CommitError::Deposed`].
    Deposed(String),
    /// See [`CommitError::Stopped`].
    Stopped(Unavailable),
}

impl Ended {
    fn reason(&self) -> Unavailable {
        match self {
            Self::Closed => Unavailable::Closed,
            Self::Deposed(leader) => Unavailable::Deposed(leader.clone()),
            Self::Stopped(reason) => reason.clone(),
        }
    }
}

impl<D: RemoteDatabase> Committer<D> {
    pub(super) fn new(connection: Arc<Connection<D>>) -> Self {
        Self { outage: connection.database.availability(), connection }
    }

    pub(super) async fn run(mut self) {
        while let Some(commit) = self.next_commit().await {
            self.report_availability();
            let start = Instant::now();
            match self.send(&commit).await {
                Ok(answer) => {
                    self.connection.figures.observe(start.elapsed(), commit.event_count());
                    self.report(&commit, &answer);
                }
                Err(ended) => {
                    self.refuse(&commit, &ended);
                    self.stop(ended);
                }
            }
        }
        self.connection.database.closed().await;
        self.connection.leader.lock().availability.is_ended = true;
        self.connection.ended.notify_all();
    }

    /// Waits for the next commit to send. Returns `None` when the engine has ended.
    async fn next_commit(&mut self) -> Option<PendingCommit> {
        loop {
            let is_available = self.report_availability();
            {
                let mut leader = self.connection.leader.lock();
                let it = &leader.availability;
                if it.stopped.is_some() || (it.is_closing && leader.is_idle()) {
                    return None;
                }
                if is_available && let Some(commit) = leader.take_commit() {
                    return Some(commit);
                }
            }
            if !is_available && self.is_closing() {
                self.stop(Ended::Closed);
                return None;
            }
            self.wait_for_change().await;
        }
    }

    /// Waits until something may have changed: an append, the start or the end of an outage, or the closing of the engine.
    async fn wait_for_change(&mut self) {
        tokio::select! {
            () = self.connection.changed.notified() => {}
            // The channel cannot be closed: the sender lives as long as the database.
            _ = self.outage.changed() => {}
        }
    }

    fn is_closing(&self) -> bool {
        self.connection.leader.lock().availability.is_closing
    }

    /// Sends a commit, repeatedly if necessary, until it is known to be applied.
    async fn send(&mut self, commit: &PendingCommit) -> Result<CommitAnswer, Ended> {
        let connection = Arc::clone(&self.connection);
        loop {
            let mut sending = pin!(connection.database.commit(commit));
            let sent = loop {
                tokio::select! {
                    sent = &mut sending => break sent,
                    () = self.wait_for_change() => {
                        if !self.report_availability() && self.is_closing() {
                            return Err(Ended::Closed);
                        }
                    }
                }
            };
            match sent {
                Ok(answer) => return Ok(answer),
                Err(CommitError::Deposed(leader)) => return Err(Ended::Deposed(leader)),
                Err(CommitError::Stopped(reason)) => return Err(Ended::Stopped(reason)),
                Err(CommitError::Unreachable(reason)) => self.wait_for_database(&reason).await?,
            }
        }
    }

    async fn wait_for_database(&mut self, reason: &str) -> Result<(), Ended> {
        tracing::debug!("retrying a commit: {reason}");
        if self.report_availability() {
            tokio::time::sleep(RETRY).await;
        }
        while !self.report_availability() {
            if self.is_closing() {
                return Err(Ended::Closed);
            }
            self.wait_for_change().await;
        }
        Ok(())
    }

    /// Reports to the observer a suspension, a resumption or room in the queue, if it has not been told of them yet. Returns
    /// whether the database is available.
    fn report_availability(&mut self) -> bool {
        let Some(observer) = self.connection.observer.get().cloned() else { return true };
        loop {
            let suspended = self.outage.borrow_and_update().clone();
            let mut leader = self.connection.leader.lock();
            let has_room = leader.has_room();
            let it = &mut leader.availability;
            it.is_suspended = suspended.is_some();
            match suspended {
                Some(reason) if !it.is_suspension_reported => {
                    it.is_suspension_reported = true;
                    drop(leader);
                    observer.suspended(reason);
                }
                Some(_) => return false,
                None if it.is_suspension_reported => {
                    // `room` always follows `resumed`.
                    it.must_report_room = true;
                    drop(leader);
                    observer.resumed();
                    self.connection.leader.lock().availability.is_suspension_reported = false;
                }
                None if it.must_report_room && has_room => {
                    it.must_report_room = false;
                    drop(leader);
                    self.connection.room.notify_all();
                    observer.room();
                }
                None => return true,
            }
        }
    }

    fn report(&self, commit: &PendingCommit, answer: &CommitAnswer) {
        let connection = &self.connection;
        let mut leader = connection.leader.lock();
        leader.applied(commit, answer);
        let seqs = leader.resolved_seqs(commit.number);
        drop(leader);
        seqs.into_iter().for_each(|(waiter, seq)| waiter.answer(Ok(seq)));
        commit.fill(|at| Ok(answer.outcomes.get(at).cloned().unwrap_or_default()));
        self.notify(|observer| {
            let mut newest = answer.newest.iter().map(|(&topic, &seq)| (topic, seq));
            observer.committed(commit.number, &mut newest);
        });
        connection.leader.lock().reported(commit);
    }

    fn notify(&self, notify: impl FnOnce(&dyn EngineObserver)) {
        if let Some(observer) = self.connection.observer.get() {
            notify(&**observer);
        }
    }

    /// Ends the engine: all queued commits and waiting lookups fail.
    fn stop(&self, ended: Ended) {
        let mut leader = self.connection.leader.lock();
        let waiters = leader.stop(&ended.reason());
        let left: Vec<_> = std::iter::from_fn(|| leader.take_commit()).collect();
        drop(leader);
        left.iter().for_each(|commit| self.refuse(commit, &ended));
        waiters.into_iter().for_each(|waiter| waiter.answer(Err(ended.reason().into())));
        self.notify(|observer| match ended {
            Ended::Deposed(leader) => observer.deposed(leader),
            Ended::Stopped(reason) => observer.stopped(reason),
            Ended::Closed => {}
        });
        self.connection.room.notify_all();
    }

    fn refuse(&self, commit: &PendingCommit, ended: &Ended) {
        commit.fill(|_| Err(StoreError::Unavailable(ended.reason())));
    }
}
