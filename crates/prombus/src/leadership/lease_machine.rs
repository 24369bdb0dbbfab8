//! The rules of the leader lease as a state machine without a clock and without I/O. The caller repeatedly executes the step
//! that [`LeaseMachine::next`] returns, and reports its result. All times are milliseconds of the caller's monotonic clock;
//! wall clocks and the clocks of other machines are not used.
//!
//! **Invariants:**
//! - A leader measures the age of a renewal from the moment before it sends the renewal. A challenger (a process that would
//!   take the lease) measures the age of a revision from the moment at which the response to its first read of that revision
//!   arrived. So the leader, which stops leasing events at the age `gate_ms`, stops before a challenger takes the lease at the
//!   age `take_after_ms`.
//! - The lease is taken only right after a successful read, with a compare-and-set on the revision that was read. A lease that
//!   was not released is taken only if two successful reads, at least `take_after_ms` apart, found the same revision. Failed
//!   reads prove nothing.
//! - A write whose response was lost may still be applied. A later read of the record shows whether it was: revisions never
//!   repeat, so the write was applied if the record has this process's id and the written revision.
//! - A process never leads again in a term that it gave up.

use super::held_lease::{HeldLease, HeldStep, Holding};
use super::observed_lease::ObservedLease;
use super::timing::LeaseTiming;
use crate::engine::{LeaseError, LeaseRecord, Takeover};

/// The data of a process that it writes into the lease record when it takes the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// A random id of this process.
    pub leader_id: String,
    /// Where followers reach this process, as `host:port`.
    pub address: String,
    /// SHA-256 of this process's certificate; `None` without TLS.
    pub cert_hash: Option<[u8; 32]>,
}

/// What the caller must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// Read the record, and report the result to [`LeaseMachine::was_read`].
    Read,
    /// Write the record if the stored one is as expected, and report the result to [`LeaseMachine::was_set`].
    CompareAndSet {
        /// The revision that the stored record must have; `None` if there must be no record.
        expected: Option<u64>,
        /// The record to write.
        record: LeaseRecord,
    },
    /// Call [`LeaseMachine::next`] again at this time, or when a result is reported.
    WaitUntil(u64),
    /// There is nothing more to do: [`LeaseMachine::stop`] was called, and this process does not hold the lease.
    Stopped,
}

/// Whether this process holds the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeasePosition {
    /// This process does not hold the lease.
    Following {
        /// The record of the process that holds the lease, if known.
        leader: Option<LeaseRecord>,
    },
    /// As far as this process knows, it holds the lease and is not releasing it. Another process may have taken the lease
    /// since the last renewal.
    Holding {
        /// The stored record.
        record: LeaseRecord,
        /// The term, and whether the previous leader released the lease: the engine needs both to take over the store.
        takeover: Takeover,
    },
}

/// The state of a process's lease; see the module.
pub struct LeaseMachine {
    timing: LeaseTiming,
    candidate: Candidate,
    /// Generates the secret of a term.
    make_secret: Box<dyn FnMut() -> [u8; 32] + Send>,
    /// The record as it was last read.
    observed: ObservedLease,
    /// The lease, while this process holds it.
    held: Option<HeldLease>,
    in_flight: Option<InFlight>,
    /// The write that takes the lease, to be sent next, because the last read showed that the lease is free.
    planned: Option<Take>,
    /// A write to take the lease whose outcome is unknown.
    unresolved: Option<Take>,
    /// Nothing is sent before this time.
    idle_until: u64,
    /// The lease is not taken before this time.
    take_from: u64,
    /// The newest term in which this process has stopped leading.
    resigned_term: u64,
    /// See [`Self::set_standby`].
    is_on_standby: bool,
    /// [`Self::stop`] was called.
    is_stopping: bool,
}

/// A request that has no response yet.
struct InFlight {
    sent: Sent,
    sent_ms: u64,
}

enum Sent {
    Read,
    Take(Take),
    /// A renewal or a release.
    Write(LeaseRecord),
    /// A write for a lease that this process gave up before the response arrived.
    Abandoned,
}

/// A compare-and-set that takes the lease.
#[derive(Clone)]
struct Take {
    /// The revision that the stored record must have; `None` if there must be no record.
    expected: Option<u64>,
    record: LeaseRecord,
    /// Whether the previous leader released the lease.
    was_released: bool,
    /// When the first attempt to take the lease with this `expected` was sent.
    first_sent_ms: u64,
}

impl LeaseMachine {
    /// The machine of a process that does not hold the lease and has not read the record yet.
    pub fn new(
        timing: LeaseTiming,
        candidate: Candidate,
        make_secret: impl FnMut() -> [u8; 32] + Send + 'static,
    ) -> Self {
        Self {
            timing,
            candidate,
            make_secret: Box::new(make_secret),
            observed: ObservedLease::default(),
            held: None,
            in_flight: None,
            planned: None,
            unresolved: None,
            idle_until: 0,
            take_from: 0,
            resigned_term: 0,
            is_on_standby: false,
            is_stopping: false,
        }
    }

    /// Returns the next step. If it is a read or a write, it counts as sent at `now`, and until its result is reported there
    /// is no other step.
    pub fn next(&mut self, now: u64) -> LeaseStep {
        if self.in_flight.is_some() {
            return LeaseStep::WaitUntil(u64::MAX);
        }
        if self.is_stopping && self.held.is_none() && self.unresolved.is_none() {
            return LeaseStep::Stopped;
        }
        if now < self.idle_until {
            return LeaseStep::WaitUntil(self.idle_until);
        }
        let Some(held) = &self.held else {
            return match self.planned.take() {
                Some(take) => self.send_take(take, now),
                None => self.send(Sent::Read, now, LeaseStep::Read),
            };
        };
        match held.next(now) {
            HeldStep::Read => self.send(Sent::Read, now, LeaseStep::Read),
            HeldStep::WaitUntil(at) => LeaseStep::WaitUntil(at),
            HeldStep::Write(record) => {
                let step =
                    LeaseStep::CompareAndSet { expected: Some(held.record.revision), record: record.clone() };
                self.send(Sent::Write(record), now, step)
            }
        }
    }

    /// Reports the result of [`LeaseStep::Read`], which arrived at `now`.
    pub fn was_read(&mut self, read: Result<Option<LeaseRecord>, LeaseError>, now: u64) {
        let Some(InFlight { sent_ms, .. }) = self.in_flight.take() else { return };
        let Ok(record) = read else {
            self.idle_until = now + self.timing.poll_every_ms;
            return;
        };
        self.observed.was_read(record.as_ref(), now);
        match &mut self.held {
            Some(held) => {
                let holding = held.was_read(record, &self.timing);
                self.end_if(holding);
            }
            None => self.follow(record, sent_ms, now),
        }
    }

    /// Reports the result of [`LeaseStep::CompareAndSet`], which arrived at `now`.
    pub fn was_set(&mut self, set: Result<bool, LeaseError>, now: u64) {
        let Some(InFlight { sent, sent_ms }) = self.in_flight.take() else { return };
        self.idle_until = now;
        match (sent, &mut self.held) {
            (Sent::Take(take), None) => self.take_was_set(set, take, sent_ms),
            (Sent::Write(record), Some(held)) => {
                let holding = held.was_set(set, record, sent_ms, &self.timing);
                self.end_if(holding);
            }
            _ => {}
        }
    }

    /// Reports that the engine found a newer term in the store: this process stops leading.
    pub fn deposed(&mut self, now: u64) {
        self.let_expire(now);
    }

    /// Stops leading without releasing the lease: the record stays as it is, and other processes wait until it has expired.
    pub fn let_expire(&mut self, now: u64) {
        if self.held.is_some() {
            self.end_if(Holding::Ended);
            self.idle_until = now;
            if let Some(InFlight { sent, .. }) = &mut self.in_flight {
                *sent = if let Sent::Read = sent { Sent::Read } else { Sent::Abandoned };
            }
        }
    }

    /// Releases the lease, because this process cannot lead at present. It does not take the lease again for `rest_ms`.
    ///
    /// A released record promises to other processes that no write of this term or an earlier one is in progress. Call this
    /// only if that is certain; otherwise call [`resign`](Self::resign).
    pub fn give_up(&mut self, rest_ms: u64, now: u64) {
        self.take_from = now + rest_ms;
        self.release(now);
    }

    /// Like [`let_expire`](Self::let_expire); in addition, this process does not take the lease again for `rest_ms`.
    pub fn resign(&mut self, rest_ms: u64, now: u64) {
        self.take_from = now + rest_ms;
        self.let_expire(now);
    }

    /// Reports a term that the engine found in the store. If this process takes the lease, its term will be higher, even if
    /// the lease record was deleted meanwhile.
    pub fn saw_term(&mut self, term: u64) {
        self.observed.note_term(term);
    }

    /// Turns standby on or off. A process on standby reads the record, but does not take the lease.
    pub fn set_standby(&mut self, is_on_standby: bool) {
        self.is_on_standby = is_on_standby;
        self.planned = None;
    }

    /// Releases the lease if this process holds it, and stops.
    pub fn stop(&mut self, now: u64) {
        self.is_stopping = true;
        self.planned = None;
        self.release(now);
    }

    /// Whether this process holds the lease.
    pub fn position(&self) -> LeasePosition {
        match &self.held {
            Some(held) if held.is_releasing() => LeasePosition::Following { leader: None },
            Some(held) => LeasePosition::Holding { record: held.record.clone(), takeover: held.takeover },
            None => {
                let is_leader =
                    |it: &&LeaseRecord| !it.is_released() && it.leader_id != self.candidate.leader_id;
                LeasePosition::Following { leader: self.observed.record().filter(is_leader).cloned() }
            }
        }
    }

    /// The time until which this process may lease events to members; `None` if it does not hold the lease, or is releasing
    /// it. Each renewal moves this time forward.
    pub fn gate_deadline(&self) -> Option<u64> {
        self.held.as_ref()?.gate_deadline(&self.timing)
    }

    /// When the newest write that confirmed the lease was sent; `None` if this process does not hold the lease.
    pub fn confirmed_ms(&self) -> Option<u64> {
        self.held.as_ref().map(HeldLease::confirmed_ms)
    }

    fn send(&mut self, sent: Sent, now: u64, step: LeaseStep) -> LeaseStep {
        self.in_flight = Some(InFlight { sent, sent_ms: now });
        step
    }

    fn send_take(&mut self, mut take: Take, now: u64) -> LeaseStep {
        let is_same = |earlier: &&Take| earlier.expected == take.expected;
        take.first_sent_ms = self.unresolved.as_ref().filter(is_same).map_or(now, |it| it.first_sent_ms);
        // Leave time between two attempts, even if the store refuses them at once.
        self.take_from = self.take_from.max(now + self.timing.poll_every_ms);
        let step = LeaseStep::CompareAndSet { expected: take.expected, record: take.record.clone() };
        self.send(Sent::Take(take), now, step)
    }

    fn take_was_set(&mut self, set: Result<bool, LeaseError>, take: Take, sent_ms: u64) {
        match set {
            Ok(true) => self.hold(take.record, take.was_released, sent_ms),
            // Another process has taken the lease, or an earlier attempt of this process was applied after all. The next read
            // shows which.
            Ok(false) => {}
            Err(_) => self.unresolved = Some(take),
        }
    }

    fn hold(&mut self, record: LeaseRecord, was_released: bool, sent_ms: u64) {
        self.unresolved = None;
        self.observed.note(&record);
        self.observed.forget();
        let mut held = HeldLease::taken(record, was_released, sent_ms, &self.timing);
        if self.is_stopping {
            held.release(sent_ms);
        }
        self.held = Some(held);
    }

    /// Handles a record that was read while this process does not hold the lease. An earlier attempt to take the lease may
    /// have been applied, or the lease may be free.
    fn follow(&mut self, record: Option<LeaseRecord>, sent_ms: u64, now: u64) {
        let is_own =
            |it: &LeaseRecord| it.leader_id == self.candidate.leader_id && it.term > self.resigned_term;
        if let (Some(take), Some(record)) = (&self.unresolved, record.as_ref().filter(|it| is_own(it))) {
            let (was_released, first_sent_ms) = (take.was_released, take.first_sent_ms);
            return self.hold(record.clone(), was_released, first_sent_ms);
        }
        let revision = record.as_ref().map(|it| it.revision);
        // An attempt that expects this revision may still be applied; an attempt that expects an earlier one cannot.
        self.unresolved = self.unresolved.take().filter(|it| it.expected == revision && !self.is_stopping);
        let is_free = record.as_ref().is_none_or(LeaseRecord::is_released)
            || self.observed.unchanged_ms(sent_ms) >= self.timing.take_after_ms;
        if is_free && now >= self.take_from && !self.is_on_standby && !self.is_stopping {
            self.planned = Some(self.take_after(record.as_ref()));
        } else {
            self.idle_until = now + self.timing.poll_every_ms;
        }
    }

    fn take_after(&mut self, record: Option<&LeaseRecord>) -> Take {
        let Candidate { leader_id, address, cert_hash } = self.candidate.clone();
        Take {
            expected: record.map(|it| it.revision),
            // A missing record does not count as released: the record of an active leader may have been deleted.
            was_released: record.is_some_and(LeaseRecord::is_released),
            record: LeaseRecord {
                term: self.observed.next_term(),
                revision: self.observed.next_revision(),
                leader_id,
                address,
                cert_hash,
                secret: (self.make_secret)(),
            },
            first_sent_ms: 0,
        }
    }

    fn release(&mut self, now: u64) {
        if let Some(held) = &mut self.held {
            held.release(now);
            self.idle_until = self.idle_until.min(now);
        }
    }

    fn end_if(&mut self, holding: Holding) {
        if holding == Holding::Ended
            && let Some(held) = self.held.take()
        {
            self.resigned_term = self.resigned_term.max(held.record.term);
            self.observed.note(&held.record);
        }
    }
}
