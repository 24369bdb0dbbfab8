//! The leader lease of a store as a pure value: no clock, no I/O. The caller executes the step that
//! [`LeaseMachine::next`] returns, one at a time, and reports its result. All times are milliseconds of the caller's
//! monotonic clock; wall clocks and the clocks of other machines are not used.
//!
//! **Invariants:**
//! - A leader measures the age of a renewal from the moment before it sends the renewal. A challenger measures the age
//!   of a revision from the moment after the response to its read arrived. So a leader that stops leasing events after
//!   `gate_ms` has stopped before a challenger has seen `take_after_ms` pass.
//! - The lease is taken only right after a successful read, with a compare-and-set on the revision that was read. Failed reads
//!   prove nothing: the first and the last read of the same revision must be `take_after_ms` apart.
//! - A write whose response was lost may still be applied. A read of the record tells: revisions never repeat, so the
//!   write was applied if the record has this process's id and the written revision.
//! - A process never leads again in a term that it gave up.

use super::held_lease::{HeldLease, HeldStep, Holding};
use super::observed_lease::ObservedLease;
use super::timing::LeaseTiming;
use crate::engine::{LeaseError, LeaseRecord, Takeover};

/// The data that a process writes into the lease record when it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// A random id of this process.
    pub leader_id: String,
    /// Where followers reach this process, as `host:port`.
    pub address: String,
    /// SHA-256 of this process's certificate; `None` without TLS.
    pub cert_hash: Option<[u8; 32]>,
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// Read the record; report to [`LeaseMachine::was_read`].
    Read,
    /// Write the record; report to [`LeaseMachine::was_set`].
    CompareAndSet {
        /// The revision that the stored record must have; `None` if there must be no record.
        expected: Option<u64>,
        /// The record to write.
        record: LeaseRecord,
    },
    /// Nothing is due before this time.
    WaitUntil(u64),
    /// The process was told to stop, and holds no lease.
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
    /// This process holds the lease and is not releasing it, as far as it knows: another process may have taken the
    /// lease since the last renewal.
    Holding {
        /// The stored record.
        record: LeaseRecord,
        /// How the engine takes the store over.
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
    /// A take to send now, because the last read showed that the lease is free.
    planned: Option<Take>,
    /// A take with an unknown outcome.
    unresolved: Option<Take>,
    /// Nothing is sent before this time.
    idle_until: u64,
    /// The lease is not taken before this time.
    take_from: u64,
    /// The newest term that this process gave up or lost.
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
    /// A write whose lease this process gave up before the response arrived.
    Abandoned,
}

/// A compare-and-set that takes the lease.
#[derive(Clone)]
struct Take {
    /// The revision that the stored record must have; `None` if there must be no record.
    expected: Option<u64>,
    record: LeaseRecord,
    /// The previous leader released the lease.
    was_released: bool,
    /// When the first attempt with this `expected` was sent.
    first_sent_ms: u64,
}

impl LeaseMachine {
    /// A process that holds no lease and has not read the record yet.
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

    /// The next step. A read or a write counts as sent at `now`; until its result is reported, there is nothing else to do.
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

    /// Reports that the engine found a newer term: this process follows.
    pub fn deposed(&mut self, now: u64) {
        self.let_expire(now);
    }

    /// Stops leading without releasing the lease: the record stays, and every process waits until it has expired.
    pub fn let_expire(&mut self, now: u64) {
        if self.held.is_some() {
            self.end_if(Holding::Ended);
            self.idle_until = now;
            if let Some(InFlight { sent, .. }) = &mut self.in_flight {
                *sent = if let Sent::Read = sent { Sent::Read } else { Sent::Abandoned };
            }
        }
    }

    /// Releases the lease, because this process cannot lead now. This process does not take the lease again for
    /// `rest_ms`.
    ///
    /// A released record promises that no write of an earlier term is in progress. Only a process that knows this may call
    /// this function; others call [`resign`](Self::resign).
    pub fn give_up(&mut self, rest_ms: u64, now: u64) {
        self.take_from = now + rest_ms;
        self.release(now);
    }

    /// Stops leading as [`let_expire`](Self::let_expire) does. This process also does not take the lease again for
    /// `rest_ms`.
    pub fn resign(&mut self, rest_ms: u64, now: u64) {
        self.take_from = now + rest_ms;
        self.let_expire(now);
    }

    /// Reports a term that the engine found in the store. The next term of this process is above it, even if the lease
    /// record was deleted.
    pub fn saw_term(&mut self, term: u64) {
        self.observed.note_term(term);
    }

    /// Sets standby: a process on standby reads the record, but does not take the lease.
    pub fn set_standby(&mut self, is_on_standby: bool) {
        self.is_on_standby = is_on_standby;
        self.planned = None;
    }

    /// Releases the lease and stops.
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

    /// The time until which this process may lease events to members; `None` if it holds no lease or is releasing it. A
    /// renewal moves the deadline.
    pub fn gate_deadline(&self) -> Option<u64> {
        self.held.as_ref()?.gate_deadline(&self.timing)
    }

    /// When the newest confirmed renewal of the lease was sent; `None` without a lease.
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
            // Another process was faster, or an earlier attempt of this one was applied: the next read decides.
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

    /// Handles a record that was read while this process holds no lease: an earlier take may have been applied, or the lease
    /// may be free.
    fn follow(&mut self, record: Option<LeaseRecord>, sent_ms: u64, now: u64) {
        let is_own =
            |it: &LeaseRecord| it.leader_id == self.candidate.leader_id && it.term > self.resigned_term;
        if let (Some(take), Some(record)) = (&self.unresolved, record.as_ref().filter(|it| is_own(it))) {
            let (was_released, first_sent_ms) = (take.was_released, take.first_sent_ms);
            return self.hold(record.clone(), was_released, first_sent_ms);
        }
        let revision = record.as_ref().map(|it| it.revision);
        // A take that expects this revision may still be applied; one that expects an earlier revision cannot.
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
            // Without a record nothing is known: the record of an active leader may have been deleted.
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
