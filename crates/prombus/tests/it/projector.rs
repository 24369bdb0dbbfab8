//! Projectors: each event changes the states exactly once.

use crate::child::open_bus;
use crate::folder::Folder;
use crate::rig::{Rig, poll};
use crate::support::{Random, setting};
use prombus::consume::projector::process_state::{
    self, HEARTBEAT_RECEIVED, HeartbeatPayload, PROCESS_STATE, ProcessProjection, ProcessState, ProcessStatus,
};
use prombus::consume::projector::{
    Projection, Projector, ProjectorError, ProjectorOptions, Rejection, States,
};
use prombus::engine::LetterClosing;
use prombus::{AfterFailure, Bus, Clock, DeadLetter, Event, ManualClock, PullLimit, ReadError, Start, Topic};
use std::collections::BTreeMap;
use std::sync::Arc;

const START_MS: i64 = 1_700_000_000_000;

/// Adds up numbers by key, and over all keys, so that an event that is folded twice is detected. Zero removes a key.
#[derive(Clone, Copy)]
pub struct Sums;

impl Projection for Sums {
    type Input = i64;
    type State = i64;

    fn fold(&mut self, number: i64, event: &Event, sums: &mut States<i64>) -> Result<(), Rejection> {
        let all = sums.get("all").copied().unwrap_or(0);
        // Set it before the checks: a rejection must undo it.
        sums.set("all", all + number);
        let key = event.key().ok_or("it has no key")?;
        match number {
            0 => sums.remove(key),
            666 => panic!("not this one"),
            _ => sums.set(key, sums.get(key).copied().unwrap_or(0) + number),
        }
        Ok(())
    }
}

async fn all_events(bus: &Bus, topic: &str) -> Vec<Event> {
    let (topic, mut events, mut from) = (Topic::new(topic).expect("a topic"), Vec::new(), 1);
    loop {
        let page = match bus.read_from(&topic, from, PullLimit::default()).await {
            Ok(page) => page,
            Err(ReadError::UnknownTopic(_)) => return events,
            Err(error) => panic!("it reads: {error}"),
        };
        events.extend(page.events);
        if page.next_seq <= from {
            return events;
        }
        from = page.next_seq;
    }
}

/// The states, as a reader of the output topic sees them.
pub async fn latest(bus: &Bus, topic: &str) -> BTreeMap<String, String> {
    let mut states = BTreeMap::new();
    for event in all_events(bus, topic).await {
        let key = event.key().expect("a state has a key").to_owned();
        match event.payload() {
            "null" => drop(states.remove(&key)),
            payload => drop(states.insert(key, payload.to_owned())),
        }
    }
    states
}

pub fn sums_options(batch_size: u32) -> ProjectorOptions<i64, i64> {
    ProjectorOptions::group("sums-projector").input("numbers").output("sums").batch_size(batch_size)
}

async fn lag(bus: &Bus, topic: &str, group: &str) -> u64 {
    let group = bus.backend().group(topic, group).await.expect("succeeds");
    group.expect("the group exists").lag
}

/// Folds until the group has no lag.
async fn catch_up<P: Projection>(bus: &Bus, projector: &mut Projector<P>, topic: &str, group: &str) {
    while lag(bus, topic, group).await > 0 {
        projector.next().await.expect("it folds");
    }
}

#[tokio::test]
async fn restarts_do_not_change_the_states() {
    let seed = setting("PROMBUS_SEED", 1);
    println!("PROMBUS_SEED={seed}");
    for round in 0..30 {
        let mut random = Random::new(seed + round);
        let numbers: Vec<(String, i64)> =
            (0..200).map(|_| (format!("key-{}", random.below(5)), random.below(4).cast_signed())).collect();
        let mut ends = Vec::new();
        for is_restarted in [false, true] {
            let bus = Bus::memory();
            let mut projector = Projector::open(&bus, sums_options(7), Sums).await.expect("it opens");
            for (key, number) in &numbers {
                bus.publish("numbers", number).key(key.as_str()).await.expect("it publishes");
                if random.one_in(3) {
                    projector.next().await.expect("it folds");
                }
                if is_restarted && random.one_in(10) {
                    drop(projector);
                    if random.one_in(2) {
                        // As after a crash that lost all acks.
                        let to = Start::Earliest;
                        bus.seek("numbers", "sums-projector", to).await.expect("it seeks");
                    }
                    let options = sums_options(random.between(1, 20) as u32);
                    projector = Projector::open(&bus, options, Sums).await.expect("it opens");
                }
            }
            catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
            let states: BTreeMap<String, String> =
                projector.states().iter().map(|(key, sum)| (key.to_owned(), sum.to_string())).collect();
            assert_eq!(latest(&bus, "sums").await, states, "round {round}: the topic has other states");
            let figures = projector.figures();
            assert!(is_restarted || figures.folded == 200 && figures.skipped == 0, "{figures:?}");
            ends.push(states);
        }
        assert_eq!(ends[0], ends[1], "round {round}");
        let total: i64 = numbers.iter().map(|(_, number)| number).sum();
        assert_eq!(ends[0]["all"], total.to_string(), "round {round}");
    }
}

#[tokio::test]
async fn redelivered_inputs_change_nothing_and_publish_nothing() {
    let bus = Bus::memory();
    for number in 1..=50 {
        bus.publish("numbers", &number).key("a").await.expect("it publishes");
    }
    let mut projector = Projector::open(&bus, sums_options(10), Sums).await.expect("it opens");
    catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
    let published = all_events(&bus, "sums").await.len();
    assert_eq!(published, 5 * 2, "one state for each key and batch");
    for _ in 0..2 {
        bus.seek("numbers", "sums-projector", Start::Earliest).await.expect("it seeks");
        catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
        projector = Projector::open(&bus, sums_options(10), Sums).await.expect("it opens");
    }
    assert_eq!(all_events(&bus, "sums").await.len(), published);
    assert_eq!(projector.states().get("a"), Some(&1_275));
}

#[tokio::test]
async fn an_addressed_event_is_folded_only_by_its_addressee_and_is_never_a_state() {
    let bus = Bus::memory();
    for (topic, group) in [("numbers", "audit"), ("sums", "readers")] {
        drop(bus.subscribe(topic, group).await.expect("it joins"));
    }
    let mut projector = Projector::open(&bus, sums_options(1), Sums).await.expect("it opens");
    bus.publish("numbers", &1).key("a").await.expect("it publishes");
    bus.publish("numbers", &10).key("a").addressee("numbers", "audit").await.expect("it publishes");
    bus.publish("numbers", &100).key("a").addressee("numbers", "sums-projector").await.expect("it publishes");
    bus.publish("numbers", &1_000).key("a").await.expect("it publishes");
    catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
    assert_eq!(projector.states().get("a"), Some(&1_101));
    // A copy for a group of the output topic is not a state, also after a restart.
    bus.publish("sums", &7).key("a").addressee("sums", "readers").await.expect("it publishes");
    let projector = Projector::open(&bus, sums_options(1), Sums).await.expect("it opens");
    assert_eq!(projector.states().get("a"), Some(&1_101));
}

#[tokio::test]
async fn a_removed_key_gets_a_null_and_is_gone_after_a_restart() {
    let bus = Bus::memory();
    for (key, number) in [("a", 1), ("b", 2), ("a", 0)] {
        bus.publish("numbers", &number).key(key).await.expect("it publishes");
    }
    let mut projector = Projector::open(&bus, sums_options(1), Sums).await.expect("it opens");
    catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
    let nulls = all_events(&bus, "sums").await.into_iter().filter(|event| event.payload() == "null");
    assert_eq!(nulls.map(|event| event.key().map(str::to_owned)).collect::<Vec<_>>(), [Some("a".to_owned())]);
    let projector = Projector::open(&bus, sums_options(1), Sums).await.expect("it opens");
    assert_eq!(projector.states().iter().collect::<Vec<_>>(), [("all", &3), ("b", &2)]);
}

#[tokio::test]
async fn an_event_that_cannot_be_folded_becomes_a_dead_letter_and_leaves_no_trace() {
    let bus = Bus::memory();
    bus.publish("numbers", &1).key("a").await.expect("it publishes");
    bus.publish("numbers", "no number").key("a").await.expect("it publishes");
    bus.publish("numbers", &5).await.expect("it publishes");
    bus.publish("numbers", &666).key("a").await.expect("it publishes");
    bus.publish("numbers", &2).key("a").await.expect("it publishes");
    let mut projector = Projector::open(&bus, sums_options(100), Sums).await.expect("it opens");
    for _ in 0..2 {
        catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
        // Fold everything again: there must be no second dead letter.
        bus.seek("numbers", "sums-projector", Start::Earliest).await.expect("it seeks");
    }
    assert_eq!(
        latest(&bus, "sums").await,
        BTreeMap::from([("a".into(), "3".into()), ("all".into(), "3".into())])
    );
    let letters = all_events(&bus, "dlq.numbers").await;
    let letters: Vec<DeadLetter> = letters.iter().map(|event| event.json().expect("a letter")).collect();
    let errors: Vec<(u64, &str)> =
        letters.iter().map(|letter| (letter.original.seq, letter.err.as_str())).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[0].1.contains("invalid type"), "{errors:?}");
    assert_eq!(errors[1].1, "it has no key");
    assert_eq!(errors[2].1, "panicked: not this one");
    assert_eq!(projector.figures().rejected, 3);
    let failure = projector.last_error().expect("it has failed");
    let event = failure.event.expect("it failed for an event");
    assert_eq!((event.seq, failure.error.as_str()), (4, "panicked: not this one"));
    assert_eq!(failure.next, AfterFailure::DeadLetter);
}

#[tokio::test]
async fn an_event_that_is_rejected_again_after_its_dead_letter_was_closed_has_a_second_one() {
    let bus = Bus::memory();
    bus.publish("numbers", &666).key("a").await.expect("it publishes");
    let letters = "dlq.numbers".parse().expect("a topic");
    // Closed between the rounds: first none, then the first letter, then none.
    for (closed, expected) in [(None, 1), (Some(0), 2), (None, 2)] {
        if let Some(at) = closed {
            let id = all_events(&bus, "dlq.numbers").await[at].id();
            bus.backend()
                .close_dead_letters(&letters, &[id], LetterClosing::Discarded)
                .await
                .expect("it closes");
            bus.seek("numbers", "sums-projector", Start::Earliest).await.expect("it seeks");
        }
        // A projector that is opened again, without its states, rejects the event again.
        let mut projector = Projector::open(&bus, sums_options(1), Sums).await.expect("it opens");
        catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
        assert_eq!(all_events(&bus, "dlq.numbers").await.len(), expected);
    }
    assert_eq!(bus.backend().dead_letters(&letters).expect("letters").open, 1);
}

#[tokio::test]
async fn a_projector_without_an_input_or_an_output_is_refused() {
    let bus = Bus::memory();
    let error = Projector::open(&bus, ProjectorOptions::group("g").output("sums"), Sums).await;
    assert_eq!(error.expect_err("refused").to_string(), "the input topic of the projector is not set");
    let error = Projector::open(&bus, ProjectorOptions::group("g").input("numbers"), Sums).await;
    assert_eq!(error.expect_err("refused").to_string(), "the output topic of the projector is not set");
    let options = ProjectorOptions::group("g").input("no topic").output("sums");
    let error = Projector::open(&bus, options, Sums).await.expect_err("refused");
    assert!(matches!(error, ProjectorError::Topic(_)), "{error}");
}

#[tokio::test]
async fn a_state_that_cannot_be_published_rejects_its_event() {
    let bus = Bus::builder().max_payload_bytes(200).memory().expect("a bus");
    struct Long;
    impl Projection for Long {
        type Input = usize;
        type State = String;
        fn fold(
            &mut self,
            length: usize,
            event: &Event,
            states: &mut States<String>,
        ) -> Result<(), Rejection> {
            states.set("long", "x".repeat(length));
            states.set(format!("other-{}", event.seq()), String::new());
            Ok(())
        }
    }
    for length in [10, 1_000, 20] {
        bus.publish("lengths", &length).await.expect("it publishes");
    }
    let options = ProjectorOptions::group("g").input("lengths").output("longs");
    let mut projector = Projector::open(&bus, options, Long).await.expect("it opens");
    catch_up(&bus, &mut projector, "lengths", "g").await;
    let keys: Vec<String> = latest(&bus, "longs").await.into_keys().collect();
    assert_eq!(keys, ["long", "other-1", "other-3"]);
    assert_eq!(projector.figures().rejected, 1);
}

#[tokio::test]
async fn an_input_topic_that_was_created_again_is_folded_from_its_start() {
    // The output of a projector whose input had more events than this bus's input.
    let bus = Bus::memory();
    let header = format!("sums-projector numbers 500 {}", prombus::Uuid::from_u128(5));
    let name = prombus::consume::projector::POSITION_HEADER;
    bus.publish("sums", &10).key("a").header(name, header).await.expect("it publishes");
    bus.publish("numbers", &1).key("a").await.expect("it publishes");
    let mut projector = Projector::open(&bus, sums_options(10), Sums).await.expect("it opens");
    catch_up(&bus, &mut projector, "numbers", "sums-projector").await;
    assert_eq!(projector.states().get("a"), Some(&11));
}

/// The process projector with a manual clock.
struct Processes {
    bus: Bus,
    clock: ManualClock,
    projector: Projector<ProcessProjection>,
}

impl Processes {
    async fn new() -> Self {
        let (bus, clock) = (Bus::memory(), ManualClock::new(START_MS));
        let projector = Self::open(&bus, &clock).await;
        Self { bus, clock, projector }
    }

    async fn open(bus: &Bus, clock: &ManualClock) -> Projector<ProcessProjection> {
        let options = process_state::options().clock(Arc::new(clock.clone()));
        Projector::open(bus, options, ProcessProjection).await.expect("it opens")
    }

    async fn beat(&mut self, name: &str) {
        let (name, host) = (name.to_owned(), "local".to_owned());
        let heartbeat = HeartbeatPayload { pid: 7, name, host, cpu_pct: 12.5, mem_mb: 210.0, sid: None };
        let publish = self.bus.publish(HEARTBEAT_RECEIVED, &heartbeat).ts(self.clock.wall_ms());
        publish.await.expect("it publishes");
    }

    async fn pass(&mut self, by_ms: u64) {
        self.clock.advance_ms(by_ms);
        self.projector.tick().await.expect("it ticks");
    }

    /// The state events of a process in the output topic, one letter each: a (alive) or s (stale).
    async fn history(&self, name: &str) -> String {
        let mut history = String::new();
        for event in all_events(&self.bus, PROCESS_STATE.name()).await {
            let state: ProcessState = event.json().expect("a state");
            if state.name == name {
                assert_eq!(event.key(), Some(state.process_id.as_str()));
                history.push(if state.status == ProcessStatus::Alive { 'a' } else { 's' });
            }
        }
        history
    }
}

#[tokio::test]
async fn a_silent_process_is_stale_after_15_seconds_and_alive_when_it_returns() {
    let mut processes = Processes::new().await;
    processes.beat("web").await;
    processes.beat("stt").await;
    processes.projector.next().await.expect("it folds");
    processes.pass(15_000).await;
    assert_eq!(processes.history("web").await, "a", "not stale at exactly 15 seconds");
    processes.beat("stt").await;
    processes.projector.next().await.expect("it folds");
    processes.pass(1).await;
    processes.pass(5_000).await;
    assert_eq!(processes.history("web").await, "as", "published once");
    assert_eq!(processes.history("stt").await, "aa");
    processes.beat("web").await;
    processes.projector.next().await.expect("it folds");
    assert_eq!(processes.history("web").await, "asa");

    let events = all_events(&processes.bus, PROCESS_STATE.name()).await;
    let last = events.last().expect("there are states");
    let expected = format!(
        r#"{{"processId":"local:web:7","name":"web","host":"local","pid":7,"cpu_pct":12.5,"mem_mb":210.0,"last_seen_ts":{},"status":"alive"}}"#,
        START_MS + 20_001
    );
    assert_eq!(last.payload(), expected);
}

#[tokio::test]
async fn a_process_that_fell_silent_while_no_projector_ran_becomes_stale() {
    let mut processes = Processes::new().await;
    processes.beat("web").await;
    processes.beat("stt").await;
    processes.projector.next().await.expect("it folds");
    let Processes { bus, clock, projector } = processes;
    drop(projector);
    clock.advance_ms(60_000);
    let projector = Processes::open(&bus, &clock).await;
    let mut processes = Processes { bus, clock, projector };
    processes.beat("stt").await;
    processes.projector.next().await.expect("it folds");
    processes.pass(0).await;
    assert_eq!(processes.history("web").await, "as");
    assert_eq!(processes.history("stt").await, "aa");
}

#[tokio::test]
async fn a_late_heartbeat_does_not_replace_a_newer_state() {
    let mut processes = Processes::new().await;
    processes.beat("web").await;
    processes.clock.set_wall_ms(START_MS - 60_000);
    processes.beat("web").await;
    processes.clock.set_wall_ms(START_MS);
    processes.projector.next().await.expect("it folds");
    processes.pass(0).await;
    assert_eq!(processes.history("web").await, "a");
}

#[tokio::test]
async fn no_process_becomes_stale_before_the_backlog_is_read() {
    let mut processes = Processes::new().await;
    processes.beat("web").await;
    processes.projector.next().await.expect("it folds");
    let Processes { bus, clock, projector } = processes;
    drop(projector);
    clock.advance_ms(60_000);
    // The process was alive all the time: the last of these heartbeats is from now.
    for age_ms in (0..400).rev() {
        let (name, host) = ("web".to_owned(), "local".to_owned());
        let heartbeat = HeartbeatPayload { pid: 7, name, host, cpu_pct: 1.0, mem_mb: 2.0, sid: None };
        let publish = bus.publish(HEARTBEAT_RECEIVED, &heartbeat).ts(clock.wall_ms() - age_ms * 100);
        publish.await.expect("it publishes");
    }
    let options = process_state::options().clock(Arc::new(clock.clone())).batch_size(3);
    let options = options.tick_every(std::time::Duration::from_millis(1));
    let projector = Projector::open(&bus, options, ProcessProjection).await.expect("it opens").spawn();
    while projector.figures().folded < 400 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    projector.stop().await.expect("it stops");
    let states = all_events(&bus, PROCESS_STATE.name()).await;
    assert!(states.len() > 100, "{}", states.len());
    let stale = states.iter().filter(|event| event.payload().contains("stale")).count();
    assert_eq!(stale, 0);
}

#[tokio::test]
async fn more_processes_than_fit_into_a_commit_may_become_stale_at_once() {
    const PROCESSES: usize = 5_000;
    let (folder, clock) = (Folder::new(), ManualClock::new(START_MS));
    let bus = open_bus(folder.path()).await;
    let projector = Processes::open(&bus, &clock).await;
    let mut processes = Processes { bus, clock, projector };
    for number in 0..PROCESSES {
        processes.beat(&format!("process-{number}")).await;
    }
    catch_up(&processes.bus, &mut processes.projector, HEARTBEAT_RECEIVED.name(), process_state::GROUP).await;
    processes.pass(15_001).await;
    let stale = all_events(&processes.bus, PROCESS_STATE.name()).await.into_iter().skip(PROCESSES);
    let stale: Vec<ProcessState> = stale.map(|event| event.json().expect("a state")).collect();
    assert_eq!(stale.len(), PROCESSES);
    assert!(stale.iter().all(|state| state.status == ProcessStatus::Stale));
    processes.pass(15_001).await;
    assert_eq!(all_events(&processes.bus, PROCESS_STATE.name()).await.len(), 2 * PROCESSES);
}

/// A new projector must not skip inputs that an older one had leased but not folded, however slowly records become durable.
#[test]
fn a_projector_that_is_reopened_at_once_skips_nothing() {
    let rig = Rig::new(1);
    let numbers: Vec<i64> = (1..=20).collect();
    let open = |batch_size| {
        let mut opening = Box::pin(Projector::open(&rig.bus, sums_options(batch_size), Sums));
        rig.done(&mut opening).expect("it opens")
    };
    for number in &numbers {
        rig.done(rig.bus.publish("numbers", number).key("key").send()).expect("publishes");
    }
    let mut first = open(5);
    {
        // It gets a quarter of the inputs and is dropped while its states are being published.
        let mut folding = Box::pin(first.next());
        assert!(poll(&mut folding).is_pending(), "nothing is committed");
    }
    drop(first);
    let mut second = open(10);
    while rig.floor("numbers", "sums-projector") < 20 {
        rig.done(Box::pin(second.next())).expect("it folds");
    }
    assert_eq!(second.states().get("all"), Some(&numbers.iter().sum()));
    drop(second);
    // The states as the next projector reads them.
    let third = open(10);
    assert_eq!(third.states().get("all"), Some(&numbers.iter().sum()));
    rig.stop();
}

/// An older projector had leased inputs but published nothing.
#[test]
fn a_reopened_projector_gets_the_leases_of_the_older_one() {
    let rig = Rig::new(1);
    for number in 1..=20_i64 {
        rig.done(rig.bus.publish("numbers", &number).key("key").send()).expect("publishes");
    }
    // Like a projector that is dropped after a pull. It has pulled fewer events than the next one pulls at once.
    let mut older = rig.join(rig.bus.subscribe("numbers", "sums-projector").from_earliest().batch_size(5));
    let held = rig.done(Box::pin(older.next_batch())).expect("reads");
    assert_eq!(held.len(), 5);
    drop((held, older));
    let mut opening = Box::pin(Projector::open(&rig.bus, sums_options(10), Sums));
    let mut projector = rig.done(&mut opening).expect("it opens");
    while rig.floor("numbers", "sums-projector") < 20 {
        rig.done(Box::pin(projector.next())).expect("it folds");
    }
    assert_eq!((projector.states().get("all"), projector.figures().skipped), (Some(&210), 0));
    rig.stop();
}

/// An older projector that is still alive neither publishes nor pulls; it returns `Superseded`.
#[tokio::test]
async fn an_older_projector_ends_when_a_newer_one_is_opened() {
    let bus = Bus::memory();
    for number in 1..=20_i64 {
        bus.publish("numbers", &number).key("key").await.expect("publishes");
    }
    let mut older = Projector::open(&bus, sums_options(5), Sums).await.expect("it opens");
    older.next().await.expect("it folds");
    let mut newer = Projector::open(&bus, sums_options(5), Sums).await.expect("it opens");
    assert!(matches!(older.next().await, Err(ProjectorError::Superseded)));
    let mut older_tick = older;
    older_tick.tick().await.expect("it has nothing to publish");
    catch_up(&bus, &mut newer, "numbers", "sums-projector").await;
    assert_eq!(newer.states().get("all"), Some(&210));
}
