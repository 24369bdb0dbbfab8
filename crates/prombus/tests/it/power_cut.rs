//! Random histories of the whole library on the simulated disk, with groups at work and the power cut at any step, also while
//! the bus opens and closes.
//!
//! What is checked: no published event that was answered is lost or changed; nothing that a member has seen is taken back; what
//! was durably settled stays settled; attempts never fall; dead letters come exactly once, and only for events that the group
//! is done with; at the end every event was acked, dead-lettered, or is still delivered. Reads fail
//! at random, for a while or until the disk is repaired: callers get an error or wait, and nothing counts as damaged. `PROMBUS_SEED`
//! and `PROMBUS_HISTORIES` choose what runs.

use crate::support::{Random, setting};
use prombus::delivery::{MemberSettings, Position};
use prombus::store::{LogStore, LogStoreOptions};
use prombus::{
    Backend, Clock, DeadLetter, DeliveryBatch, DurableTicket, GroupName, GroupSpec, Limits, LocalBackend,
    ManualClock, MemberOptions, Membership, Pattern, PublishError, PublishOptions, Published, Publishing,
    PullLimit, SettleOutcome, Start, Topic, Unavailable, Uuid, Verdict,
};
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::Disk;
use prombus_log::{Options, Step};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

const TOPICS: [&str; 3] = ["orders", "heartbeat.received", "t"];
/// Subscription, group, attempts before an event is given up.
const GROUPS: [(&str, &str, u32); 3] =
    [("orders", "billing", 5), ("**", "audit", 1_000), ("orders", "fragile", 2)];

type Check = Result<(), String>;

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(message()) }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// An event for a group.
type Place = (usize, String, u64);

/// A member: its group, and how many attempts an event gets with it.
type AtWork = (usize, Arc<dyn Membership>, u32);

struct Held {
    member: usize,
    group: usize,
    position: Position,
    topic: String,
}

/// What one life of the process has in its hands.
struct Life {
    store: Arc<LogStore>,
    backend: LocalBackend,
    publishing: Vec<(Publishing, Vec<Expected>)>,
    tickets: Vec<(DurableTicket, Place)>,
    members: Vec<Option<AtWork>>,
    held: Vec<Held>,
    /// Acked in this life, since the last seek.
    acked: Vec<Place>,
}

#[derive(Clone, Debug)]
struct Expected {
    topic: String,
    payload: String,
    id: Option<Uuid>,
}

struct History {
    random: Random,
    disk: Disk,
    clock: ManualClock,
    options: Options,
    next_payload: u64,
    /// Answered or seen: topic and seq to id and payload.
    known: BTreeMap<(String, u64), (Uuid, String)>,
    /// Groups whose making was answered.
    made: HashSet<usize>,
    /// Settled durably, since the last seek.
    settled: HashSet<Place>,
    /// Acked at some time, durably or not.
    acked: HashSet<Place>,
    /// The highest attempt that was delivered, since the last seek.
    attempts: HashMap<Place, u32>,
    /// In which life an event was delivered last, since the last seek.
    delivered_in: HashMap<Place, u64>,
    lives: u64,
    /// Groups that went back to the start: an older letter says nothing about where they are now.
    sought: HashSet<usize>,
    letters: u64,
}

impl History {
    fn new(seed: u64, lie: Option<SyncPoint>) -> Self {
        let mut random = Random::new(seed);
        let disk = Disk::new(seed);
        disk.lie_about(lie);
        let options = Options {
            segment_bytes: 1024 * random.between(24, 64),
            reserve_bytes: 8 * 1024,
            prepared_segments: random.between(1, 2) as usize,
            batch_bytes: random.between(3, 8) as usize * 1024,
            tail_bytes: random.below(3) as usize * 4096,
            checkpoint_bytes: 1024 * random.between(1, 12),
            index_cache_bytes: random.below(2) as usize * 4096,
            threads: false,
            ..Options::default()
        };
        Self {
            random,
            disk,
            clock: ManualClock::new(1_700_000_000_000),
            options,
            next_payload: 1,
            known: BTreeMap::new(),
            made: HashSet::new(),
            settled: HashSet::new(),
            acked: HashSet::new(),
            attempts: HashMap::new(),
            delivered_in: HashMap::new(),
            lives: 0,
            sought: HashSet::new(),
            letters: 0,
        }
    }

    fn run(&mut self) -> Check {
        for _ in 0..self.random.between(2, 4) {
            if !self.random.one_in(6) {
                let reach = [20, 60, 150, 400][self.random.below(4) as usize];
                self.disk.cut_after(self.random.between(1, reach));
            }
            self.lives += 1;
            self.life()?;
        }
        self.disk.cut_after(u64::MAX);
        self.disk.make_readable();
        let mut life = self.open()?.ok_or("the bus did not open with the power on")?;
        self.check_events(&life)?;
        self.drain(&mut life)
    }

    /// `None` when the power went off.
    fn open(&mut self) -> Result<Option<Life>, String> {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let options = LogStoreOptions { log: self.options.clone() };
        let store = match LogStore::open_storage(Arc::new(self.disk.clone()), options, Arc::clone(&clock)) {
            Ok(store) => Arc::new(store),
            Err(_) if self.disk.is_off() => return Ok(None),
            Err(prombus::OpenError::Log(prombus_log::OpenError::Unreadable { .. }))
                if self.has_read_errors() =>
            {
                // It refused and changed nothing: with a readable disk everything must be there.
                self.disk.make_readable();
                return self.open();
            }
            Err(error) => return Err(format!("open: {error}")),
        };
        let shared = Arc::clone(&store) as Arc<dyn prombus::store::Store>;
        let backend = LocalBackend::open_without_timer(shared, clock, Limits::default())
            .map_err(|error| format!("open: {error}"))?;
        let (publishing, tickets, members, held, acked) = Default::default();
        Ok(Some(Life { store, backend, publishing, tickets, members, held, acked }))
    }

    fn life(&mut self) -> Check {
        let Some(mut life) = self.open()? else {
            self.disk.power_cut();
            return Ok(());
        };
        if !self.disk.is_off() {
            self.disk.make_readable();
            self.check_events(&life)?;
            self.check_letters(&life)?;
        }
        for _ in 0..self.random.between(20, 160) {
            if self.disk.is_off() {
                break;
            }
            self.step(&mut life)?;
            self.take_answers(&mut life)?;
        }
        match self.random.below(8) {
            0 | 1 if !self.disk.is_off() => {
                // In order: members leave, and everything acked becomes durable, if the power stays on.
                let closed = life.backend.close_blocking();
                self.take_answers(&mut life)?;
                if closed.is_ok() {
                    self.settled.extend(life.acked.drain(..));
                }
                drop(life);
                if self.random.one_in(2) || self.disk.is_off() {
                    self.disk.power_cut();
                }
            }
            2 | 3 => {
                // kill -9: the page cache stays.
                let survivor = self.disk.fork();
                survivor.reseed(self.random.next());
                self.disk.cut_after(0);
                drop(life);
                self.disk = survivor;
            }
            _ => {
                self.disk.cut_after(0);
                drop(life);
                self.disk.power_cut();
            }
        }
        Ok(())
    }

    /// Polls a future, with the log's work between polls; `None` when it does not come to an end because the power is off.
    fn drive<F: Future>(&mut self, backend: &LocalBackend, future: F, store: &LogStore) -> Option<F::Output> {
        let mut future = pin!(future);
        for _ in 0..200 {
            if let Poll::Ready(output) = poll_once(future.as_mut()) {
                return Some(output);
            }
            store.log().step_commit();
            store.log().step_housekeeping();
            backend.tick();
        }
        None
    }

    /// Whether a read has failed: then lookups and opens may be refused.
    fn has_read_errors(&self) -> bool {
        self.disk.failed_reads() > 0
    }

    /// Makes some of the next reads fail, or all reads of a place until the disk is repaired.
    fn break_reads(&mut self) {
        match self.random.below(4) {
            0 | 1 => self.disk.fail_reads(self.random.below(6), self.random.between(1, 12)),
            2 => {
                let names: Vec<String> = self
                    .disk
                    .names()
                    .into_iter()
                    .filter(|name| name.ends_with("g") || name.ends_with("x"))
                    .collect();
                if !names.is_empty() {
                    let name = &names[self.random.below(names.len() as u64) as usize];
                    let start = self.random.below(30_000);
                    self.disk.make_unreadable(name, start..start + self.random.between(1, 3_000));
                }
            }
            _ => self.disk.make_readable(),
        }
    }

    fn step(&mut self, life: &mut Life) -> Check {
        if self.random.one_in(12) {
            self.break_reads();
        }
        match self.random.below(32) {
            0..=6 => self.publish(life)?,
            7..=11 => {
                life.store.log().step_commit();
            }
            12 | 13 => {
                life.store.log().step_housekeeping();
            }
            14..=15 => self.join(life)?,
            16..=20 => self.pull(life)?,
            21..=25 => self.settle(life, Verdict::Ack),
            26 => self.settle(life, Verdict::Nack { delay_ms: Some(0), reason: Some("no \"luck\"\n") }),
            27 => self.settle(life, Verdict::Nack { delay_ms: None, reason: None }),
            28 => self.part(life),
            29 => {
                let by = [1, 5, 200, 40_000][self.random.below(4) as usize];
                self.clock.advance_ms(by);
                life.backend.tick();
            }
            30 if self.random.one_in(12) => self.seek(life)?,
            _ => {
                life.backend.tick();
                life.backend.flush();
            }
        }
        Ok(())
    }

    fn publish(&mut self, life: &mut Life) -> Check {
        let mut batch = life.backend.batch();
        let mut expected = Vec::new();
        for _ in 0..self.random.between(1, 4) {
            let topic = TOPICS[self.random.below(3) as usize].to_owned();
            let payload = format!("{{\"n\":{},\"pad\":\"{}\"}}", self.next_payload, "x".repeat(60));
            self.next_payload += 1;
            let id = self.random.one_in(3).then(|| Uuid::from_u128(u128::from(self.random.next()) << 64 | 7));
            let options = PublishOptions { id, ..PublishOptions::default() };
            let name = Topic::new(&topic).map_err(|error| error.to_string())?;
            batch.push_json(name, payload.as_bytes(), &options).map_err(|error| error.to_string())?;
            expected.push(Expected { topic, payload, id });
        }
        let mut publishing = life.backend.publish(batch);
        if let Poll::Ready(Err(error)) = poll_once(Pin::new(&mut publishing)) {
            let is_lookup = matches!(error, PublishError::Lookup(_)) && self.has_read_errors();
            return ensure(is_lookup || self.disk.is_off(), || format!("publish: {error}"));
        }
        life.publishing.push((publishing, expected));
        Ok(())
    }

    /// Notes what was answered by now.
    fn take_answers(&mut self, life: &mut Life) -> Check {
        let mut at = 0;
        while at < life.publishing.len() {
            match poll_once(Pin::new(&mut life.publishing[at].0)) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) => {
                    let (_, expected) = life.publishing.swap_remove(at);
                    match answer {
                        Ok(published) => self.published(&published, expected)?,
                        // It was not in line yet when the bus was closed.
                        Err(PublishError::Unavailable(Unavailable::Closed)) => {}
                        Err(PublishError::Lookup(_)) if self.has_read_errors() => {}
                        Err(error) => ensure(self.disk.is_off(), || format!("publish: {error}"))?,
                    }
                }
            }
        }
        let mut at = 0;
        while at < life.tickets.len() {
            match poll_once(Pin::new(&mut life.tickets[at].0)) {
                Poll::Pending => at += 1,
                Poll::Ready(answer) => {
                    let (_, place) = life.tickets.swap_remove(at);
                    match answer {
                        Ok(()) => {
                            self.settled.insert(place);
                        }
                        Err(error) => ensure(self.disk.is_off(), || format!("ack: {error}"))?,
                    }
                }
            }
        }
        Ok(())
    }

    fn published(&mut self, published: &[Published], expected: Vec<Expected>) -> Check {
        for (published, expected) in published.iter().zip(expected) {
            ensure(!published.duplicate, || format!("{expected:?} was called a duplicate"))?;
            ensure(expected.id.is_none_or(|id| id == published.id), || {
                format!("{expected:?} got another id")
            })?;
            let place = (expected.topic, published.seq);
            let known = self.known.insert(place.clone(), (published.id, expected.payload.clone()));
            ensure(known.is_none_or(|known| known == (published.id, expected.payload)), || {
                format!("{place:?} was given out twice")
            })?;
        }
        Ok(())
    }

    fn join(&mut self, life: &mut Life) -> Check {
        if life.members.iter().flatten().count() >= 5 {
            return Ok(());
        }
        let group = self.random.below(3) as usize;
        let (subscription, name, max_attempts) = GROUPS[group];
        let spec = GroupSpec {
            subscription: Pattern::new(subscription).map_err(|error| error.to_string())?,
            group: GroupName::new(name).map_err(|error| error.to_string())?,
            topics: Vec::new(),
            filter: None,
            from: Start::Earliest,
            expire_ms: None,
        };
        let settings = MemberSettings {
            max_in_flight: self.random.between(1, 40) as u32,
            batch_size: self.random.between(1, 12) as u32,
            ack_timeout_ms: [100, 30_000][self.random.below(2) as usize],
            max_attempts,
            max_unsettled: self.random.between(5, 200) as u32,
            passes_unreadable: true,
        };
        let backend = life.backend.clone();
        let joining = backend.join(spec, MemberOptions { settings, ..MemberOptions::default() });
        match self.drive(&backend, joining, &life.store) {
            Some(Ok(joined)) => {
                ensure(!(joined.created && self.made.contains(&group)), || format!("{name} was lost"))?;
                self.made.insert(group);
                life.members.push(Some((group, joined.membership, max_attempts)));
                Ok(())
            }
            Some(Err(prombus::GroupError::Read(error))) if error.is_unreadable() => Ok(()),
            Some(Err(error)) => ensure(self.disk.is_off(), || format!("join: {error}")),
            None => ensure(self.disk.is_off(), || "join never came to an end".to_owned()),
        }
    }

    fn any_member(&mut self, life: &Life) -> Option<usize> {
        let there: Vec<usize> = (0..life.members.len()).filter(|&at| life.members[at].is_some()).collect();
        (!there.is_empty()).then(|| there[self.random.below(there.len() as u64) as usize])
    }

    fn pull(&mut self, life: &mut Life) -> Check {
        let Some(at) = self.any_member(life) else { return Ok(()) };
        let (group, member, max_attempts) = life.members[at].clone().ok_or("chosen among those there")?;
        let mut batch = DeliveryBatch::default();
        let limit = PullLimit { events: self.random.between(1, 20) as u32, ..PullLimit::default() };
        match member.poll_pull(limit, &mut batch, &mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return ensure(self.disk.is_off(), || format!("pull: {error}")),
        }
        for item in batch.items() {
            let topic = batch.topic(item).to_string();
            let seq = item.position.seq;
            let place = (group, topic.clone(), seq);
            ensure(!self.settled.contains(&place), || format!("{place:?} was settled and came again"))?;
            let before = self.attempts.insert(place.clone(), item.attempt).unwrap_or(0);
            ensure(item.attempt >= before, || {
                format!("{place:?}: attempt {} after attempt {before}", item.attempt)
            })?;
            let earlier = self.delivered_in.insert(place.clone(), self.lives);
            let is_from_before = earlier.is_some_and(|earlier| earlier < self.lives);
            ensure(!is_from_before || item.reason.is_some(), || {
                format!("{place:?} was delivered before the power went, and comes without a reason")
            })?;
            ensure(item.attempt <= max_attempts, || format!("{place:?}: attempt {}", item.attempt))?;
            let payload = String::from_utf8_lossy(batch.body(item)).into_owned();
            let event = (Uuid::from_u128(item.id.as_u128()), payload_of(&payload));
            let known = self.known.entry((topic.clone(), seq)).or_insert_with(|| event.clone());
            ensure(*known == event, || format!("{place:?} is {event:?}, not {known:?}"))?;
            life.held.push(Held { member: at, group, position: item.position, topic });
        }
        Ok(())
    }

    fn settle(&mut self, life: &mut Life, verdict: Verdict<'_>) {
        for _ in 0..self.random.between(1, 6) {
            if life.held.is_empty() {
                return;
            }
            let at = self.random.below(life.held.len() as u64) as usize;
            let held = life.held.swap_remove(at);
            let Some((_, member, _)) = &life.members[held.member] else { continue };
            let mut outcomes = Vec::new();
            let ticket = member.settle(&[(held.position, verdict)], &mut outcomes);
            if outcomes == [SettleOutcome::Counted] && verdict == Verdict::Ack {
                let place = (held.group, held.topic, held.position.seq);
                self.acked.insert(place.clone());
                life.acked.push(place.clone());
                if !self.random.one_in(3) {
                    life.tickets.push((ticket, place));
                }
            }
        }
    }

    /// A member leaves, or is lost.
    fn part(&mut self, life: &mut Life) {
        let Some(at) = self.any_member(life) else { return };
        if let Some((_, member, _)) = life.members[at].take()
            && self.random.one_in(2)
        {
            drop(member.leave());
        }
    }

    fn seek(&mut self, life: &mut Life) -> Check {
        let group = self.random.below(3) as usize;
        let (subscription, name, _) = GROUPS[group];
        let backend = life.backend.clone();
        let sought = self.drive(&backend, backend.seek(subscription, name, Start::Earliest), &life.store);
        match sought {
            Some(Ok(())) => {}
            Some(Err(prombus::GroupError::UnknownGroup { .. })) => return Ok(()),
            Some(Err(prombus::GroupError::Read(error))) if error.is_unreadable() => return Ok(()),
            Some(Err(_)) | None if self.disk.is_off() => {}
            Some(Err(error)) => return Err(format!("seek: {error}")),
            None => return Err("seek never came to an end".to_owned()),
        }
        // Also if it was not answered: it may have come to the disk.
        self.settled.retain(|place| place.0 != group);
        self.attempts.retain(|place, _| place.0 != group);
        self.delivered_in.retain(|place, _| place.0 != group);
        life.tickets.retain(|(_, place)| place.0 != group);
        life.acked.retain(|place| place.0 != group);
        self.sought.insert(group);
        Ok(())
    }

    fn read_all(&mut self, life: &Life, topic: &str) -> Result<Vec<(u64, Uuid, String)>, String> {
        let Ok(topic) = Topic::new(topic) else { return Err(format!("{topic:?} is no topic")) };
        let mut all = Vec::new();
        let mut from = 1;
        loop {
            let read = pin!(life.backend.read(&topic, from, PullLimit { events: 9, bytes: 5_000 }));
            let chunk = match poll_once(read) {
                Poll::Ready(Ok(chunk)) => chunk,
                Poll::Ready(Err(prombus::ReadError::UnknownTopic(_))) => return Ok(all),
                Poll::Ready(Err(error)) => return Err(format!("read: {error}")),
                Poll::Pending => return Err("a read waited".to_owned()),
            };
            for item in chunk.events.items() {
                let body = String::from_utf8_lossy(chunk.events.body(item)).into_owned();
                all.push((item.position.seq, Uuid::from_u128(item.id.as_u128()), body));
            }
            if chunk.next_seq == from {
                return Ok(all);
            }
            from = chunk.next_seq;
        }
    }

    /// Everything that was answered or seen is there, unchanged.
    fn check_events(&mut self, life: &Life) -> Check {
        for topic in TOPICS {
            let events = self.read_all(life, topic)?;
            let seqs: Vec<u64> = events.iter().map(|(seq, ..)| *seq).collect();
            ensure(seqs.iter().copied().eq(1..=seqs.len() as u64), || format!("{topic} has {seqs:?}"))?;
            let known = self.known.range((topic.to_owned(), 0)..=(topic.to_owned(), u64::MAX));
            for ((_, seq), (id, payload)) in known {
                let event = events.get(*seq as usize - 1).ok_or_else(|| format!("{topic} lost seq {seq}"))?;
                let there = (event.1, payload_of(&event.2));
                ensure(there == (*id, payload.clone()), || format!("{topic} {seq} is {there:?}"))?;
            }
        }
        Ok(())
    }

    /// Each dead letter is there once, and its group is done with the event.
    fn check_letters(&mut self, life: &Life) -> Result<HashSet<Place>, String> {
        let mut lettered = HashSet::new();
        for topic in TOPICS {
            for (_, _, body) in self.read_all(life, &format!("dlq.{topic}"))? {
                let letter: DeadLetter = serde_json::from_str(&payload_of(&body))
                    .map_err(|error| format!("a dead letter is no JSON: {error}: {body}"))?;
                let group = GROUPS.iter().position(|(_, name, _)| *name == letter.group);
                let group = group.ok_or_else(|| format!("a letter of {}", letter.group))?;
                ensure(letter.attempts == GROUPS[group].2, || format!("{} attempts", letter.attempts))?;
                ensure(letter.topic.as_str() == topic, || format!("a letter of {}", letter.topic))?;
                let place = (group, topic.to_owned(), letter.original.seq);
                let known = self.known.get(&(topic.to_owned(), letter.original.seq));
                let original = (letter.original.id, letter.original.payload.get().to_owned());
                ensure(known == Some(&original), || format!("the letter of {place:?} holds {original:?}"))?;
                ensure(lettered.insert(place.clone()), || format!("two dead letters of {place:?}"))?;
            }
        }
        self.settled.extend(lettered.iter().filter(|place| !self.sought.contains(&place.0)).cloned());
        self.letters += lettered.len() as u64;
        Ok(lettered)
    }

    /// With healthy members everything that is left is delivered, and nothing else.
    fn drain(&mut self, life: &mut Life) -> Check {
        let lettered = self.check_letters(life)?;
        let mut delivered: HashSet<Place> = HashSet::new();
        for group in self.made.clone() {
            let (subscription, name, max_attempts) = GROUPS[group];
            let spec = GroupSpec {
                subscription: Pattern::new(subscription).map_err(|error| error.to_string())?,
                group: GroupName::new(name).map_err(|error| error.to_string())?,
                topics: Vec::new(),
                filter: None,
                from: Start::Latest,
                expire_ms: None,
            };
            let settings = MemberSettings { max_attempts: max_attempts + 100, ..MemberSettings::default() };
            let backend = life.backend.clone();
            let joining = backend.join(spec, MemberOptions { settings, ..MemberOptions::default() });
            let joined = self.drive(&backend, joining, &life.store).ok_or("the join never ended")?;
            let joined = joined.map_err(|error| format!("join: {error}"))?;
            ensure(!joined.created, || format!("{name} was lost"))?;
            let mut batch = DeliveryBatch::default();
            let mut quiet = 0;
            while quiet < 3 {
                let mut context = Context::from_waker(Waker::noop());
                match joined.membership.poll_pull(PullLimit::default(), &mut batch, &mut context) {
                    Poll::Pending => {
                        quiet += 1;
                        self.clock.advance_ms(3_600_000);
                        life.backend.tick();
                        let log = life.store.log();
                        while log.step_commit() == Step::Worked || log.step_housekeeping() == Step::Worked {}
                        continue;
                    }
                    Poll::Ready(pulled) => pulled.map_err(|error| format!("pull: {error}"))?,
                }
                quiet = 0;
                let mut verdicts = Vec::new();
                for item in batch.items() {
                    let place = (group, batch.topic(item).to_string(), item.position.seq);
                    ensure(!self.settled.contains(&place), || {
                        format!("{place:?} was settled and came again")
                    })?;
                    ensure(delivered.insert(place.clone()), || format!("{place:?} came twice"))?;
                    verdicts.push((item.position, Verdict::Ack));
                }
                drop(joined.membership.settle(&verdicts, &mut Vec::new()));
            }
            for (topic, seq) in self.known.keys() {
                if Pattern::new(subscription).is_ok_and(|pattern| pattern.matches(topic)) {
                    let place = (group, topic.clone(), *seq);
                    let is_there = self.acked.contains(&place)
                        || delivered.contains(&place)
                        || lettered.contains(&place);
                    ensure(is_there, || format!("{place:?} was lost"))?;
                }
            }
        }
        let infos = pin!(life.backend.groups());
        let Poll::Ready(Ok(infos)) = poll_once(infos) else { return Err("groups() waited".to_owned()) };
        for info in infos {
            // One whose making was not answered may be there or not; nobody has drained it.
            let group = GROUPS.iter().position(|(_, name, _)| *name == info.group);
            if !group.is_some_and(|group| self.made.contains(&group)) {
                continue;
            }
            ensure(info.lag == 0 && info.in_flight == 0, || format!("at the end: {info:?}"))?;
        }
        let stats = life.store.stats();
        ensure(stats.faults == 0, || format!("a read error was taken for damage: {stats:?}"))
    }
}

/// The payload stands last in what is kept.
fn payload_of(body: &str) -> String {
    prombus::Body::new(body.as_bytes()).payload().unwrap_or_default().to_owned()
}

fn run_histories(first_seed: u64, histories: u64) -> u64 {
    let next = AtomicU64::new(first_seed);
    let letters = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first_seed + histories {
                        return;
                    }
                    let mut history = History::new(seed, None);
                    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.run()));
                    match ran {
                        Ok(Ok(())) => letters.fetch_add(history.letters, Ordering::Relaxed),
                        Ok(Err(why)) => panic!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1: {why}"),
                        Err(_) => panic!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1: panicked, see above"),
                    };
                }
            });
        }
    });
    letters.into_inner()
}

#[test]
fn a_power_cut_at_any_step_loses_nothing_and_brings_nothing_back() {
    let (seed, histories) = (setting("PROMBUS_SEED", 1), setting("PROMBUS_HISTORIES", 2_500));
    println!("PROMBUS_SEED={seed} PROMBUS_HISTORIES={histories}");
    let letters = run_histories(seed, histories);
    println!("{letters} dead letters looked at");
    assert!(histories < 100 || letters > 0, "no history had a dead letter");
}

/// The suite is worth something: on a disk that does not do the one sync on which every answer rests, it fails.
#[test]
fn the_suite_fails_when_the_log_is_not_synced() {
    let found = (1..=300).find(|&seed| {
        let run = || History::new(seed, Some(SyncPoint::LogData)).run().is_err();
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        ran.unwrap_or(true) && History::new(seed, None).run().is_ok()
    });
    assert!(found.is_some(), "300 histories on a disk that lies, and nothing was missed");
}
