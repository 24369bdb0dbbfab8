//! Projectors fold the events of a topic into states by key, and publish each changed state to another topic.
//!
//! The states are stored in the output topic: the newest event of a key is its state, and `null` means that the key has
//! none. A projector reads the states when it is opened, so it needs no other storage.
//!
//! Each input event changes the states exactly once, also across crashes. A batch of inputs is folded, the changed states
//! are published in one commit, then the inputs are acked. The header [`POSITION_HEADER`] of every state event names the
//! last input that its projector had folded: after a crash between the commit and the acks, the inputs up to that position
//! are only acked. As a second line of defence, the id of a state event is derived from the input and the key, so that
//! publishing the event again adds nothing.
//!
//! One projector runs per group. Opening a projector takes the group over from an older one in the same process: the older
//! one can neither publish nor pull any more ([`ProjectorError::Superseded`]), and its leases are void. So a supervisor may
//! open a new projector at once. Every input above the group's floor is delivered to the new projector, in order. Therefore
//! every input up to the position in the header has been folded. A projector that finds events of other writers in its
//! output topic logs a warning.
//!
//! The output topic should be compacted and have no age limit: a state that retention removes is lost. To rebuild the
//! states, use another output topic and another group.

mod error;
mod fence;
mod options;
mod pending;
pub mod process_state;
mod restore;
mod runner;
mod states;

pub use error::ProjectorError;
pub use options::{ProjectorFigures, ProjectorOptions};
pub use restore::POSITION_HEADER;
pub use runner::ProjectorHandle;
pub use states::States;

use crate::bus::Bus;
use crate::consume::rejected::{NAMESPACE, Rejected};
use crate::delivery::backoff_ms;
use crate::error::{GroupError, PublishError, ReadError};
use crate::event::Event;
use crate::failure_log::FailureLog;
use crate::publish::PublishBatch;
use crate::subscribe::{Deliveries, Subscription};
use fence::PublishTurn;
use options::ProjectorSettings;
use parking_lot::Mutex;
use pending::{Pending, PendingState};
use prombus_protocol::limits::MAX_MAX_ATTEMPTS;
use prombus_protocol::{AfterFailure, FailedEvent, HandlerFailure, PublishOptions, Start, Topic, Uuid};
use restore::{InputPosition, restore};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// Changed states are published when they reach this many bytes, even in the middle of a batch of inputs.
const PUBLISH_BYTES: usize = 1 << 20;

/// Why an event cannot be folded.
pub type Rejection = Box<dyn std::error::Error + Send + Sync>;

/// How events become states.
pub trait Projection: Send + 'static {
    /// The payload of an input event. `Box<RawValue>` or `serde_json::Value` accept any payload.
    type Input: DeserializeOwned;
    /// The state of a key.
    type State: Serialize + DeserializeOwned + Send + 'static;

    /// Folds an event into the states. Every state that this function sets is published; for every key that it removes, `null`
    /// is published. `input` is the payload of `event`.
    ///
    /// # Errors
    /// If the event cannot be folded. Its changes are undone, it becomes a dead letter, and the projector continues with the
    /// next event. A panic has the same effect, and so has a payload that is not an [`Input`](Self::Input).
    fn fold(
        &mut self,
        input: Self::Input,
        event: &Event,
        states: &mut States<Self::State>,
    ) -> Result<(), Rejection>;

    /// Changes states because time has passed, e.g. to mark them as stale.
    fn tick(&mut self, now_ms: i64, states: &mut States<Self::State>) {
        let _ = (now_ms, states);
    }
}

/// An open projector. Drive it by calling [`next`](Self::next) and [`tick`](Self::tick), or let
/// [`run_until`](Self::run_until) or [`spawn`](Self::spawn) do so.
///
/// ```
/// use prombus::consume::projector::{Projection, Projector, ProjectorOptions, Rejection, States};
/// use prombus::{Bus, Event};
///
/// prombus::topic! {
///     PAYMENTS: u32 = "payments";
///     TOTALS: u64 = "totals";
/// }
///
/// struct Totals;
///
/// impl Projection for Totals {
///     type Input = u32;
///     type State = u64;
///
///     fn fold(&mut self, amount: u32, event: &Event, totals: &mut States<u64>) -> Result<(), Rejection> {
///         let account = event.key().ok_or("a payment needs a key")?;
///         let total = totals.get(account).copied().unwrap_or(0) + u64::from(amount);
///         totals.set(account, total);
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bus = Bus::memory();
/// bus.publish(PAYMENTS, &5).key("alice").await?;
/// bus.publish(PAYMENTS, &7).key("alice").await?;
/// let options = ProjectorOptions::group("totals-projector").input(PAYMENTS).output(TOTALS);
/// let mut projector = Projector::open(&bus, options, Totals).await?;
/// projector.next().await?; // two events, one new state in the topic "totals"
/// assert_eq!(projector.states().get("alice"), Some(&12));
/// # Ok(()) }
/// ```
pub struct Projector<P: Projection> {
    bus: Bus,
    group: String,
    settings: ProjectorSettings,
    input: Topic,
    output: Topic,
    projection: P,
    states: States<P::State>,
    /// The last input that was folded; `None` before the first.
    position: Option<InputPosition>,
    /// Changes that are not published yet.
    pending: Pending,
    /// The seq that the next state event gets if no other writer publishes to the output topic; 0 after an event of another
    /// writer was found.
    next_output: u64,
    /// The last seq of the input when the projector was opened. The projector is catching up until it has folded that input.
    end_at_open: u64,
    subscription: Subscription,
    /// The right to publish states.
    turn: PublishTurn,
    figures: Arc<Mutex<ProjectorFigures>>,
    failures: Arc<FailureLog>,
}

impl<P: Projection> Projector<P> {
    /// Opens a projector: takes the group over and reads the states.
    ///
    /// # Errors
    /// See [`ProjectorError`].
    pub async fn open(
        bus: &Bus,
        options: ProjectorOptions<P::Input, P::State>,
        projection: P,
    ) -> Result<Self, ProjectorError> {
        let (input, output) = options.topics()?;
        let ProjectorOptions { group, settings, .. } = options;
        let subscribe = bus.subscribe(input.as_str(), &group).from(settings.from);
        // The most attempts that are possible: a process that crashes again and again must not turn an event into a dead
        // letter.
        let subscribe = subscribe.batch_size(settings.batch_size).max_attempts(MAX_MAX_ATTEMPTS).in_order();
        // From here on no older projector adds to the states that are read below.
        let turn = PublishTurn::take(bus, input.as_str(), &group).await;
        let subscription = subscribe.await?;
        // Events that an older projector has leased, or that wait for redelivery, are delivered in order too.
        subscription.take_over().await?;
        let restored = restore(bus, &input, &output, &group).await?;
        let end_at_open = match bus.backend().locate(&input, Start::Latest).await {
            Ok(next) => next - 1,
            Err(ReadError::UnknownTopic(_)) => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            bus: bus.clone(),
            failures: Arc::new(FailureLog::new(format!("projector {group}"))),
            group,
            settings,
            input,
            output,
            projection,
            states: States::new(restored.states),
            position: restored.position,
            pending: Pending::default(),
            next_output: restored.next_seq,
            end_at_open,
            subscription,
            turn,
            figures: Arc::default(),
        })
    }

    /// The states by key.
    pub fn states(&self) -> &States<P::State> {
        &self.states
    }

    /// The counters of the projector.
    pub fn figures(&self) -> ProjectorFigures {
        *self.figures.lock()
    }

    /// Calls a function for each failure: an event that cannot be folded and becomes a dead letter, a tick that is skipped, a
    /// publish that is retried, the end of the projector. Like
    /// [`HandlerHandle::on_error`](crate::HandlerHandle::on_error).
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.failures.on_error(callback);
    }

    /// The last failure; `None` if there was none.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.failures.last_error()
    }

    /// Waits for events and folds a batch of them. When this returns, the changed states are durable and the events are
    /// acked.
    ///
    /// # Errors
    /// See [`ProjectorError`]; the projector must be opened again.
    pub async fn next(&mut self) -> Result<(), ProjectorError> {
        let deliveries = self.subscription.next_batch().await.map_err(pull_error)?;
        self.apply(&deliveries).await
    }

    /// Calls [`Projection::tick`], and publishes the states that it changed.
    ///
    /// # Errors
    /// See [`ProjectorError`]; the projector must be opened again.
    pub async fn tick(&mut self) -> Result<(), ProjectorError> {
        let now = self.settings.clock.wall_ms();
        let (projection, states) = (&mut self.projection, &mut self.states);
        let ticked = std::panic::catch_unwind(AssertUnwindSafe(|| projection.tick(now, states)));
        let staged = match ticked {
            Ok(()) => self.stage(None),
            Err(panic) => Err(panic_text(&*panic).into()),
        };
        if let Err(error) = staged {
            self.states.undo();
            self.report_general(format!("the tick failed: {error}"), AfterFailure::Skip);
        }
        self.flush().await
    }

    async fn apply(&mut self, deliveries: &Deliveries) -> Result<(), ProjectorError> {
        for event in deliveries.events() {
            if self.position.is_some_and(|position| event.seq() <= position.seq) {
                self.figures.lock().skipped += 1;
                continue;
            }
            self.fold(&event);
            self.position = Some(InputPosition { seq: event.seq(), id: event.id() });
            if self.pending.bytes >= PUBLISH_BYTES {
                self.flush().await?;
            }
        }
        // Publish before the ack: if a crash lost the states of an acked input, that input would be lost.
        self.flush().await?;
        drop(deliveries.ack());
        Ok(())
    }

    fn fold(&mut self, event: &Event) {
        let (projection, states) = (&mut self.projection, &mut self.states);
        let folded = std::panic::catch_unwind(AssertUnwindSafe(|| {
            projection.fold(event.json::<P::Input>()?, event, states)
        }));
        let folded = folded.unwrap_or_else(|panic| Err(panic_text(&*panic).into()));
        match folded.and_then(|()| self.stage(Some(event.id()))) {
            Ok(()) => self.figures.lock().folded += 1,
            Err(error) => {
                self.states.undo();
                self.reject(event, &error);
            }
        }
    }

    /// Moves the projection's changes to `pending`, if all of them can be published.
    fn stage(&mut self, cause: Option<Uuid>) -> Result<(), Rejection> {
        let mut staged = Vec::new();
        let mut probe = self.bus.batch();
        for key in self.states.changed() {
            let json = match self.states.get(&key) {
                Some(state) => serde_json::to_vec(state)?,
                None => b"null".to_vec(),
            };
            probe.push_json(self.output.clone(), &json, &self.state_options(&key, cause))?;
            staged.push((key, json));
        }
        self.states.keep();
        for (key, json) in staged {
            self.pending.bytes += key.len() + json.len();
            self.pending.states.insert(key, PendingState { json, cause });
        }
        Ok(())
    }

    fn state_options(&self, key: &str, cause: Option<Uuid>) -> PublishOptions {
        let mut options = PublishOptions { key: Some(key.to_owned()), ..PublishOptions::default() };
        if let Some(cause) = cause {
            options.id = Some(Uuid::new_v5(&Uuid::new_v5(&NAMESPACE, cause.as_bytes()), key.as_bytes()));
            options.caused_by = vec![cause];
        }
        if let Some(position) = self.position {
            let value = position.header(&self.group, &self.input);
            options.headers.insert(POSITION_HEADER.to_owned(), value);
        }
        options
    }

    fn reject(&mut self, event: &Event, error: &Rejection) {
        self.figures.lock().rejected += 1;
        let (topic, seq, id) = (event.topic().clone(), event.seq(), event.id());
        let failed = FailedEvent { topic, seq, id, attempt: 1, max_attempts: 1 };
        self.failures.report(&HandlerFailure::of_event(failed, error.to_string(), AfterFailure::DeadLetter));
        let now = self.settings.clock.wall_ms();
        let (input, why) = (self.input.as_str(), error.to_string());
        let Some(letter) = Rejected::new(event, input, &self.group, &why, now) else { return };
        self.pending.bytes += letter.json.len();
        self.pending.dead_letters.push(letter);
    }

    fn report_general(&self, error: String, next: AfterFailure) {
        self.failures.report(&HandlerFailure::general(error, next));
    }

    /// Publishes all pending changes: those of inputs in one commit, those of a tick in as many commits as their size
    /// needs. If publishing fails, for example because the disk is full, it is retried, unless the bus is unavailable or a
    /// commit is too large.
    async fn flush(&mut self) -> Result<(), ProjectorError> {
        while !self.pending.states.is_empty() || !self.pending.dead_letters.is_empty() {
            self.commit(self.pending.together()).await?;
        }
        self.pending.bytes = 0;
        Ok(())
    }

    /// Publishes the first `states` changed states, and all dead letters, in one commit.
    async fn commit(&mut self, states: usize) -> Result<(), ProjectorError> {
        for letter in std::mem::take(&mut self.pending.dead_letters) {
            self.pending.dead_letters.push(letter.with_next_id(&**self.bus.backend()).await?);
        }
        let mut failures = 0;
        let published = loop {
            match self.turn.publish(&**self.bus.backend(), self.batch(states)?).await? {
                Ok(published) => break published,
                Err(error @ (PublishError::Unavailable(_) | PublishError::BatchTooLarge(_))) => {
                    return Err(error.into());
                }
                Err(error) => {
                    failures += 1;
                    self.report_general(format!("cannot publish states: {error}"), AfterFailure::Retry);
                    tokio::time::sleep(Duration::from_millis(backoff_ms(failures, 0))).await;
                }
            }
        };
        for one in published.iter().take(states).filter(|one| !one.duplicate) {
            if self.next_output != 0 && one.seq != self.next_output {
                self.next_output = 0;
                let (group, output) = (&self.group, &self.output);
                tracing::warn!(
                    "projector {group}: another writer publishes to {output}; if it is a projector of this group, stop one"
                );
            }
            self.next_output += u64::from(self.next_output != 0);
        }
        self.figures.lock().published += states as u64;
        self.pending.dead_letters.clear();
        for _ in 0..states {
            self.pending.states.pop_first();
        }
        Ok(())
    }

    fn batch(&self, states: usize) -> Result<PublishBatch, PublishError> {
        let mut batch = self.bus.batch();
        for (key, PendingState { json, cause }) in self.pending.states.iter().take(states) {
            batch.push_json(self.output.clone(), json, &self.state_options(key, *cause))?;
        }
        for letter in &self.pending.dead_letters {
            // A dead letter that is too large is left out: the event itself stays in its topic.
            let _ = batch.push_json(letter.topic.clone(), &letter.json, &letter.options);
        }
        Ok(batch)
    }
}

impl<P: Projection> std::fmt::Debug for Projector<P> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, input, output, .. } = self;
        write!(formatter, "Projector({group}: {input} -> {output}, {:?})", self.figures())
    }
}

/// Maps the error of a pull.
fn pull_error(error: GroupError) -> ProjectorError {
    match error {
        GroupError::TakenOver => ProjectorError::Superseded,
        other => other.into(),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.as_deref().unwrap_or("(no message)"))
}
