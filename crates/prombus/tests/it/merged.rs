//! Several topics as one merged sequence: resuming from a position in it loses and repeats nothing.

use crate::folder::Folder;
use prombus::engine::LogEngine;
use prombus::{
    BoxFuture, Bus, BusPosition, Clock, Filter, Limits, LocalBackend, ManualClock, MergedChunk, MergedQuery,
    MergedReader, More, Pattern, PullLimit, ReadError, Start,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Waits for a future.
fn done<T>(mut future: BoxFuture<'_, T>) -> T {
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        std::thread::yield_now();
    }
}

/// A reader that waits for its results.
struct Reader(Option<Box<dyn MergedReader>>);

impl Reader {
    fn read(&mut self, limit: PullLimit) -> Result<MergedChunk, ReadError> {
        let (reader, read) = done(self.0.take().expect("it is there").read(limit));
        self.0 = reader;
        read
    }

    fn get(&mut self) -> &mut dyn MergedReader {
        &mut **self.0.as_mut().expect("it is there")
    }
}

/// Pseudorandom numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[expect(clippy::print_stdout, reason = "a failed run can be repeated")]
fn seed() -> u64 {
    let seed = std::env::var("PROMBUS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| since.as_nanos() as u64)
    });
    println!("PROMBUS_SEED={seed}");
    seed
}

fn query(pattern: &str, after: Option<BusPosition>, is_live: bool) -> MergedQuery {
    MergedQuery { pattern: Pattern::new(pattern).expect("a pattern"), filter: None, after, is_live }
}

fn reader(bus: &Bus, query: MergedQuery) -> Reader {
    Reader(Some(done(bus.backend().merged(query)).expect("reads")))
}

/// The next chunk with events, or an empty one at the end of the existing events.
fn piece(reader: &mut Reader, limit: PullLimit) -> MergedChunk {
    loop {
        let chunk = reader.read(limit).expect("reads");
        if !chunk.places.is_empty() || chunk.more == More::Later {
            return chunk;
        }
        if chunk.more == More::Soon {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Events that are committed in the same millisecond as a reader's start position come after that position.
#[tokio::test]
async fn events_of_the_same_millisecond_as_the_newest_position_come_after_it() {
    let clock = ManualClock::new(1_700_000_000_000);
    let shared: Arc<dyn Clock> = Arc::new(clock);
    let store = Arc::new(LogEngine::in_memory(1 << 20, Arc::clone(&shared)).expect("opens"));
    let backend = LocalBackend::open_without_timer(store, shared, Limits::default()).expect("opens");
    let bus = Bus::with_backend(Arc::new(backend));
    bus.publish("orders.a", &0).await.expect("publishes");
    let newest = reader(&bus, query("orders.*", None, true)).get().position();
    for topic in ["orders.a", "orders.b"] {
        bus.publish(topic, &1).await.expect("publishes");
    }
    let mut resumed = reader(&bus, query("orders.*", Some(newest), true));
    let mut seen = Vec::new();
    for _ in 0..20 {
        let chunk = resumed.read(PullLimit::default()).expect("reads");
        seen.extend(chunk.events.items().iter().map(|item| chunk.events.topic(item).to_string()));
    }
    assert_eq!(seen, ["orders.a", "orders.b"]);
}

/// The events that a reader returned: topics and seqs.
type Seen = BTreeSet<(String, u64)>;

/// Adds the first `count` events of a chunk. Returns the position after the last of them.
fn take(
    seen: &mut Seen,
    last: &mut BTreeMap<String, u64>,
    chunk: &MergedChunk,
    count: usize,
) -> Option<BusPosition> {
    let mut place = None;
    for (item, at) in chunk.events.items().iter().zip(&chunk.places).take(count) {
        let topic = chunk.events.topic(item).to_string();
        let seq = item.seq;
        assert!(place.is_none_or(|before| before < *at), "places rise");
        let before = last.insert(topic.clone(), seq);
        assert!(before.is_none_or(|before| before < seq), "{topic}: {seq} after {before:?}");
        assert!(seen.insert((topic, seq)), "repeated");
        place = Some(*at);
    }
    place
}

async fn publish_some(bus: &Bus, random: &mut Random, count: u64, topics: u64) {
    for _ in 0..count {
        let mut batch = bus.batch();
        for _ in 0..=random.below(8) {
            let topic = format!("r.{}", random.below(topics));
            batch.push(&topic, &random.below(1_000), &Default::default()).expect("an event");
        }
        bus.publish_batch(batch).await.expect("publishes");
    }
}

async fn all_of(bus: &Bus) -> Seen {
    let mut all = Seen::new();
    for info in bus.topics().await.expect("topics") {
        all.extend((1..=info.last_seq).map(|seq| (info.topic.to_string(), seq)));
    }
    all
}

/// Publishers run while a reader is interrupted and resumes at random, also across restarts.
async fn no_interruption_loses_or_repeats(open: impl Fn() -> Bus, restarts: u32) {
    let mut random = Random(seed());
    let (mut seen, mut last, mut place) = (Seen::new(), BTreeMap::new(), None);
    for round in 0..=restarts {
        let bus = open();
        let is_over = Arc::new(AtomicBool::new(false));
        let publishers: Vec<_> = (0..3)
            .map(|number| {
                let (bus, is_over, mut random) =
                    (bus.clone(), Arc::clone(&is_over), Random(random.0 + number));
                tokio::spawn(async move {
                    for step in 0..40 {
                        // New topics appear over time.
                        publish_some(&bus, &mut random, 5, 2 + u64::from(round) * 5 + step / 10).await;
                    }
                    is_over.store(true, Ordering::SeqCst);
                })
            })
            .collect();
        let reading = {
            let (bus, is_over, mut random) = (bus.clone(), Arc::clone(&is_over), Random(random.0 ^ 99));
            let (mut seen, mut last) = (std::mem::take(&mut seen), std::mem::take(&mut last));
            tokio::task::spawn_blocking(move || {
                let mut place: Option<BusPosition> = place;
                let mut rounds_after = 0;
                while rounds_after < 2 {
                    // If publishing ended before this reader began, the reader sees all events.
                    rounds_after += u32::from(is_over.load(Ordering::SeqCst));
                    let after = Some(place.unwrap_or(BusPosition::START));
                    let mut reader = reader(&bus, query("r.*", after, random.below(2) == 0));
                    for _ in 0..random.below(20) + 200 * u64::from(rounds_after) {
                        let limit = PullLimit { events: random.below(50) as u32, bytes: 1 << 16 };
                        let chunk = piece(&mut reader, limit);
                        if chunk.places.is_empty() {
                            break;
                        }
                        let is_cut = random.below(5) == 0 && rounds_after == 0;
                        let count = if is_cut { random.below(10) as usize } else { usize::MAX };
                        let taken = take(&mut seen, &mut last, &chunk, count);
                        // Convert it to text and back, as over the wire.
                        place = taken.map(|place| place.to_string().parse().expect("a place")).or(place);
                        if is_cut {
                            break;
                        }
                    }
                }
                (seen, last, place)
            })
        };
        for publisher in publishers {
            publisher.await.expect("publishes");
        }
        (seen, last, place) = reading.await.expect("reads");
        // Read the events that the last reader did not reach.
        let mut rest = reader(&bus, query("r.*", place.or(Some(BusPosition::START)), false));
        loop {
            let chunk = piece(&mut rest, PullLimit::default());
            if chunk.places.is_empty() {
                break;
            }
            place = take(&mut seen, &mut last, &chunk, usize::MAX).or(place);
        }
        let all = all_of(&bus).await;
        let missed: Vec<_> = all.difference(&seen).collect();
        assert!(missed.is_empty(), "round {round}: missed {missed:?}, last seen {last:?} at {place:?}");
        assert_eq!(seen.len(), all.len());
        bus.close().await.expect("closes");
        random.below(2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_merged_reader_loses_and_repeats_no_event_in_memory() {
    no_interruption_loses_or_repeats(Bus::memory, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_merged_reader_loses_and_repeats_no_event_across_restarts() {
    let folder = Folder::new();
    no_interruption_loses_or_repeats(|| Bus::builder().open_blocking(folder.path()).expect("opens"), 2).await;
}

#[tokio::test]
async fn a_stopped_clock_does_not_delay_readers() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let bus = Bus::builder().clock(clock).memory().expect("a bus");
    let mut live = reader(&bus, query("**", None, true));
    assert_eq!(live.read(PullLimit::default()).expect("reads").more, More::Later);
    let mut seen = Vec::new();
    // All events in one millisecond, in topics whose ids are not in publish order.
    for topic in ["z", "a", "z", "m", "a"] {
        bus.publish(topic, &1).await.expect("publishes");
        let chunk = piece(&mut live, PullLimit::default());
        assert_eq!(chunk.places.len(), 1, "{topic}");
        seen.push(chunk.position);
    }
    assert!(seen.is_sorted() && seen[0] < seen[4]);
    // Resuming from each position returns all later events.
    for (at, place) in seen.iter().enumerate() {
        let mut rest = reader(&bus, query("**", Some(*place), false));
        assert_eq!(piece(&mut rest, PullLimit::default()).places, seen[at + 1..]);
    }
}

#[tokio::test]
async fn a_merged_reader_uses_commit_order_and_its_filter() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let bus = Bus::builder().clock(Arc::clone(&clock) as Arc<dyn prombus::Clock>).memory().expect("a bus");
    for number in 0..50 {
        let topic = format!("t.{}", number % 7);
        let key = if number % 2 == 0 { "even" } else { "odd" };
        bus.publish(topic, &number).key(key).await.expect("publishes");
        clock.advance_ms(1);
    }
    bus.publish("dlq.t.1", &1).await.expect("publishes");
    clock.advance_ms(1);
    let filter = Filter { key: Some("odd".to_owned()), ..Filter::default() };
    let mut odd =
        reader(&bus, MergedQuery { filter: Some(filter), ..query("**", Some(BusPosition::START), false) });
    let chunk = piece(&mut odd, PullLimit::default());
    assert_eq!(chunk.places.len(), 25);
    let times: Vec<i64> = chunk.places.iter().map(|place| place.commit_ms).collect();
    assert!(times.is_sorted());
    let mut letters = reader(&bus, query("dlq.**", Some(BusPosition::START), false));
    assert_eq!(piece(&mut letters, PullLimit::default()).places.len(), 1);
    // An event id can be converted to a position.
    let third = &chunk.events.items()[2];
    let id = prombus::Uuid::from_u128(third.id.as_u128());
    let pattern = Pattern::new("t.*").expect("a pattern");
    let place = bus.backend().place_of(&pattern, Start::AfterId(id)).await.expect("is there");
    assert_eq!(place, chunk.places[2]);
    // A position that no reader can have reached.
    let ahead = BusPosition::after_time(i64::MAX);
    assert!(bus.backend().merged(query("**", Some(ahead), true)).await.is_err());
}

#[tokio::test]
async fn a_restart_within_the_same_millisecond_adds_nothing_before_a_position() {
    let folder = Folder::new();
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let open = || {
        let builder = Bus::builder().clock(Arc::clone(&clock) as Arc<dyn prombus::Clock>);
        builder.open_blocking(folder.path()).expect("opens")
    };
    let bus = open();
    // Topic ids are in the order in which the topics were created.
    bus.publish("a", &1).await.expect("publishes");
    bus.publish("z", &1).await.expect("publishes");
    let mut all = reader(&bus, query("*", Some(BusPosition::START), false));
    let place = piece(&mut all, PullLimit::default()).position;
    drop(all);
    bus.close().await.expect("closes");
    let bus = open();
    bus.publish("a", &2).await.expect("publishes");
    let mut rest = reader(&bus, query("*", Some(place), false));
    let chunk = piece(&mut rest, PullLimit::default());
    assert_eq!(chunk.places.len(), 1);
    assert!(chunk.places[0] > place);
}
