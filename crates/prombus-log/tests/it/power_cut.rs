//! Random histories on the simulated disk, with the power cut at any step, also while the log recovers, and twice in a row.
//!
//! The rule that is checked: appends are durable in the order they were made. After a cut the log holds exactly the first K of
//! them, whole, in order, once, with K no smaller than what was acknowledged or seen before the cut. Cleaning may take what is
//! dead and nothing else, what it took stays away, and the publishers' ids of that stay duplicates. A backup that was answered
//! with OK holds what was acknowledged before, whatever becomes of its disk. Reads fail at any moment too, for a while or until
//! the sectors are made readable again: that may refuse an open, an append or a backup, and must cost nothing. `PROMBUS_SEED` and
//! `PROMBUS_HISTORIES` choose what runs.
//!
//! Longer than other files: a history is one thing, and what it does, knows and checks is read together.

use crate::support::{HandClock, Listener, Random, Read, Remembered, read_all, setting};
use parking_lot::Mutex;
use prombus_log::storage::SyncPoint;
use prombus_log::storage::simulated::{Disk, Step as DiskStep};
use prombus_log::{
    Append, AppendError, BackupError, Chunk, CleanOptions, Clock, EventId, LiveCount, Liveness, Log,
    MissingReason, NewEvent, NewState, OpenError, Options, Outcomes, ReadError, ReadLimit, Ticket, TopicId,
    VerifyError, verify_storage,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TOPICS: [&str; 4] = ["orders", "heartbeat.received", "t", "process.state"];
/// Those that are compacted.
const SPARSE: [&str; 2] = ["heartbeat.received", "process.state"];

/// What was appended, whether or not it came to the disk.
#[derive(Clone)]
struct Appended {
    ticket: Option<Ticket>,
    /// When, by the clock; the log's commit time is this or later.
    at_ms: i64,
    events: Vec<Expected>,
    states: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Expected {
    topic: &'static str,
    seq: u64,
    id: EventId,
    ts: i64,
    key: Option<Vec<u8>>,
    body: Vec<u8>,
}

/// One history.
struct History {
    random: Random,
    disk: Disk,
    clock: Arc<HandClock>,
    /// The latest time that the clock showed; it also goes back.
    latest_ms: i64,
    options: Options,
    listener: Arc<Listener>,
    /// Everything appended that may still be there, in order.
    appended: Vec<Appended>,
    /// How many of them must be there.
    durable: usize,
    next_number: u64,
    dead: Dead,
    /// What cleaning took for good: it must never be served again.
    removed: HashSet<(&'static str, u64)>,
    lie: Option<SyncPoint>,
    backups: usize,
    newest_own_id: EventId,
    passing: PassingTopics,
    cuts: HashSet<DiskStep>,
    refused: Refused,
}

/// What read errors refused.
#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    opens: u64,
    appends: u64,
    backups: u64,
    reads: u64,
    cleanings: u64,
}

impl Refused {
    fn add(&mut self, other: Self) {
        self.opens += other.opens;
        self.appends += other.appends;
        self.backups += other.backups;
        self.reads += other.reads;
        self.cleanings += other.cleanings;
    }
}

/// What is dead, by topic.
#[derive(Clone, Default)]
struct Dead {
    /// The first seq that retention has not passed.
    cuts: BTreeMap<&'static str, u64>,
    /// In compacted topics: up to here only every fifth event lives.
    floors: BTreeMap<&'static str, u64>,
}

impl Dead {
    fn has(&self, topic: &str, seq: u64) -> bool {
        let is_cut = self.cuts.get(topic).is_some_and(|&cut| seq < cut);
        is_cut || self.floors.get(topic).is_some_and(|&floor| seq <= floor && seq % 5 != 0)
    }
}

/// What the log is told.
struct Living<'a> {
    log: &'a Log,
    dead: &'a Dead,
    /// Whether the numbers of live events are known.
    counts: bool,
}

impl Living<'_> {
    fn name(&self, topic: TopicId) -> Option<&'static str> {
        TOPICS.into_iter().find(|name| self.log.topic(name) == Some(topic))
    }
}

impl Liveness for Living<'_> {
    fn first_live(&self, topic: TopicId) -> u64 {
        self.name(topic).and_then(|name| self.dead.cuts.get(name).copied()).unwrap_or(1)
    }

    fn is_sparse(&self, topic: TopicId) -> bool {
        self.name(topic).is_some_and(|name| SPARSE.contains(&name))
    }

    fn live_in(&self, topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let events = (first_seq..=last_seq).filter(|&seq| self.is_live(topic, seq)).count() as u64;
        self.counts.then_some(LiveCount { events, bytes: events * 150 })
    }

    fn is_live(&self, topic: TopicId, seq: u64) -> bool {
        self.name(topic).is_none_or(|name| !self.dead.has(name, seq))
    }
}

/// Topics that are made and deleted again.
#[derive(Default)]
struct PassingTopics {
    made: u64,
    alive: Vec<String>,
    /// Deleted, and perhaps not durably.
    deleting: Vec<(Ticket, String)>,
    /// Deleted for good: they must never come back.
    deleted: HashSet<String>,
    /// The highest internal id that was durable: no new topic may have it or a lower one.
    highest_id: u32,
}

type Check = Result<(), String>;

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(message()) }
}

impl History {
    fn new(seed: u64, lie: Option<SyncPoint>) -> Self {
        let mut random = Random::new(seed);
        let disk = Disk::new(seed);
        disk.lie_about(lie);
        let clock = HandClock::at(1_700_000_000_000);
        let listener = Listener::new();
        let options = Options {
            segment_bytes: 1024 * random.between(8, 24),
            reserve_bytes: 8 * 1024,
            prepared_segments: random.between(1, 2) as usize,
            batch_bytes: random.between(1, 6) as usize * 1024,
            tail_bytes: random.below(3) as usize * 4096,
            checkpoint_bytes: 1024 * random.between(1, 12),
            index_cache_bytes: random.below(2) as usize * 4096,
            // Some histories are longer than ids are kept.
            dedupe_ms: [7 * 24 * 60 * 60 * 1000, random.between(0, 200) as i64][random.below(2) as usize],
            clock: Arc::<HandClock>::clone(&clock),
            observer: Arc::<Listener>::clone(&listener),
            threads: false,
        };
        Self {
            random,
            disk,
            latest_ms: clock.now_ms(),
            clock,
            options,
            listener,
            appended: Vec::new(),
            durable: 0,
            next_number: 1,
            dead: Dead::default(),
            removed: HashSet::new(),
            lie,
            backups: 0,
            newest_own_id: EventId::default(),
            passing: PassingTopics::default(),
            cuts: HashSet::new(),
            refused: Refused::default(),
        }
    }

    /// From here on some reads fail: the next few, or all of some sectors.
    fn disturb_reads(&mut self) {
        let random = &mut self.random;
        if random.one_in(2) {
            let (skipped, count) =
                ([2, 10, 60][random.below(3) as usize], [1, 5, 80][random.below(3) as usize]);
            self.disk.fail_reads(random.below(skipped), random.between(1, count));
            return;
        }
        let names = self.disk.names();
        if names.is_empty() {
            return;
        }
        let name = &names[random.below(names.len() as u64) as usize];
        let length = self.disk.contents(name).map_or(0, |contents| contents.len() as u64);
        let start = random.below(length + 1);
        let bytes = [1, 2_000, 20_000][random.below(3) as usize];
        self.disk.make_unreadable(name, start..start + random.between(1, bytes));
    }

    fn run(&mut self) -> Check {
        let lives = self.random.between(2, 4);
        for _ in 0..lives {
            // Armed before the open: the cut may hit recovery.
            if !self.random.one_in(6) {
                let reach = [6, 30, 100, 300][self.random.below(4) as usize];
                self.disk.cut_after(self.random.between(1, reach));
            }
            if self.random.one_in(4) {
                self.disturb_reads();
            }
            self.life()?;
            self.cuts.extend(self.disk.last_cut());
        }
        // At last with the power on, and everything readable.
        self.disk.cut_after(u64::MAX);
        self.disk.make_readable();
        let (log, state) = self.open()?.ok_or("the log did not open with the power on")?;
        self.check(&log, &state)?;
        self.check_lookups(&log)?;
        log.close().map_err(|error| format!("close: {error}"))?;
        let report = verify_storage(Arc::new(self.disk.clone()), |_| {})
            .map_err(|error| format!("verify: {error}"))?;
        ensure(report.faults.is_empty(), || format!("verify found {:?}", report.faults))?;
        ensure(report.torn_tail_bytes == 0, || "a torn tail after a clean close".to_owned())
    }

    /// Opens the log; `None` when the power went off.
    fn open(&mut self) -> Result<Option<(Log, Remembered)>, String> {
        if self.disk.names().iter().any(|name| name == "MANIFEST") {
            let copy = self.disk.fork();
            let mut report = verify_storage(Arc::new(copy.clone()), |_| {});
            if matches!(report, Err(VerifyError::Open(OpenError::Unreadable { .. })))
                && copy.failed_reads() > 0
            {
                copy.make_readable();
                report = verify_storage(Arc::new(copy), |_| {});
            }
            let faults = report.map_err(|error| format!("verify: {error}"))?.faults;
            ensure(faults.is_empty(), || format!("verify took a power cut for {faults:?}"))?;
        }
        let failed_before = self.disk.failed_reads();
        loop {
            let state = Remembered::default();
            let storage = Arc::new(self.disk.clone());
            match Log::open_storage(storage, self.options.clone(), Box::new(state.clone())) {
                Ok(log) => return Ok(Some((log, state))),
                Err(_) if self.disk.is_off() => return Ok(None),
                Err(OpenError::Unreadable { file, .. })
                    if !file.is_empty() && self.disk.failed_reads() > failed_before =>
                {
                    self.refused.opens += 1;
                    ensure(self.refused.opens < 1_000, || "the log does not open".to_owned())?;
                    // Passing errors may take several tries to pass; sectors are repaired.
                    if self.random.one_in(3) {
                        self.disk.make_readable();
                    }
                }
                Err(error) => return Err(format!("open: {error}")),
            }
        }
    }

    /// From an open to the next cut, kill or close.
    fn life(&mut self) -> Check {
        let Some((log, state)) = self.open()? else {
            if self.random.one_in(3) {
                self.die(None);
            } else {
                self.disk.power_cut();
            }
            return Ok(());
        };
        if !self.disk.is_off() {
            // What open concluded from a disk that could not be read everywhere holds.
            self.disk.make_readable();
            self.check(&log, &state)?;
        }
        let steps = self.random.between(5, 90);
        for _ in 0..steps {
            if self.disk.is_off() {
                break;
            }
            self.step(&log)?;
        }
        self.take_acknowledged(&log);
        match self.random.below(8) {
            0 | 1 if !self.disk.is_off() => {
                // A clean close makes all of it durable, if the power stays on.
                if log.close().is_ok() {
                    self.acknowledge_all();
                }
                if self.random.one_in(2) || self.disk.is_off() {
                    self.disk.power_cut();
                }
            }
            2 | 3 => self.die(Some(log)),
            _ => {
                // Before the log is dropped: dropping closes it, and that must not reach the disk any more.
                self.disk.cut_after(0);
                drop(log);
                self.disk.power_cut();
            }
        }
        Ok(())
    }

    /// kill -9, between two steps or in the middle of one: the process is gone and the machine is not, so the page cache has
    /// what was written, synced or not. The dying log must not reach that disk any more: it keeps the old one, without power.
    fn die(&mut self, log: Option<Log>) {
        let survivor = self.disk.fork();
        survivor.reseed(self.random.next());
        self.disk.cut_after(0);
        drop(log);
        self.disk = survivor;
    }

    fn step(&mut self, log: &Log) -> Check {
        if self.random.one_in(5) {
            self.clock.move_by(self.random.below(50) as i64 - 20);
            self.latest_ms = self.latest_ms.max(self.clock.now_ms());
        }
        match self.random.below(40) {
            0 | 1 => self.disturb_reads(),
            2 | 3 => self.disk.make_readable(),
            _ => {}
        }
        match self.random.below(20) {
            0..=7 => self.append(log)?,
            8..=13 => {
                log.step_commit();
                self.take_acknowledged(log);
            }
            14..=17 => {
                log.step_housekeeping();
            }
            18 if self.random.one_in(2) => self.clean(log)?,
            19 if self.random.one_in(2) => self.make_or_delete_topic(log)?,
            19 if self.random.one_in(3) => self.back_up(log)?,
            _ => self.check_visible(log)?,
        }
        Ok(())
    }

    fn clean(&mut self, log: &Log) -> Check {
        self.raise_floors(log);
        let mut options = CleanOptions::default();
        options.compact = !self.random.one_in(4);
        let living = Living { log, dead: &self.dead, counts: !self.random.one_in(4) };
        if self.random.one_in(3) {
            self.disk.cut_after(self.random.between(1, 40));
        }
        // It fails only when the power is off; what cannot be read stays as it is.
        let cleaned = log.clean(&living, &options);
        if cleaned.is_err() || self.disk.is_off() {
            return ensure(self.disk.is_off(), || format!("cleaning failed: {cleaned:?}"));
        }
        self.refused.cleanings += u64::from(cleaned.is_ok_and(|report| report.was_unreadable));
        self.disk.make_readable();
        for topic in TOPICS {
            let Some(id) = log.topic(topic) else { continue };
            let there: HashSet<u64> = read_all(log, id).iter().map(|event| event.seq).collect();
            for seq in (1..=log.last_seq(id)).filter(|seq| !there.contains(seq)) {
                ensure(self.dead.has(topic, seq), || format!("{topic}: cleaning took seq {seq}"))?;
                self.removed.insert((topic, seq));
            }
        }
        Ok(())
    }

    /// Backs the log up to a disk that may lose its power on the way, and does in the end.
    fn back_up(&mut self, log: &Log) -> Check {
        self.take_acknowledged(log);
        let copy = Disk::new(self.random.next());
        copy.lie_about(self.lie);
        if self.random.one_in(2) {
            copy.cut_after(self.random.between(1, 60));
        }
        let failed_before = self.disk.failed_reads();
        let outcome = log.backup_storage(Arc::new(copy.clone()), &mut |_| {});
        let is_refused =
            matches!(outcome, Err(BackupError::Read { .. })) && self.disk.failed_reads() > failed_before;
        self.refused.backups += u64::from(is_refused);
        let is_allowed = outcome.is_ok() || copy.is_off() || self.disk.is_off() || is_refused;
        copy.power_cut();
        ensure(is_allowed, || format!("backup: {outcome:?}"))?;
        if outcome.is_err() && !copy.names().iter().any(|name| name == "MANIFEST") {
            return Ok(());
        }
        let report = verify_storage(Arc::new(copy.clone()), |_| {})
            .map_err(|error| format!("verify the backup: {error}"))?;
        ensure(report.faults.is_empty(), || format!("verify found in the backup: {:?}", report.faults))?;
        let state = Remembered::default();
        let options = Options { observer: Listener::new(), ..self.options.clone() };
        let restored = Log::open_storage(Arc::new(copy), options, Box::new(state.clone()))
            .map_err(|error| format!("open the backup: {error}"))?;
        self.backups += 1;
        self.check_content(&restored, &state).map_err(|error| format!("backup: {error}")).map(|_| ())
    }

    fn append(&mut self, log: &Log) -> Check {
        let mut topics: HashMap<&'static str, TopicId> = HashMap::new();
        let count = self.random.below(5);
        let mut events = Vec::new();
        for _ in 0..count {
            let topic = TOPICS[self.random.below(TOPICS.len() as u64) as usize];
            match log.ensure_topic(topic) {
                Ok(id) => topics.insert(topic, id),
                Err(AppendError::QueueFull | AppendError::StorageFull) => {
                    log.step_commit();
                    log.step_housekeeping();
                    return Ok(());
                }
                Err(error) => return ensure(self.disk.is_off(), || format!("ensure_topic: {error}")),
            };
            events.push(self.make_event(topic));
        }
        let mut states = Vec::new();
        for _ in 0..self.random.below(3) {
            states.push(self.next_number);
            self.next_number += 1;
        }
        let state_bodies: Vec<[u8; 8]> = states.iter().map(|number| number.to_le_bytes()).collect();
        let new_events: Vec<NewEvent<'_>> = events
            .iter()
            .map(|(expected, chosen)| NewEvent {
                topic: topics[expected.topic],
                id: chosen.then_some(expected.id),
                ts: expected.ts,
                key: expected.key.as_deref(),
                body: &expected.body,
                tombstone: false,
            })
            .collect();
        let new_states: Vec<NewState<'_>> = states
            .iter()
            .zip(&state_bodies)
            .map(|(&number, body)| NewState { tag: number as u32, body })
            .collect();
        let mut outcomes = Outcomes::default();
        let use_reserve = self.random.one_in(4);
        let append = Append { events: &new_events, states: &new_states, use_reserve };
        let failed_before = self.disk.failed_reads();
        let ticket = match log.try_append(&append, &mut outcomes) {
            Ok(ticket) => ticket,
            // An id that cannot be looked up is never taken as new.
            Err(AppendError::Lookup(_)) if self.disk.failed_reads() > failed_before => {
                self.refused.appends += 1;
                return Ok(());
            }
            Err(AppendError::QueueFull) => {
                log.step_commit();
                log.step_housekeeping();
                return Ok(());
            }
            Err(AppendError::TooLarge { .. }) => return Ok(()),
            Err(error) => return ensure(self.disk.is_off(), || format!("append: {error}")),
        };
        let mut kept = Vec::new();
        for ((mut expected, chosen), outcome) in events.into_iter().zip(outcomes.iter()) {
            let there = chosen.then(|| self.find(&kept, expected.topic, expected.id)).flatten();
            if let Some((seq, at_ms)) = there {
                let expires_ms = at_ms + self.options.dedupe_ms;
                let is_over = self.dead.has(expected.topic, seq) && self.latest_ms >= expires_ms;
                let right = outcome.duplicate && outcome.seq == seq || !outcome.duplicate && is_over;
                ensure(right, || format!("id {} of seq {seq} was answered {outcome:?}", expected.id))?;
            } else {
                ensure(!outcome.duplicate, || format!("a new id was called a duplicate: {outcome:?}"))?;
            }
            if outcome.duplicate {
                continue;
            }
            if !chosen {
                ensure(outcome.id > self.newest_own_id, || {
                    format!("id {} after {}", outcome.id, self.newest_own_id)
                })?;
                self.newest_own_id = outcome.id;
            }
            expected.id = outcome.id;
            expected.seq = outcome.seq;
            kept.push(expected);
        }
        let at_ms = self.clock.now_ms();
        self.appended.push(Appended { ticket: Some(ticket), at_ms, events: kept, states });
        Ok(())
    }

    fn make_or_delete_topic(&mut self, log: &Log) -> Check {
        let passing = &mut self.passing;
        if self.random.one_in(2) && !passing.alive.is_empty() {
            let at = self.random.below(passing.alive.len() as u64) as usize;
            let id = log.topic(&passing.alive[at]);
            if let Some(Ok(ticket)) = id.map(|id| log.delete_topic(id)) {
                passing.deleting.push((ticket, passing.alive.swap_remove(at)));
            }
            return Ok(());
        }
        passing.made += 1;
        let name = format!("passing-{}", passing.made);
        let Ok(id) = log.ensure_topic(&name) else { return Ok(()) };
        ensure(id.number() > passing.highest_id, || {
            format!("the internal id {} was used before", id.number())
        })?;
        passing.alive.push(name);
        let body = vec![b'p'; self.random.below(1500) as usize];
        let chosen = self.random.one_in(2).then(|| EventId::from_u128(self.random.below(40).into()));
        let events = [NewEvent { topic: id, id: chosen, ts: 0, key: None, body: &body, tombstone: false }];
        let mut outcomes = Outcomes::default();
        if log.try_append(&Append { events: &events, ..Append::default() }, &mut outcomes).is_ok() {
            ensure(!outcomes[0].duplicate, || "a new topic knows an id".to_owned())?;
            if chosen.is_none() {
                self.newest_own_id = self.newest_own_id.max(outcomes[0].id);
            }
        }
        Ok(())
    }

    /// Deleted topics stay deleted, and internal ids are never used again.
    fn check_passing_topics(&mut self, log: &Log) -> Check {
        let passing = &mut self.passing;
        passing.deleting.clear();
        for topic in log.topics() {
            ensure(!passing.deleted.contains(&*topic.name), || format!("{} is back", topic.name))?;
            passing.highest_id = passing.highest_id.max(topic.id.number());
        }
        passing.alive.retain(|name| log.topic(name).is_some());
        Ok(())
    }

    fn make_event(&mut self, topic: &'static str) -> (Expected, bool) {
        let random = &mut self.random;
        let length = if random.one_in(12) { random.below(2500) } else { random.below(120) };
        let mut body = format!("event {} ", self.next_number).into_bytes();
        self.next_number += 1;
        // Bytes that look like frames, to be fooled by.
        while body.len() < length as usize {
            body.extend_from_slice(&[0xf5, b'p', b'm', b'b']);
            body.extend_from_slice(&random.next().to_le_bytes());
        }
        let key = random.one_in(3).then(|| format!("key-{}", random.below(6)).into_bytes());
        let ts = random.below(1000) as i64;
        let chosen = random.one_in(3);
        let id = match random.below(4) {
            // One that may be there already, or may have been lost.
            0 => EventId::from_u128(random.below(40).into()),
            1 => EventId::from_u128(
                u128::from(random.below(1 << 40)) << 80 | 7 << 76 | u128::from(random.next()),
            ),
            _ => random.id(),
        };
        (Expected { topic, seq: 0, id, ts, key, body }, chosen)
    }

    /// The seq that has an id, and since when, among what may be there and what this append added before.
    fn find(&self, kept: &[Expected], topic: &str, id: EventId) -> Option<(u64, i64)> {
        let is_it = |event: &&Expected| event.topic == topic && event.id == id;
        if let Some(event) = kept.iter().rfind(is_it) {
            return Some((event.seq, self.clock.now_ms()));
        }
        self.appended.iter().rev().find_map(|appended| {
            let event = appended.events.iter().rfind(is_it)?;
            Some((event.seq, appended.at_ms))
        })
    }

    fn take_acknowledged(&mut self, log: &Log) {
        self.take_deleted(log);
        while let Some(appended) = self.appended.get(self.durable) {
            match appended.ticket {
                Some(ticket) if log.is_durable(ticket) => self.durable += 1,
                _ => break,
            }
        }
    }

    fn take_deleted(&mut self, log: &Log) {
        let passing = &mut self.passing;
        for (ticket, name) in std::mem::take(&mut passing.deleting) {
            if log.is_durable(ticket) {
                passing.deleted.insert(name);
            } else {
                passing.deleting.push((ticket, name));
            }
        }
        for topic in log.topics() {
            passing.highest_id = passing.highest_id.max(topic.id.number());
        }
    }

    fn acknowledge_all(&mut self) {
        self.durable = self.appended.len();
    }

    fn raise_floors(&mut self, log: &Log) {
        for topic in TOPICS {
            if let Some(id) = log.topic(topic) {
                let last = log.last_seq(id);
                if SPARSE.contains(&topic) {
                    let floor = self.dead.floors.entry(topic).or_default();
                    *floor = (*floor).max(self.random.below(last + 1));
                }
                if self.random.one_in(2) {
                    let cut = self.dead.cuts.entry(topic).or_insert(1);
                    *cut = (*cut).max(self.random.below(last + 2));
                }
            }
        }
    }

    /// Nothing is shown that is not durable.
    fn check_visible(&mut self, log: &Log) -> Check {
        self.take_acknowledged(log);
        let visible: HashSet<(&str, u64)> = self.appended[..self.durable]
            .iter()
            .flat_map(|appended| appended.events.iter().map(|event| (event.topic, event.seq)))
            .collect();
        let Some(topic) =
            TOPICS.into_iter().find(|topic| log.topic(topic).is_some_and(|id| log.last_seq(id) > 0))
        else {
            return Ok(());
        };
        let id = log.topic(topic).ok_or("the topic is gone")?;
        let mut chunk = Chunk::default();
        let mut seq = 1;
        loop {
            let failed_before = self.disk.failed_reads();
            match log.read(id, seq, ReadLimit { events: 7, bytes: 3000 }, &mut chunk) {
                Ok(()) => {}
                Err(ReadError::Unreadable { first_seq, last_seq, .. })
                    if self.disk.failed_reads() > failed_before =>
                {
                    self.refused.reads += 1;
                    let is_sound = first_seq == seq && last_seq >= seq && last_seq <= log.last_seq(id);
                    ensure(is_sound, || {
                        format!("{topic}: {first_seq} to {last_seq} unreadable, from {seq}")
                    })?;
                    // Later events are read all the same.
                    seq = last_seq + 1;
                    continue;
                }
                Err(ReadError::Io { .. }) if self.disk.failed_reads() > failed_before => {
                    self.refused.reads += 1;
                    return Ok(());
                }
                Err(_) if self.disk.is_off() => return Ok(()),
                Err(error) => return Err(format!("read: {error}")),
            }
            for missing in chunk.missing() {
                for seq in missing.first_seq..=missing.last_seq {
                    let is_cleaned = missing.reason == MissingReason::Cleaned && self.dead.has(topic, seq);
                    ensure(is_cleaned, || format!("{topic} {seq} is passed over: {missing:?}"))?;
                }
            }
            for event in chunk.events() {
                let is_there = visible.contains(&(topic, event.seq));
                ensure(is_there, || format!("{topic} {} is shown and was not durable", event.seq))?;
            }
            if chunk.next_seq() == seq {
                return Ok(());
            }
            seq = chunk.next_seq();
        }
    }

    /// What is there is a prefix of what was appended, no shorter than what was acknowledged.
    fn check(&mut self, log: &Log, state: &Remembered) -> Check {
        let (kept, newest_own_id) = self.check_content(log, state)?;
        self.appended.truncate(kept);
        self.durable = kept;
        self.appended.iter_mut().for_each(|appended| appended.ticket = None);
        // Ids that were lost with their events were never told to anyone.
        self.newest_own_id = newest_own_id;
        self.check_passing_topics(log)?;
        let faults = self.listener.faults();
        ensure(faults.is_empty(), || format!("a power cut was taken for damage: {faults:?}"))
    }

    /// Checks what a log that was just opened holds. Answers how many of the appends are there, and the newest id it made.
    fn check_content(&self, log: &Log, state: &Remembered) -> Result<(usize, EventId), String> {
        let mut there: BTreeMap<&'static str, Vec<Read>> = BTreeMap::new();
        for topic in TOPICS {
            if let Some(id) = log.topic(topic) {
                there.insert(topic, read_all(log, id));
            }
        }
        let states: Vec<u64> = state.all();
        let kept = self.longest_prefix(log, &states)?;
        ensure(kept >= self.durable, || {
            format!("{} appends were acknowledged, {kept} are there", self.durable)
        })?;
        let own = there.values().flatten().filter(|event| !event.client_id).map(|event| event.id).max();
        let appended = &self.appended[..kept];
        let expected_states: Vec<u64> =
            appended.iter().flat_map(|appended| appended.states.clone()).collect();
        ensure(states == expected_states, || format!("state {states:?} instead of {expected_states:?}"))?;
        for topic in TOPICS {
            let expected: Vec<&Expected> = appended
                .iter()
                .flat_map(|appended| &appended.events)
                .filter(|event| event.topic == topic)
                .collect();
            let events = there.remove(topic).unwrap_or_default();
            let back = events.iter().find(|event| self.removed.contains(&(topic, event.seq)));
            ensure(back.is_none(), || {
                format!("{topic}: seq {:?} was removed and is back", back.map(|e| e.seq))
            })?;
            self.check_topic(topic, &expected, &events)?;
        }
        Ok((kept, own.unwrap_or_default()))
    }

    fn check_topic(&self, topic: &str, expected: &[&Expected], events: &[Read]) -> Check {
        let mut by_seq: BTreeMap<u64, &Read> = BTreeMap::new();
        let mut last: Option<&Read> = None;
        for event in events {
            if let Some(last) = last {
                ensure(last.seq < event.seq, || format!("{topic}: seq {} after {}", event.seq, last.seq))?;
                ensure(last.commit_ms <= event.commit_ms, || {
                    format!("{topic}: commit time falls at {}", event.seq)
                })?;
            }
            last = Some(event);
            by_seq.insert(event.seq, event);
        }
        for (at, expected) in expected.iter().enumerate() {
            ensure(expected.seq == at as u64 + 1, || format!("{topic}: a gap before seq {}", expected.seq))?;
            match by_seq.remove(&expected.seq) {
                Some(event) => {
                    let same = event.id == expected.id
                        && event.ts == expected.ts
                        && event.key == expected.key
                        && event.body == expected.body;
                    ensure(same, || format!("{topic}: seq {} is another event", expected.seq))?;
                }
                None => ensure(self.dead.has(topic, expected.seq), || {
                    let there: Vec<u64> = events.iter().map(|event| event.seq).collect();
                    format!("{topic}: seq {} is lost, there are {there:?}", expected.seq)
                })?,
            }
        }
        ensure(by_seq.is_empty(), || format!("{topic}: {:?} were never whole", by_seq.keys()))
    }

    /// How many of the appends are there, judged by the newest seqs and states.
    fn longest_prefix(&self, log: &Log, states: &[u64]) -> Result<usize, String> {
        let last: HashMap<&str, u64> =
            TOPICS.iter().map(|topic| (*topic, log.topic(topic).map_or(0, |id| log.last_seq(id)))).collect();
        let states: HashSet<u64> = states.iter().copied().collect();
        let mut kept = 0;
        for (at, appended) in self.appended.iter().enumerate() {
            let has_event = |event: &Expected| event.seq <= last[event.topic];
            let events = appended.events.iter().filter(|event| has_event(event)).count();
            let numbers = appended.states.iter().filter(|number| states.contains(number)).count();
            let parts = appended.events.len() + appended.states.len();
            let found = events + numbers;
            ensure(found == 0 || found == parts, || {
                format!("append {at} is half there: {found} of {parts}")
            })?;
            if parts == 0 {
                // It added nothing: it is there if what was appended before it is.
                kept += usize::from(kept == at);
            } else if found > 0 {
                ensure(kept == at, || format!("append {at} is there, one before it is not"))?;
                kept = at + 1;
            }
        }
        // Appends without content behind the last one that is there say nothing; acknowledged ones count as there.
        Ok(kept.max(self.durable.min(self.trailing_empty(kept))))
    }

    fn trailing_empty(&self, from: usize) -> usize {
        let is_empty = |appended: &&Appended| appended.events.is_empty() && appended.states.is_empty();
        from + self.appended[from..].iter().take_while(is_empty).count()
    }

    /// Every way to find an event agrees with looking at all of them.
    fn check_lookups(&mut self, log: &Log) -> Check {
        for topic in TOPICS {
            let Some(id) = log.topic(topic) else { continue };
            let events = read_all(log, id);
            for event in events.iter().filter(|event| event.seq % 3 == 0) {
                let naive = events.iter().rfind(|other| other.id == event.id).map(|other| other.seq);
                let found = log.find_id(id, event.id).map_err(|error| error.to_string())?;
                ensure(found == naive, || format!("{topic}: id {} is {naive:?}, found {found:?}", event.id))?;
                let naive = events.iter().find(|other| other.ts >= event.ts).map(|other| other.seq);
                let found = log.first_at_or_after(id, event.ts).map_err(|error| error.to_string())?;
                ensure(found == naive, || format!("{topic}: ts {} is {naive:?}, found {found:?}", event.ts))?;
                let naive = events.iter().rfind(|other| other.ts <= event.ts).map(|other| other.seq);
                let found = log.last_at_or_before(id, event.ts).map_err(|error| error.to_string())?;
                ensure(found == naive, || {
                    format!("{topic}: ts {} back is {naive:?}, found {found:?}", event.ts)
                })?;
                if let Some(key) = &event.key {
                    let naive =
                        events.iter().rfind(|other| other.key.as_ref() == Some(key)).map(|other| other.seq);
                    let found = log.find_key(id, key).map_err(|error| error.to_string())?;
                    ensure(found == naive, || format!("{topic}: key is {naive:?}, found {found:?}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Runs one history; a panic inside the log counts as a failure.
fn run(seed: u64, lie: Option<SyncPoint>) -> Result<(HashSet<DiskStep>, Refused), String> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut history = History::new(seed, lie);
        history.run().map(|()| (history.cuts, history.refused))
    }));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("?")))
    })
}

#[test]
fn power_cuts_lose_nothing_acknowledged_and_leave_nothing_half_there() {
    let first = setting("PROMBUS_SEED", 1);
    let histories = setting("PROMBUS_HISTORIES", 10_000);
    println!("PROMBUS_SEED={first} PROMBUS_HISTORIES={histories}");
    let next = AtomicU64::new(first);
    let failures: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
    let cuts: Mutex<HashSet<DiskStep>> = Mutex::new(HashSet::new());
    let refused: Mutex<Refused> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + histories || failures.lock().len() >= 5 {
                        return;
                    }
                    match run(seed, None) {
                        Ok((steps, refusals)) => {
                            cuts.lock().extend(steps);
                            refused.lock().add(refusals);
                        }
                        Err(message) => failures.lock().push((seed, message)),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    for (seed, message) in &failures {
        println!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1: {message}");
    }
    assert!(
        failures.is_empty(),
        "{} histories failed, the first with seed {}",
        failures.len(),
        failures[0].0
    );
    let refused = refused.into_inner();
    println!("{refused:?}");
    if histories >= 5_000 {
        let Refused { opens, appends, backups, reads, cleanings } = refused;
        for refused in [opens, appends, backups, reads, cleanings] {
            assert!(refused > 0, "read errors never mattered: {refused}");
        }
        let cuts = cuts.into_inner();
        for step in [
            DiskStep::Write,
            DiskStep::Create,
            DiskStep::Rename,
            DiskStep::Remove,
            DiskStep::Sync(SyncPoint::LogData),
            DiskStep::Sync(SyncPoint::Segment),
            DiskStep::Sync(SyncPoint::Manifest),
            DiskStep::Sync(SyncPoint::Checkpoint),
            DiskStep::Sync(SyncPoint::RecoveredTail),
            DiskStep::Sync(SyncPoint::Index),
            DiskStep::Sync(SyncPoint::Cut),
            DiskStep::SyncFolder(SyncPoint::SegmentFolder),
            DiskStep::SyncFolder(SyncPoint::ManifestFolder),
            DiskStep::SyncFolder(SyncPoint::CheckpointFolder),
            DiskStep::Sync(SyncPoint::Rewritten),
            DiskStep::SyncFolder(SyncPoint::RewrittenFolder),
            DiskStep::Sync(SyncPoint::KeptIndex),
            DiskStep::SyncFolder(SyncPoint::KeptIndexFolder),
        ] {
            assert!(cuts.contains(&step), "the power was never cut at {step:?}");
        }
    }
}

/// The suite above is worth something only if it fails for a log that leaves out a sync.
fn fails_without(point: SyncPoint) {
    let first = setting("PROMBUS_SEED", 1);
    for seed in first..first + 3_000 {
        if let Err(message) = run(seed, Some(point)) {
            println!("without {point:?}: seed {seed}: {message}");
            assert_eq!(run(seed, None).err(), None, "seed {seed} fails with all syncs too");
            return;
        }
    }
    panic!("3,000 histories passed without the sync of {point:?}");
}

#[test]
fn without_the_sync_of_log_data_the_suite_fails() {
    fails_without(SyncPoint::LogData);
}

#[test]
fn without_the_sync_of_a_zero_filled_segment_the_suite_fails() {
    fails_without(SyncPoint::Segment);
}

#[test]
fn without_the_sync_of_the_folder_after_a_segment_the_suite_fails() {
    fails_without(SyncPoint::SegmentFolder);
}

#[test]
fn without_the_sync_of_the_manifest_the_suite_fails() {
    fails_without(SyncPoint::Manifest);
}

#[test]
fn without_the_sync_of_the_folder_after_the_manifest_the_suite_fails() {
    fails_without(SyncPoint::ManifestFolder);
}

#[test]
fn without_the_sync_of_a_checkpoint_the_suite_fails() {
    fails_without(SyncPoint::Checkpoint);
}

#[test]
fn without_the_sync_of_the_folder_after_a_checkpoint_the_suite_fails() {
    fails_without(SyncPoint::CheckpointFolder);
}

#[test]
fn without_the_sync_of_the_recovered_tail_the_suite_fails() {
    fails_without(SyncPoint::RecoveredTail);
}

#[test]
fn without_the_sync_of_an_index_the_suite_fails() {
    fails_without(SyncPoint::Index);
}

#[test]
fn without_the_sync_of_a_rewritten_segment_the_suite_fails() {
    fails_without(SyncPoint::Rewritten);
}

#[test]
fn without_the_sync_of_kept_ids_the_suite_fails() {
    fails_without(SyncPoint::KeptIndex);
}

#[test]
fn without_the_sync_of_a_backup_the_suite_fails() {
    fails_without(SyncPoint::Backup);
}

/// A hole hides the remains of a torn batch in a segment that an open then sets aside. Later it can be read, and must not be taken
/// for a segment that was used.
#[test]
fn a_segment_that_an_open_set_aside_stays_empty() {
    assert_eq!(History::new(3_031_107, None).run(), Ok(()));
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let names = |seed| {
            let mut history = History::new(seed, None);
            let outcome = history.run();
            (outcome, history.disk.names(), history.disk.operations(), history.appended.len())
        };
        assert_eq!(names(seed), names(seed), "seed {seed}");
    }
}
