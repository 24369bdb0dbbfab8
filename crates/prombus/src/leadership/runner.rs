//! The task that executes the steps of the [`LeaseMachine`] on a shared store. It reads and writes the lease record, opens
//! and closes the bus, sets the deadline of the leasing gate (which decides whether this process may lease events to
//! members), and publishes the role of this process.
//!
//! **Order:** the new role is published before the bus of the old role is closed, so that the server closes its client
//! connections first. The lease is released only after the bus was closed without an error, because a released lease
//! promises to other processes that no write is in progress. In all other cases, for example if the engine could not be
//! opened, the lease is left to expire.

use super::lease_call::{LeaseAnswer, LeaseCall};
use super::lease_machine::{Candidate, LeaseMachine, LeasePosition, LeaseStep};
use super::options::LeadershipOptions;
use super::random::{random_bytes, random_id};
use super::role::{LeadershipFigures, Role};
use super::shared_address::SharedAddress;
use super::term_work::{AfterClosing, TermWork, WorkEvent};
use crate::bus::BusBuilder;
use crate::clock::Clock;
use crate::engine::{LeaseError, LeaseRecord, SharedStore};
use crate::error::{OpenError, Unavailable};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// The longest pause after the engine could not be opened or has failed.
const RETRY_MS_MAX: u64 = 30_000;
/// If an engine works for this long before it fails, earlier failures do not lengthen the pause that follows.
const STABLE_AFTER_MS: u64 = 30_000;
/// The longest sleep of the loop. Longer times might overflow the timer.
const WAIT_MS_MAX: u64 = 3_600_000;

/// Why stopping the leadership failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// The bus could not be closed. The lease was not released: other processes wait until it has expired.
    #[error("the bus could not be closed: {0}")]
    Bus(#[source] Unavailable),
    /// The lease could not be released: other processes wait until it has expired.
    #[error("the leader lease of the store could not be released: {0}")]
    Release(#[source] LeaseError),
}

/// The state of the leadership task.
pub(super) struct Runner {
    store: Arc<dyn SharedStore>,
    /// Builds the bus of each term.
    builder: BusBuilder,
    options: LeadershipOptions,
    clock: Arc<dyn Clock>,
    machine: LeaseMachine,
    work: TermWork,
    roles: watch::Sender<Role>,
    figures: LeadershipFigures,
    /// How often the engine could not be opened or has failed, since an engine last worked for [`STABLE_AFTER_MS`].
    failures: u32,
    /// When the bus of the current term was opened.
    led_from_ms: u64,
    /// Whether the task leads at most once, and ends after its first failure or its first term.
    is_single: bool,
    /// Whether the task was told to stop, or stops because of `is_single`.
    is_stopping: bool,
    /// When the task stops trying to release the lease; `None` before the release begins.
    release_until: Option<u64>,
    /// Whether the last read or write of the lease record failed.
    is_lease_failing: bool,
    shared_address: SharedAddress,
    /// The error of the last failed read or write of the lease record.
    lease_error: LeaseError,
    ended: Ended,
}

/// How the task ended.
pub(super) struct Ended {
    pub(super) stopped: Result<(), StopError>,
    /// Why a runner with `is_single` could not open the engine; `None` if that was not the reason of its end.
    pub(super) open_error: Option<OpenError>,
}

impl Runner {
    pub(super) fn new(
        store: Arc<dyn SharedStore>,
        builder: BusBuilder,
        options: LeadershipOptions,
        clock: Arc<dyn Clock>,
        is_single: bool,
    ) -> Self {
        let candidate = Candidate {
            leader_id: random_id(),
            address: options.address.clone(),
            cert_hash: options.cert_hash,
        };
        Self {
            machine: LeaseMachine::new(options.timing, candidate, random_bytes),
            store,
            builder,
            options,
            clock,
            work: TermWork::Idle,
            roles: watch::Sender::new(Role::Following { leader: None }),
            figures: LeadershipFigures::default(),
            failures: 0,
            led_from_ms: 0,
            is_single,
            is_stopping: false,
            release_until: None,
            is_lease_failing: false,
            shared_address: SharedAddress::default(),
            lease_error: LeaseError("the store did not respond in time".to_owned()),
            ended: Ended { stopped: Ok(()), open_error: None },
        }
    }

    pub(super) fn roles(&self) -> watch::Receiver<Role> {
        self.roles.subscribe()
    }

    pub(super) fn figures(&self) -> LeadershipFigures {
        self.figures.clone()
    }

    /// Runs until it is told to stop (or, if `is_single`, until its first failure or the end of its first term). Returns
    /// when the lease is released or left to expire, or after `release_timeout_ms`. If the sender of `stop` is dropped,
    /// the task stops as well.
    pub(super) async fn run(mut self, mut stop: oneshot::Receiver<()>) -> Ended {
        let mut call = LeaseCall::default();
        let limit = Duration::from_millis(self.options.call_timeout_ms);
        loop {
            self.follow_machine();
            let now = self.now();
            let wait_until = match self.machine.next(now) {
                LeaseStep::Stopped if !self.has_work() => return self.ended,
                LeaseStep::Stopped => u64::MAX,
                LeaseStep::WaitUntil(at) => at,
                step => {
                    call.start(step, Arc::clone(&self.store), limit);
                    u64::MAX
                }
            };
            if self.release_until.is_some_and(|until| until <= now) {
                self.ended.stopped = Err(StopError::Release(self.lease_error.clone()));
                return self.ended;
            }
            let wait_until = wait_until
                .min(self.release_until.unwrap_or(u64::MAX))
                .min(self.step_aside_at().filter(|&at| at > now).unwrap_or(u64::MAX));
            let wait = Duration::from_millis(wait_until.saturating_sub(now).min(WAIT_MS_MAX));
            tokio::select! {
                answer = call.answer() => self.take_answer(answer),
                event = self.work.event() => self.take_event(event),
                _ = &mut stop, if !self.is_stopping => self.stop(),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn now(&self) -> u64 {
        self.clock.steady_ms()
    }

    /// The time at which this process, if its lease is not renewed until then, makes the server close its client
    /// connections, because another process may lead by then. `None` if this process does not hold the lease.
    fn step_aside_at(&self) -> Option<u64> {
        let confirmed_ms = self.machine.confirmed_ms()?;
        Some(confirmed_ms + self.options.timing.take_after_ms + self.options.step_aside_ms)
    }

    /// Whether the time [`Self::step_aside_at`] has passed.
    fn is_aside(&self) -> bool {
        self.step_aside_at().is_some_and(|at| at <= self.now())
    }

    fn has_work(&self) -> bool {
        !matches!(self.work, TermWork::Idle)
    }

    fn take_answer(&mut self, answer: LeaseAnswer) {
        let now = self.now();
        self.note_error(answer.error());
        match answer {
            LeaseAnswer::Read(read) => self.machine.was_read(read, now),
            LeaseAnswer::Set(set) => self.machine.was_set(set, now),
        }
    }

    /// Logs when reads and writes of the lease record begin to fail, and when they work again. Does not log every failure.
    fn note_error(&mut self, error: Option<&LeaseError>) {
        let was_failing = std::mem::replace(&mut self.is_lease_failing, error.is_some());
        match error {
            Some(error) if !was_failing => {
                tracing::warn!("cannot access the leader lease of {}: {error}", self.store.location());
            }
            None if was_failing => {
                tracing::info!("the leader lease of {} is accessible again", self.store.location());
            }
            _ => {}
        }
        if let Some(error) = error {
            self.lease_error = error.clone();
        }
    }

    /// Updates the gate, the role and the bus to match the state of the lease machine.
    fn follow_machine(&mut self) {
        let position = self.machine.position();
        let takeover = match &position {
            LeasePosition::Holding { takeover, .. } => Some(*takeover),
            LeasePosition::Following { .. } => None,
        };
        let held_term = takeover.map(|it| it.term);
        if let Some((term, gate)) = self.work.term() {
            match self.machine.gate_deadline().filter(|_| held_term == Some(term)) {
                Some(deadline) => gate.open_until(deadline),
                None => gate.close(),
            }
        }
        self.note_shared_address(&position);
        self.publish(self.role(&position));
        if matches!(&self.work, TermWork::Leading { term, .. } if held_term != Some(*term)) {
            self.close_bus(AfterClosing::Follow);
        }
        if let (Some(takeover), TermWork::Idle) = (takeover, &self.work) {
            self.work = TermWork::open(&self.store, &self.builder, &self.clock, takeover);
        }
    }

    fn note_shared_address(&mut self, position: &LeasePosition) {
        if let LeasePosition::Following { leader: Some(leader) } = position
            && leader.address == self.options.address
            && self.shared_address.note(leader)
        {
            tracing::warn!(
                "another gateway leads and advertises the same address as this one, {}: nothing is relayed to it; give each \
                 gateway its own address",
                leader.address
            );
        }
    }

    fn role(&self, position: &LeasePosition) -> Role {
        match (position, &self.work) {
            (_, TermWork::Closing { then: AfterClosing::GiveUp | AfterClosing::Stop, .. }) => {
                Role::Following { leader: None }
            }
            (LeasePosition::Holding { record, .. }, TermWork::Leading { term, bus, .. })
                if record.term == *term && !self.is_aside() =>
            {
                Role::Leading { term: *term, bus: bus.clone(), secret: record.secret }
            }
            (LeasePosition::Holding { .. }, TermWork::Leading { .. }) if self.is_aside() => {
                Role::Following { leader: None }
            }
            (LeasePosition::Holding { record, .. }, _) => Role::TakingOver { term: record.term },
            (LeasePosition::Following { leader }, _) => {
                let is_other = |it: &&LeaseRecord| it.address != self.options.address;
                Role::Following { leader: leader.as_ref().filter(is_other).cloned() }
            }
        }
    }

    fn publish(&self, role: Role) {
        if let Role::Following { leader: Some(LeaseRecord { term, .. }) }
        | Role::TakingOver { term }
        | Role::Leading { term, .. } = &role
        {
            self.figures.saw_term(*term);
        }
        let store = self.store.location();
        self.roles.send_if_modified(|published| {
            if published.is_same(&role) {
                return false;
            }
            match &role {
                Role::Following { leader: None } if self.is_stopping => {}
                Role::Following { leader: None }
                    if matches!(self.work, TermWork::Leading { .. }) && self.is_aside() =>
                {
                    tracing::warn!(
                        "the leader lease of {store} was not renewed in time: closing client connections, because \
                         another process may lead"
                    );
                }
                Role::Following { leader: None } => {
                    tracing::info!("this process follows on {store}; no leader is known");
                }
                Role::Following { leader: Some(LeaseRecord { term, address, .. }) } => {
                    tracing::info!("following {address}, the leader of {store} in term {term}");
                }
                Role::TakingOver { term } => tracing::info!("taking over {store} in term {term}"),
                Role::Leading { term, .. } => tracing::info!("leading {store} in term {term}"),
            }
            *published = role;
            true
        });
    }

    fn take_event(&mut self, event: WorkEvent) {
        let work = std::mem::replace(&mut self.work, TermWork::Idle);
        match (event, work) {
            (WorkEvent::Opened(Ok(bus)), TermWork::Opening { term, gate, .. }) => {
                if matches!(self.machine.position(), LeasePosition::Holding { record, .. } if record.term == term)
                {
                    self.led_from_ms = self.now();
                    self.figures.count_takeover();
                    self.work = TermWork::lead(term, gate, bus);
                } else {
                    tracing::warn!(
                        "the leader lease of term {term} was lost while the engine was being opened"
                    );
                    self.machine.set_standby(true);
                    self.work = TermWork::close(bus, AfterClosing::Follow);
                }
            }
            (WorkEvent::Opened(Err(error)), _) => self.open_failed(error),
            (WorkEvent::Stopped(reason), work) => {
                self.work = work;
                self.bus_stopped(&reason);
            }
            (WorkEvent::Closed(then, closed), _) => self.bus_closed(then, closed),
            _ => {}
        }
    }

    fn open_failed(&mut self, error: OpenError) {
        let (store, retry_pause_ms) = (self.store.location(), self.retry_pause_ms());
        if self.is_single {
            tracing::error!("cannot open {store}: {error}");
        } else {
            tracing::error!(
                "cannot open {store}: {error}; trying again when the leader lease has expired, in {retry_pause_ms} ms at the earliest"
            );
        }
        if let OpenError::Led { term, .. } = &error {
            self.machine.saw_term(*term);
        }
        // The last write of the previous leader may still be in progress: only an open that succeeds has made sure that it
        // is not. So the lease must not be released.
        self.machine.resign(retry_pause_ms, self.now());
        if self.is_single {
            self.ended.open_error = Some(error);
            self.stop();
        }
    }

    fn retry_pause_ms(&mut self) -> u64 {
        let doubled = self.options.retry_ms.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        doubled.min(RETRY_MS_MAX)
    }

    /// Handles a bus that has stopped writing.
    fn bus_stopped(&mut self, reason: &Unavailable) {
        if let Unavailable::Deposed(leader) = reason {
            tracing::warn!("this process no longer leads {}: {leader}", self.store.location());
            self.machine.deposed(self.now());
            // This publishes the new role, then closes the bus.
            self.follow_machine();
        } else {
            tracing::error!("the bus on {} stopped: {reason}", self.store.location());
            self.publish(Role::Following { leader: None });
            self.close_bus(AfterClosing::GiveUp);
        }
    }

    fn close_bus(&mut self, then: AfterClosing) {
        let work = std::mem::replace(&mut self.work, TermWork::Idle);
        if let TermWork::Leading { gate, bus, .. } = work {
            gate.close();
            if self.now() >= self.led_from_ms + STABLE_AFTER_MS {
                self.failures = 0;
            }
            self.machine.set_standby(true);
            self.work = TermWork::close(bus, then);
        }
    }

    fn bus_closed(&mut self, then: AfterClosing, closed: Result<(), Unavailable>) {
        let now = self.now();
        self.machine.set_standby(false);
        match (then, &closed) {
            // `Follow`: the term of this bus is over. If this process holds the lease again, that is a newer term, which
            // the end of this bus does not affect. `Stop`: the lease is released below.
            (AfterClosing::Follow, _) | (AfterClosing::Stop, Ok(())) => {}
            (AfterClosing::GiveUp, Ok(())) => {
                let retry_pause_ms = self.retry_pause_ms();
                self.machine.give_up(retry_pause_ms, now);
            }
            // A write may be in progress: let the lease expire.
            (AfterClosing::GiveUp, Err(_)) => {
                let retry_pause_ms = self.retry_pause_ms();
                self.machine.resign(retry_pause_ms, now);
            }
            (AfterClosing::Stop, Err(_)) => self.machine.let_expire(now),
        }
        if then == AfterClosing::Stop {
            self.ended.stopped = match closed {
                // It is not an error if the bus was deposed (another process took over): its term is over, and every write
                // that it confirmed is stored.
                Ok(()) | Err(Unavailable::Deposed(_)) => Ok(()),
                Err(error) => Err(StopError::Bus(error)),
            };
            self.release();
        } else if self.is_single {
            self.stop();
        }
    }

    /// Stops: closes the bus, then releases the lease.
    fn stop(&mut self) {
        self.is_stopping = true;
        match std::mem::replace(&mut self.work, TermWork::Idle) {
            TermWork::Idle => self.release(),
            TermWork::Opening { task, .. } => {
                // Stopping does not wait until the engine is open, so the engine may be writing: let the lease expire.
                tokio::spawn(async move {
                    if let Ok(Ok(bus)) = task.await {
                        let _ = bus.close().await;
                    }
                });
                self.machine.let_expire(self.now());
                self.release();
            }
            work @ TermWork::Leading { .. } => {
                self.work = work;
                self.publish(Role::Following { leader: None });
                self.close_bus(AfterClosing::Stop);
            }
            TermWork::Closing { task, .. } => {
                self.work = TermWork::Closing { then: AfterClosing::Stop, task };
            }
        }
    }

    fn release(&mut self) {
        let now = self.now();
        self.release_until = Some(now + self.options.release_timeout_ms);
        self.machine.stop(now);
    }
}
