//! Writes dead letters: an event that a group has given up, after too many attempts or on request, is copied to the dead-letter
//! topic of its topic. The writer has its own thread, because it must read the event. If the disk fails, that may take long, and
//! must delay neither the thread that nacked the event nor the timer thread, which expires leases. Only a bus without threads
//! writes dead letters on the calling thread.
//!
//! A dead letter and the settling of its event are one commit. The id of a dead letter is derived from the topic, the group and
//! the event's id, so a retry after a crash does not add a second dead letter. If the event fails again after its dead letter was
//! closed, there is a second one.

use super::groups::act::GroupRuntime;
use super::groups::cell::{GroupCell, GroupTopic};
use super::letter_states::LetterStates;
use super::log_limit::{Allowed, LogLimit};
use super::registry::Registry;
use crate::backend::{BoxFuture, GroupSpec, event_id_of, uuid_of};
use crate::deferred_wakes::DeferredWakes;
use crate::delivery::{GiveUp, Millis};
use crate::engine::{Engine, GroupProgress, MayBlock, NewEvent, StateRecord, TopicId, Visit};
use crate::error::{ReadError, StoreError};
use parking_lot::Mutex;
use prombus_protocol::{
    BodyFields, Topic, Uuid, one_line, put_body_end, put_body_head, put_record, put_string,
};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::Write as _;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

/// The wait before a dead letter that could not be written is retried.
const RETRY_MS: Millis = 1_000;
/// The wait before a retry if the event itself could not be read.
const UNREADABLE_RETRY_MS: Millis = 10_000;
/// The minimum interval at which a group logs that dead letters could not be written.
const NOTICE_MS: Millis = 60_000;
/// The number of dead letters that are logged in [`LOG_WINDOW_MS`]; further ones are only counted.
const LOG_LINES_MAX: u32 = 10;
const LOG_WINDOW_MS: Millis = 10_000;
/// The maximum length of an error in the log, in characters.
const LOG_ERROR_CHARS: usize = 200;
/// Ids of dead letters are UUIDv5 in this namespace. It must never change.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f1c_2a7e_93d4_5b08_a1e7_30c9_54d2_8e6b);

/// Writes the dead letters of all groups, one after the other.
pub(super) struct DeadLetterWriter {
    writing: Arc<Writing>,
    /// The dead letter that is being written. The future may have to wait for the engine.
    current: Mutex<Option<BoxFuture<'static, ()>>>,
}

struct Writing {
    engine: Arc<dyn Engine>,
    runtime: Arc<GroupRuntime>,
    registry: Arc<Registry>,
    letters: Arc<LetterStates>,
    log_limit: LogLimit,
}

/// An event that was given up.
struct Original {
    id: Uuid,
    /// The event as the JSON that consumers get.
    record: Vec<u8>,
}

impl DeadLetterWriter {
    pub(super) fn new(
        engine: Arc<dyn Engine>,
        runtime: Arc<GroupRuntime>,
        registry: Arc<Registry>,
        letters: Arc<LetterStates>,
    ) -> Self {
        let log_limit = LogLimit::new(LOG_LINES_MAX, LOG_WINDOW_MS);
        let writing = Writing { engine, runtime, registry, letters, log_limit };
        Self { writing: Arc::new(writing), current: Mutex::default() }
    }

    /// Writes dead letters until none is left, or until one has to wait for the engine. In the second case the thread is woken
    /// when it can continue.
    pub(super) fn work(&self) {
        self.work_while(|| true);
    }

    fn work_while(&self, may_continue: impl Fn() -> bool) {
        let waker = Waker::from(Arc::new(WorkerWaker(Arc::downgrade(&self.writing.runtime))));
        // `try_lock` fails if another thread is writing dead letters, or this thread further up the call stack.
        while let Some(mut current) = self.current.try_lock() {
            if current.is_none() {
                let Some((cell, give_up)) = self.writing.runtime.dead_letters.pop() else { return };
                let writing = Arc::clone(&self.writing);
                *current = Some(Box::pin(async move {
                    writing.write(&cell, give_up).await;
                    cell.waiters.dead_letter_done();
                }));
            }
            let Some(dead_letter) = current.as_mut() else { return };
            if dead_letter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                return;
            }
            *current = None;
            if !may_continue() {
                return;
            }
        }
    }
}

/// Wakes the thread that writes dead letters when an event that it waits for has been read.
struct WorkerWaker(Weak<GroupRuntime>);

impl Wake for WorkerWaker {
    fn wake(self: Arc<Self>) {
        let Some(runtime) = self.0.upgrade() else { return };
        if runtime.dead_letters.has_thread() {
            runtime.dead_letters.wake();
        } else {
            runtime.timer.wake();
        }
    }
}

/// The loop of the thread, until the queue is stopped.
pub(super) fn run(writer: &Weak<DeadLetterWriter>) {
    let may_block = MayBlock::on_this_thread();
    loop {
        // The thread must not keep the bus alive while it sleeps.
        let Some(strong) = writer.upgrade() else { return };
        let runtime = Arc::clone(&strong.writing.runtime);
        strong.work_while(|| !runtime.dead_letters.is_stopped());
        drop(strong);
        if !runtime.dead_letters.sleep(may_block) {
            return;
        }
    }
}

impl Writing {
    async fn write(&self, cell: &Arc<GroupCell>, give_up: GiveUp) {
        if cell.is_deleted() {
            return;
        }
        let GroupTopic { id: topic_id, name: topic, .. } =
            cell.inspect(|core| core.topic(give_up.position.source).clone());
        let (group, seq) = (&cell.spec.group, give_up.position.seq);
        if topic.is_dead_letter() {
            self.log(&give_up, |attempts| {
                format!("group {group} on {topic}: seq {seq} is parked after {attempts}")
            });
            return self.park(cell, &give_up);
        }
        let written = match self.original(topic_id, seq).await {
            Ok(Some(original)) => match self.new_id(cell, &topic, original.id).await {
                Ok(id) => self.write_dead_letter(cell, topic_id, &topic, &give_up, &original, id),
                Err(error) => Err(error),
            },
            Ok(None) => return self.park(cell, &give_up),
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => {}
            Err(error @ StoreError::TooLarge(_)) => {
                // A retry would not help, because the dead letter is too large. The event itself stays in its topic.
                tracing::error!(
                    "group {group} on {topic}: seq {seq} is given up without a dead letter: {error}"
                );
                self.park(cell, &give_up);
            }
            Err(error) => self.put_off(cell, give_up, &topic, &error),
        }
    }

    /// Settles an event without writing a dead letter.
    fn park(&self, cell: &Arc<GroupCell>, give_up: &GiveUp) {
        self.runtime.act(cell, |core, _| core.machine.park(give_up.position));
    }

    /// Schedules another attempt to write a dead letter that could not be written.
    fn put_off(&self, cell: &Arc<GroupCell>, give_up: GiveUp, topic: &Topic, error: &StoreError) {
        let group = &cell.spec.group;
        let now = self.runtime.clock.steady_ms();
        let mut notice = cell.dead_letter_notice.lock();
        notice.count += 1;
        // Not every failure is logged: each dead letter is retried every second, and there may be thousands of them.
        if now >= notice.next_at {
            let count = std::mem::take(&mut notice.count);
            notice.next_at = now + NOTICE_MS;
            tracing::warn!(
                "group {group} on {topic}: dead letters could not be written {count} times: {error}; retrying; this is \
                 logged at most once a minute"
            );
        }
        drop(notice);
        // If the read failed, the next attempt is later, because a failed read may occupy the disk for seconds.
        let is_read = matches!(error, StoreError::Lookup(_));
        let retry_at = now + if is_read { UNREADABLE_RETRY_MS } else { RETRY_MS };
        // This also records the number of attempts that were used.
        self.runtime.act(cell, |core, _| core.machine.put_off(give_up, retry_at));
        self.runtime.timer.arm(cell, retry_at);
    }

    fn write_dead_letter(
        &self,
        cell: &Arc<GroupCell>,
        topic_id: TopicId,
        topic: &Topic,
        give_up: &GiveUp,
        original: &Original,
        id: Uuid,
    ) -> Result<(), StoreError> {
        let dead_letter_topic = topic.dead_letter();
        let dead_letter_topic_id = self.registry.ensure_dead_letter_topic(&dead_letter_topic)?;
        let ts = self.runtime.clock.wall_ms();
        let body = dead_letter_body(&dead_letter_topic, topic, &cell.spec, &original.record, give_up, ts);
        let dead_letter = NewEvent {
            topic: dead_letter_topic_id,
            id: Some(event_id_of(id)),
            ts,
            key: None,
            body: &body,
            tombstone: false,
        };
        let seq = give_up.position.seq;
        let settled = GroupProgress {
            topic: topic_id,
            settled: vec![(seq, seq)],
            attempts: Vec::new(),
            leased_to: None,
        };
        let settled = StateRecord::Progress { group: cell.number, topics: vec![settled] };
        let _deferred = DeferredWakes::enter();
        let mut is_written = false;
        self.runtime.act_and_append(cell, |core, sending| {
            // If the group was moved meanwhile, the event must not be given up.
            if core.machine.is_giving_up(give_up.position) {
                let records = &self.runtime.records;
                records.append_last(sending, &[dead_letter], (vec![settled], cell), false)?;
                core.machine.gave_up(give_up.position);
                is_written = true;
            }
            Ok::<(), StoreError>(())
        })?;
        if is_written {
            let (group, subscription, event) = (&cell.spec.group, &cell.spec.subscription, original.id);
            self.log(give_up, |attempts| {
                format!(
                    "dead letter: group {group} on {subscription} gave up event {event} ({topic} seq {seq}) after {attempts}"
                )
            });
        }
        Ok(())
    }

    /// The id of the next dead letter of an event.
    async fn new_id(&self, cell: &GroupCell, topic: &Topic, event: Uuid) -> Result<Uuid, StoreError> {
        let first = dead_letter_id(cell, topic, event);
        self.letters.next_id(&topic.dead_letter(), first).await.map_err(store_error)
    }

    /// Logs an event that was given up, unless too many were logged recently. `what` gets the number of attempts.
    fn log(&self, give_up: &GiveUp, what: impl FnOnce(&str) -> String) {
        let Some(Allowed { left_out, is_last }) = self.log_limit.take(self.runtime.clock.steady_ms()) else {
            return;
        };
        let attempts = give_up.attempts;
        let plural = if attempts == 1 { "" } else { "s" };
        let what = what(&format!("{attempts} attempt{plural}"));
        let error = one_line(&give_up.error, LOG_ERROR_CHARS);
        let mut more = String::new();
        if left_out > 0 {
            more = format!("; {left_out} earlier events were not logged");
        }
        if is_last {
            more.push_str("; further ones in the next 10 s are only counted");
        }
        tracing::warn!("{what}: {error}{more}");
    }

    /// The stored event; `None` if it was removed.
    async fn original(&self, topic: TopicId, seq: u64) -> Result<Option<Original>, StoreError> {
        let mut scanner = self.engine.scanner();
        let mut original = None;
        let scanned = poll_fn(|context| {
            scanner.poll_scan(topic, seq, seq, context, &mut |event| {
                let id = uuid_of(event.id);
                let mut record = Vec::with_capacity(event.body.len() + 80);
                put_record(&mut record, id, event.seq, event.body);
                original = Some(Original { id, record });
                Visit::Next
            })
        });
        match scanned.await {
            Ok(_) => Ok(original),
            Err(ReadError::UnknownTopic(_)) => Ok(None),
            Err(error) => Err(store_error(error)),
        }
    }
}

fn store_error(error: ReadError) -> StoreError {
    match error.is_unreadable() {
        true => StoreError::Lookup(error.to_string()),
        false => StoreError::Other(error.to_string()),
    }
}

fn dead_letter_id(cell: &GroupCell, topic: &Topic, id: Uuid) -> Uuid {
    let mut name = Vec::new();
    for part in [topic.as_str(), cell.spec.subscription.as_str(), cell.spec.group.as_str()] {
        name.extend_from_slice(part.as_bytes());
        name.push(0);
    }
    name.extend_from_slice(id.as_bytes());
    Uuid::new_v5(&NAMESPACE, &name)
}

/// The JSON of a dead letter, with the payload `{topic, group, original, err, attempts, ts, subscription}`. `original` is the
/// event as it is stored.
fn dead_letter_body(
    dead_letter_topic: &Topic,
    topic: &Topic,
    spec: &GroupSpec,
    record: &[u8],
    give_up: &GiveUp,
    ts: i64,
) -> Vec<u8> {
    let mut body = Vec::with_capacity(record.len() + 256);
    let fields = BodyFields {
        ts,
        topic: dead_letter_topic.as_str(),
        sid: None,
        key: None,
        partition: None,
        headers: &BTreeMap::new(),
        caused_by: &[],
        tags: &[],
        addressee: None,
    };
    put_body_head(&mut body, &fields);
    body.extend_from_slice(b"{\"topic\":");
    put_string(&mut body, topic.as_str());
    body.extend_from_slice(b",\"group\":");
    put_string(&mut body, spec.group.as_str());
    body.extend_from_slice(b",\"original\":");
    body.extend_from_slice(record);
    body.extend_from_slice(b",\"err\":");
    put_string(&mut body, &give_up.error);
    write!(body, ",\"attempts\":{},\"ts\":{ts},\"subscription\":", give_up.attempts)
        .expect("writing to a vector cannot fail");
    put_string(&mut body, spec.subscription.as_str());
    body.push(b'}');
    put_body_end(&mut body);
    body
}
