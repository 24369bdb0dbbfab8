//! Random histories of topics with keys on the simulated disk: values, deletions, retention, compaction, deleted topics, and
//! power cuts at any step. After each cut, all confirmed events are there, and no event that was deleted or removed by
//! retention is back. `PROMBUS_SEED` is the first seed and `PROMBUS_HISTORIES` the number of histories.

use crate::rig::Rig;
use crate::support::{Random, setting};
use prombus::{Backend as _, PullLimit, Start, Topic, TopicOptions, TopicRule};
use prombus_log::storage::simulated::Disk;
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const RETENTION_MS: u64 = 100_000;

/// A topic as its publishers know it.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Key to seq and value of its last confirmed publish; `None` for a tombstone.
    newest: BTreeMap<String, (u64, Option<String>)>,
    last_seq: u64,
}

struct History {
    random: Random,
    rig: Rig,
    known: BTreeMap<&'static str, Known>,
    now_ms: u64,
    /// When the events of `beats` were published, by seq.
    beats: BTreeMap<u64, u64>,
    next_value: u64,
}

fn rules() -> Vec<TopicRule> {
    let compacted = TopicOptions {
        compaction: Some(true),
        tombstone_ms: Some(30_000),
        snapshot_interval_ms: Some(0),
        ..TopicOptions::default()
    };
    let short = TopicOptions { retention_ms: Some(RETENTION_MS), ..TopicOptions::default() };
    let rule = |name, options| TopicRule::new(name, options).expect("a good rule");
    vec![rule("kv", compacted.clone()), rule("other", compacted), rule("beats", short)]
}

impl History {
    fn new(seed: u64) -> Self {
        let rig = Rig::open(&Disk::new(seed));
        rig.backend.set_topic_rules(rules());
        Self {
            random: Random::new(seed),
            rig,
            known: BTreeMap::new(),
            now_ms: 0,
            beats: BTreeMap::new(),
            next_value: 0,
        }
    }

    /// The output of a future, or `None` if the power goes off first.
    fn answer<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        for _ in 0..50 {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return Some(output);
            }
            self.rig.commit();
        }
        None
    }

    /// Makes some of the next reads fail, or all reads of a range until the disk is repaired.
    fn break_reads(&mut self) {
        let disk = &self.rig.disk;
        match self.random.below(4) {
            0 | 1 => disk.fail_reads(self.random.below(10), self.random.between(1, 20)),
            2 => {
                let names: Vec<String> = disk
                    .names()
                    .into_iter()
                    .filter(|name| name.ends_with("g") || name.ends_with("x"))
                    .collect();
                let name = &names[self.random.below(names.len() as u64) as usize];
                let start = self.random.below(16_000);
                disk.make_unreadable(name, start..start + self.random.between(1, 2_000));
            }
            _ => disk.make_readable(),
        }
    }

    fn step(&mut self) {
        if self.random.one_in(10) {
            self.break_reads();
        }
        match self.random.below(100) {
            0..60 => self.publish(),
            60..75 => {
                self.publish_beat();
            }
            75..85 => {
                let by = self.random.between(1, 40_000);
                self.now_ms += by;
                self.rig.pass(by);
            }
            85..97 => {
                crate::rig::run_maintenance(&self.rig.backend);
                self.rig.commit();
            }
            97..98 => self.delete_topic(),
            _ => self.check(),
        }
    }

    fn publish(&mut self) {
        let name = if self.random.one_in(4) { "other" } else { "kv" };
        let key = format!("k{}", self.random.below(12));
        self.next_value += 1;
        let value = (!self.random.one_in(5)).then(|| format!("{}-{}", self.next_value, "x".repeat(60)));
        let answered = match &value {
            Some(value) => self.answer(self.rig.bus.publish(name, value.as_str()).key(&key).send()),
            None => self.answer(self.rig.bus.publish_json(name, "null").key(&key).send()),
        };
        // A publish that was not confirmed may be stored or not: the key is checked again only after its next confirmed
        // publish.
        match answered {
            Some(Ok(published)) => {
                let known = self.known.entry(name).or_default();
                known.newest.insert(key, (published.seq, value));
                known.last_seq = published.seq;
            }
            _ => {
                self.known.entry(name).or_default().newest.remove(&key);
            }
        }
    }

    fn publish_beat(&mut self) {
        for _ in 0..self.random.between(1, 10) {
            if let Some(Ok(published)) = self.answer(self.rig.bus.publish("beats", "beat").send()) {
                self.beats.insert(published.seq, self.now_ms);
            }
        }
    }

    fn delete_topic(&mut self) {
        let other = Topic::new("other").expect("a good name");
        match self.answer(self.rig.bus.delete_topic(&other)) {
            Some(Ok(())) => {
                self.known.remove("other");
            }
            Some(Err(_)) => {}
            // It is unknown whether the topic was deleted.
            None => {
                self.known.remove("other");
                self.known.insert("other?", Known::default());
            }
        }
    }

    /// Checks that the last confirmed value of each key is there, and that deleted keys are not.
    fn check(&mut self) {
        // All data must be there once it can be read again.
        self.rig.disk.make_readable();
        for (&name, known) in &self.known {
            if name == "other" && self.known.contains_key("other?") {
                continue;
            }
            let state = match self.answer(self.rig.bus.load_state(name)) {
                Some(Ok(state)) => state,
                _ => continue,
            };
            for (key, (seq, value)) in &known.newest {
                let found = state.get(key);
                match value {
                    Some(value) => {
                        let found = found.unwrap_or_else(|| panic!("{name} {key} (seq {seq}) is lost"));
                        assert!(found.seq() >= *seq, "{name} {key}: seq {} after {seq}", found.seq());
                        if found.seq() == *seq {
                            assert_eq!(found.json::<String>().expect("a string"), *value, "{name} {key}");
                        }
                    }
                    None => assert!(
                        found.is_none_or(|found| found.seq() > *seq),
                        "{name} {key} was deleted at seq {seq} and is back as {found:?}"
                    ),
                }
            }
        }
        self.check_beats();
    }

    fn check_beats(&mut self) {
        let beats = Topic::new("beats").expect("a good name");
        let limit = PullLimit { bytes: usize::MAX, ..PullLimit::default() };
        let Some(Ok(page)) = self.answer(self.rig.bus.read(&beats, Start::Earliest, limit)) else { return };
        let served: Vec<u64> = page.events.iter().map(prombus::Event::seq).collect();
        for (&seq, &at) in &self.beats {
            if at + RETENTION_MS > self.now_ms {
                assert!(served.contains(&seq), "beat {seq} of {at} is lost at {}", self.now_ms);
            }
        }
    }

    /// Checks that no expired event is served after a round of maintenance.
    fn check_retention(&mut self) {
        crate::rig::run_maintenance(&self.rig.backend);
        self.rig.commit();
        let beats = Topic::new("beats").expect("a good name");
        let limit = PullLimit { bytes: usize::MAX, ..PullLimit::default() };
        let Some(Ok(page)) = self.answer(self.rig.bus.read(&beats, Start::Earliest, limit)) else { return };
        for event in &page.events {
            let at = self.beats.get(&event.seq()).copied();
            assert!(
                at.is_none_or(|at| at + RETENTION_MS > self.now_ms),
                "beat {} of {at:?} is served at {}",
                event.seq(),
                self.now_ms
            );
        }
    }

    fn cut(mut self) -> Self {
        let clock_ms = self.now_ms;
        let steps = self.random.below(30);
        if !self.random.one_in(3) {
            // Cut in the middle of a clean, a checkpoint or a commit.
            self.rig.disk.cut_after(steps);
            let doing = self.random.below(3);
            for _ in 0..5 {
                match doing {
                    0 => {
                        crate::rig::run_maintenance(&self.rig.backend);
                    }
                    1 => self.publish(),
                    _ => self.publish_beat(),
                }
            }
        }
        // Opening with unreadable files is tested elsewhere.
        self.rig.disk.make_readable();
        self.rig = self.rig.power_cut();
        self.rig.clock.advance_ms(clock_ms);
        self.rig.backend.set_topic_rules(rules());
        if self.known.remove("other?").is_some() {
            self.known.remove("other");
        }
        self.check();
        self.check_retention();
        self
    }
}

fn run(seed: u64) {
    let mut history = History::new(seed);
    for _ in 0..history.random.between(2, 4) {
        for _ in 0..history.random.between(20, 120) {
            history.step();
        }
        history = history.cut();
    }
    history.check();
    assert_eq!(history.rig.store.stats().faults, 0, "a read error was reported as damage");
    history.rig.stop();
}

#[test]
fn power_cuts_lose_no_state_and_restore_nothing_deleted() {
    let histories = setting("PROMBUS_HISTORIES", 400);
    let first = setting("PROMBUS_SEED", 1);
    for seed in first..first + histories {
        let ran = std::panic::catch_unwind(|| run(seed));
        if ran.is_err() {
            panic!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1 fails");
        }
    }
}
