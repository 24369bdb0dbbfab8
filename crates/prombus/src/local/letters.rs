//! Writing dead letters: the letter and the settling of the event are one commit. The letter's id is made from topic, group and
//! event, so a second try after a crash adds nothing.

use super::cell::{GroupCell, GroupTopic};
use super::quiet::Quiet;
use super::{Local, TopicRefused};
use crate::backend::{event_id_of, uuid_of};
use crate::delivery::{GiveUp, Millis};
use crate::error::StoreError;
use crate::store::{GroupProgress, NewEvent, StateRecord, TopicId, Visit};
use prombus_protocol::{BodyFields, Topic, Uuid, put_body_end, put_body_head, put_record, put_string};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

/// When a letter could not be written, it is tried again after this time.
const RETRY_MS: Millis = 1_000;
/// The same when the event itself could not be read.
const UNREADABLE_RETRY_MS: Millis = 10_000;
/// A group says so often at most that dead letters could not be written.
const NOTICE_MS: Millis = 60_000;
/// Ids of dead letters are UUIDv5 in this namespace, chosen once.
const NAMESPACE: Uuid = Uuid::from_u128(0x6f1c_2a7e_93d4_5b08_a1e7_30c9_54d2_8e6b);

enum Original {
    There { id: Uuid, record: Vec<u8> },
    Gone,
}

impl Local {
    pub(crate) fn write_letter(&self, cell: &Arc<GroupCell>, give_up: GiveUp) {
        let GroupTopic { id: topic_id, name: topic, .. } =
            cell.core.lock().topics[give_up.position.source.0 as usize].clone();
        let group = &cell.spec.group;
        if topic.is_dead_letter() {
            tracing::warn!(
                "group {group} on {topic}: seq {} is parked after {} attempts: {}",
                give_up.position.seq,
                give_up.attempts,
                give_up.error
            );
            return self.park(cell, &give_up);
        }
        match self.try_write_letter(cell, topic_id, &topic, &give_up) {
            Ok(()) => {}
            Err(error @ StoreError::TooLarge(_)) => {
                // It will never fit; the event itself stays in its topic.
                let seq = give_up.position.seq;
                tracing::error!(
                    "group {group} on {topic}: seq {seq} is given up without a dead letter: {error}"
                );
                self.park(cell, &give_up);
            }
            Err(error) => {
                let now = self.clock.steady_ms();
                let mut notice = cell.letter_notice.lock();
                notice.count += 1;
                // Each letter is tried every second, and there may be thousands.
                if now >= notice.next_at {
                    let count = std::mem::take(&mut notice.count);
                    notice.next_at = now + NOTICE_MS;
                    tracing::warn!(
                        "group {group} on {topic}: dead letters could not be written {count} times: {error}; they are tried \
                         again, and this is logged at most once a minute"
                    );
                }
                drop(notice);
                // A failed read may take the disk seconds.
                let retry_ms =
                    if matches!(error, StoreError::Lookup(_)) { UNREADABLE_RETRY_MS } else { RETRY_MS };
                let mut core = cell.core.lock();
                core.machine.put_off(give_up, now + retry_ms);
                // What the failure was answered with is written down: its attempts.
                let aftermath = self.write_down(cell, &mut core);
                drop(core);
                self.follow_up(cell, aftermath);
                self.timer.arm(cell, now + retry_ms);
            }
        }
    }

    /// Settles an event without a letter.
    fn park(&self, cell: &Arc<GroupCell>, give_up: &GiveUp) {
        let mut core = cell.core.lock();
        core.machine.park(give_up.position);
        let aftermath = self.write_down(cell, &mut core);
        drop(core);
        self.follow_up(cell, aftermath);
    }

    fn try_write_letter(
        &self,
        cell: &Arc<GroupCell>,
        topic_id: TopicId,
        topic: &Topic,
        give_up: &GiveUp,
    ) -> Result<(), StoreError> {
        let seq = give_up.position.seq;
        let (id, record) = match self.original(topic_id, seq)? {
            Original::There { id, record } => (id, record),
            Original::Gone => {
                self.park(cell, give_up);
                return Ok(());
            }
        };
        let letters = topic.dead_letter();
        let letters_id = self.ensure_topic(&letters, None).map_err(|refused| match refused {
            TopicRefused::Store(error) => error,
            TopicRefused::TooMany(limit) => StoreError::Other(format!("more than {limit} topics")),
        })?;
        let ts = self.clock.wall_ms();
        let body = letter_body(&letters, topic, cell.spec.group.as_str(), &record, give_up, ts);
        let letter = NewEvent {
            topic: letters_id,
            id: Some(event_id_of(letter_id(cell, topic, id))),
            ts,
            key: None,
            body: &body,
            tombstone: false,
        };
        let settled = GroupProgress {
            topic: topic_id,
            settled: vec![(seq, seq)],
            attempts: Vec::new(),
            leased_to: None,
        };
        let settled = StateRecord::Progress { group: cell.number, topics: vec![settled] };

        let _quiet = Quiet::enter();
        let mut sending = self.flusher.lock();
        let mut core = cell.core.lock();
        // A seek may have come in between: then the event is not to be given up any more.
        let mut appended = Ok(0);
        if core.machine.is_giving_up(give_up.position) {
            appended = self.flusher.append_last(&mut sending, self, &[letter], (vec![settled], cell), false);
            if appended.is_ok() {
                core.machine.gave_up(give_up.position);
            }
        }
        let has_work = core.machine.has_work();
        drop(core);
        drop(sending);
        self.flusher.after(&*self.store, &*self.clock);
        if has_work {
            self.call(cell);
        }
        appended.map(|_| ())
    }

    fn original(&self, topic: TopicId, seq: u64) -> Result<Original, StoreError> {
        let mut original = Original::Gone;
        let scanned = self.store.scanner().scan(topic, seq, seq, &mut |event| {
            let id = uuid_of(event.id);
            let mut record = Vec::with_capacity(event.body.len() + 80);
            put_record(&mut record, id, event.seq, event.body);
            original = Original::There { id, record };
            Visit::Next
        });
        scanned.map_err(|error| match error.is_unreadable() {
            true => StoreError::Lookup(error.to_string()),
            false => StoreError::Other(error.to_string()),
        })?;
        Ok(original)
    }
}

fn letter_id(cell: &GroupCell, topic: &Topic, id: Uuid) -> Uuid {
    let mut name = Vec::new();
    for part in [topic.as_str(), cell.spec.subscription.as_str(), cell.spec.group.as_str()] {
        name.extend_from_slice(part.as_bytes());
        name.push(0);
    }
    name.extend_from_slice(id.as_bytes());
    Uuid::new_v5(&NAMESPACE, &name)
}

/// The letter's JSON, `{topic, group, original, err, attempts, ts}` as the payload. The original goes in as it is kept.
fn letter_body(
    letters: &Topic,
    topic: &Topic,
    group: &str,
    record: &[u8],
    give_up: &GiveUp,
    ts: i64,
) -> Vec<u8> {
    let mut body = Vec::with_capacity(record.len() + 256);
    let fields = BodyFields {
        ts,
        topic: letters.as_str(),
        sid: None,
        key: None,
        partition: None,
        headers: &BTreeMap::new(),
        caused_by: &[],
        tags: &[],
    };
    put_body_head(&mut body, &fields);
    body.extend_from_slice(b"{\"topic\":");
    put_string(&mut body, topic.as_str());
    body.extend_from_slice(b",\"group\":");
    put_string(&mut body, group);
    body.extend_from_slice(b",\"original\":");
    body.extend_from_slice(record);
    body.extend_from_slice(b",\"err\":");
    put_string(&mut body, &give_up.error);
    write!(body, ",\"attempts\":{},\"ts\":{ts}}}", give_up.attempts).expect("a vector takes everything");
    put_body_end(&mut body);
    body
}
