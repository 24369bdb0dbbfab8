//! Sends commits over the simulated network, one at a time, and reports what becomes of them. All calls of the observer come
//! from this thread.
//!
//! A commit whose answer does not come has an unknown fate. The committer then looks for the commit's fence: if it is there,
//! the commit was applied and the fence has the answer; if it is not there, the commit is sent again under the same number,
//! which the database applies at most once; if another engine leads, this one is deposed.

use super::connection::Connection;
use super::database::{CommitAnswer, FenceState};
use super::leader::{Leader, PendingCommit};
use super::network::{Fault, Random};
use crate::engine::EngineObserver;
use crate::error::{StoreError, Unavailable};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Committer {
    connection: Arc<Connection>,
    random: Random,
}

/// Why a commit was not applied, or not as far as anybody knows.
enum Ended {
    /// The engine is closed during an outage.
    Closed,
    Deposed {
        leader: String,
    },
}

impl Committer {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { random: Random::new(connection.options.seed), connection }
    }

    /// The thread.
    pub(super) fn run(mut self) {
        while let Some(commit) = self.next_commit() {
            self.tell_room();
            let start = Instant::now();
            match self.send(&commit) {
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
        self.connection.leader.lock().availability.is_ended = true;
        self.connection.changed.notify_all();
    }

    /// Waits for something to commit. `None` when the engine has ended.
    fn next_commit(&mut self) -> Option<PendingCommit> {
        let connection = Arc::clone(&self.connection);
        let mut leader = connection.leader.lock();
        loop {
            let it = &leader.availability;
            if it.stopped.is_some() || (it.is_closing && leader.is_idle()) {
                return None;
            }
            leader = match self.wait_for_network(leader) {
                Ok(leader) => leader,
                Err(ended) => {
                    self.stop(ended);
                    return None;
                }
            };
            if let Some(commit) = leader.take_commit() {
                drop(leader);
                self.fail_for_a_while();
                return Some(commit);
            }
            // The observer was told without the lock: something may have changed.
            if !leader.availability.is_closing {
                self.connection.changed.wait(&mut leader);
            }
        }
    }

    /// An outage by chance.
    fn fail_for_a_while(&mut self) {
        if let Some(outage) = self.random.outage(&self.connection.options)
            && self.connection.suspend("simulated outage")
        {
            drop(self.tell_availability(self.connection.leader.lock()));
            std::thread::sleep(outage);
            self.connection.resume();
        }
    }

    /// Waits until the network works. The observer is told what changed meanwhile.
    fn wait_for_network<'a>(
        &'a self,
        mut leader: MutexGuard<'a, Leader>,
    ) -> Result<MutexGuard<'a, Leader>, Ended> {
        loop {
            leader = self.tell_availability(leader);
            if leader.availability.suspended.is_none() {
                return Ok(leader);
            }
            if leader.availability.is_closing {
                return Err(Ended::Closed);
            }
            self.connection.changed.wait(&mut leader);
        }
    }

    /// Tells the observer about suspension, resumption and room, as far as it does not know.
    fn tell_availability<'a>(&'a self, mut leader: MutexGuard<'a, Leader>) -> MutexGuard<'a, Leader> {
        loop {
            let has_room = leader.has_room();
            let it = &mut leader.availability;
            let told = it.is_suspension_told;
            if let Some(reason) = it.suspended.clone().filter(|_| !told) {
                it.is_suspension_told = true;
                self.tell(&mut leader, |observer| observer.suspended(reason));
            } else if it.suspended.is_none() && told {
                // `room` always follows `resumed`.
                it.owes_room = true;
                self.tell(&mut leader, EngineObserver::resumed);
                leader.availability.is_suspension_told = false;
            } else if it.owes_room && has_room {
                it.owes_room = false;
                self.connection.room.notify_all();
                self.tell(&mut leader, EngineObserver::room);
            } else {
                return leader;
            }
        }
    }

    /// The lock is not held while the observer is told.
    fn tell(&self, leader: &mut MutexGuard<'_, Leader>, tell: impl FnOnce(&dyn EngineObserver)) {
        MutexGuard::unlocked(leader, || {
            if let Some(observer) = self.connection.observer.get() {
                tell(&**observer);
            }
        });
    }

    fn tell_room(&self) {
        drop(self.tell_availability(self.connection.leader.lock()));
    }

    /// Sends a commit until it is known to be applied.
    fn send(&mut self, commit: &PendingCommit) -> Result<Arc<CommitAnswer>, Ended> {
        let connection = Arc::clone(&self.connection);
        let (options, database, term) = (&connection.options, &connection.database, connection.term);
        loop {
            let latency = self.random.duration_us(&options.commit_latency_us);
            let fault = options.fault(&mut self.random);
            std::thread::sleep(latency / 2);
            let mut answer = None;
            if matches!(fault, Fault::None | Fault::AnswerLost) {
                answer = self.apply(commit)?;
            }
            std::thread::sleep(latency / 2);
            drop(self.wait_for_network(self.connection.leader.lock())?);
            if fault == Fault::None
                && let Some(answer) = answer
            {
                return Ok(answer);
            }
            if fault != Fault::None {
                self.wait_for_answer_in_vain();
            }
            drop(self.wait_for_network(self.connection.leader.lock())?);
            match database.fence(term, commit.number) {
                FenceState::Applied(answer) => return Ok(answer),
                FenceState::Deposed { leader } => return Err(Ended::Deposed { leader }),
                FenceState::Missing => {}
            }
            if fault == Fault::RequestLate {
                self.apply(commit)?;
            }
        }
    }

    fn wait_for_answer_in_vain(&self) {
        std::thread::sleep(self.connection.options.answer_timeout());
    }

    /// The commit arrives at the database. An outage cannot begin in the middle.
    fn apply(&self, commit: &PendingCommit) -> Result<Option<Arc<CommitAnswer>>, Ended> {
        let _leader = self.wait_for_network(self.connection.leader.lock())?;
        Ok(self.connection.database.commit_if(self.connection.term, commit.number, &commit.changes))
    }

    fn report(&self, commit: &PendingCommit, answer: &CommitAnswer) {
        let connection = &self.connection;
        let mut leader = connection.leader.lock();
        leader.applied(commit, answer);
        let seqs = leader.answered_seqs(commit.number);
        drop(leader);
        seqs.into_iter().for_each(|(asker, seq)| asker.answer(Ok(seq)));
        commit.fill(|at| Ok(answer.outcomes.get(at).cloned().unwrap_or_default()));
        if let Some(observer) = connection.observer.get() {
            let mut newest = answer.newest.iter().map(|(&topic, &seq)| (topic, seq));
            observer.committed(commit.number, &mut newest);
        }
        connection.leader.lock().told(commit);
    }

    /// Nothing is committed any more: refuses what waits.
    fn stop(&self, ended: Ended) {
        let mut leader = self.connection.leader.lock();
        let askers = leader.stop(&ended.reason());
        let left: Vec<_> = std::iter::from_fn(|| leader.take_commit()).collect();
        drop(leader);
        left.iter().for_each(|commit| self.refuse(commit, &ended));
        askers.into_iter().for_each(|asker| asker.answer(Err(ended.reason().into())));
        if let Some(observer) = self.connection.observer.get()
            && let Ended::Deposed { leader } = ended
        {
            observer.deposed(leader);
        }
        self.connection.room.notify_all();
    }

    fn refuse(&self, commit: &PendingCommit, ended: &Ended) {
        commit.fill(|_| Err(StoreError::Unavailable(ended.reason())));
    }
}

impl Ended {
    fn reason(&self) -> Unavailable {
        match self {
            Self::Closed => Unavailable::Closed,
            Self::Deposed { leader } => Unavailable::Deposed(leader.clone()),
        }
    }
}
