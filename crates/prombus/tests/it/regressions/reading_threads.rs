//! Which thread reads: files are read off the async threads, events in memory on the caller's thread.
//!
//! The tests make the runtime's only blocking thread busy. A call that finishes anyway did its work on the async thread.

use super::hooked_engine::hooked;
use crate::rig::Rig;
use prombus::{Backend, BusPosition, Keys, LatestQuery, MergedQuery, Pattern, PullLimit, Start, Topic, Uuid};
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// A bus whose oldest events are in files and whose newest are in memory.
struct Kept {
    rig: Rig,
    topic: Topic,
    ids: Vec<Uuid>,
}

const EVENTS: u64 = 300;

fn kept() -> Kept {
    let rig = Rig::new(1);
    let value = "v".repeat(100);
    let ids = (1..=EVENTS).map(|seq| {
        let publishing = rig.bus.publish("kv", value.as_str()).key(format!("key-{seq}")).send();
        rig.done(publishing).expect("publishes").id
    });
    let ids = ids.collect();
    rig.publish("other", "one");
    Kept { rig, topic: Topic::new("kv").expect("a good name"), ids }
}

/// A runtime whose only blocking thread is busy until it is released.
struct BusyRuntime {
    runtime: Option<Runtime>,
    release: Option<mpsc::Sender<()>>,
}

impl BusyRuntime {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().max_blocking_threads(1).enable_time().build();
        let runtime = runtime.expect("a runtime");
        let (release, released) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || released.recv());
        Self { runtime: Some(runtime), release: Some(release) }
    }

    fn run<F: Future>(&self, within: Duration, future: F) -> Option<F::Output> {
        let runtime = self.runtime.as_ref().expect("it is there");
        runtime.block_on(async { timeout(within, future).await.ok() })
    }

    /// The output of a call that needs no blocking thread.
    fn run_here<F: Future>(&self, future: F) -> F::Output {
        self.run(Duration::from_secs(10), future).expect("it must not wait for a blocking thread")
    }

    fn needs_blocking_thread<F: Future>(&self, what: &str, future: F) {
        let done = self.run(Duration::from_millis(50), future);
        assert!(done.is_none(), "{what}: the async thread read files");
    }

    fn release(&mut self) {
        self.release = None;
    }
}

impl Drop for BusyRuntime {
    fn drop(&mut self) {
        self.release();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn of_key(key: &str) -> LatestQuery {
    LatestQuery { keys: Keys::These(vec![key.to_owned()]), ..LatestQuery::default() }
}

/// A list uses one blocking thread. If it needed a second one, as many concurrent lists as there are threads would deadlock.
#[test]
fn lists_of_topics_need_one_blocking_thread_each() {
    let Kept { rig, topic, .. } = kept();
    let runtime = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(2).enable_time().build();
    let runtime = runtime.expect("a runtime");
    let lists = (0..32).map(|_| {
        let (backend, topic) = (rig.backend.clone(), topic.clone());
        runtime.spawn(async move {
            assert_eq!(backend.topics().await.expect("lists").len(), 2);
            assert!(backend.topic_details(&topic).await.expect("reads").is_some());
            assert_eq!(backend.topics_by_name(vec![topic]).await.expect("lists").len(), 1);
        })
    });
    let lists: Vec<_> = lists.collect();
    let all = runtime.block_on(async {
        timeout(Duration::from_secs(20), async {
            for list in lists {
                list.await.expect("no panic");
            }
        })
        .await
    });
    runtime.shutdown_background();
    all.expect("the lists do not wait for each other");
    rig.stop();
}

#[test]
fn a_read_of_a_topic_uses_a_blocking_thread_only_for_files() {
    let Kept { rig, topic, .. } = kept();
    let mut busy = BusyRuntime::new();
    let limit = PullLimit::default();
    let newest = busy.run_here(rig.backend.read(&topic, EVENTS, limit)).expect("reads");
    assert_eq!(newest.events.items().len(), 1);
    let nothing = busy.run_here(rig.backend.read(&topic, EVENTS + 1, limit)).expect("reads");
    assert_eq!(nothing.next_seq, EVENTS + 1);
    busy.needs_blocking_thread("a read of old events", rig.backend.read(&topic, 1, limit));
    busy.release();
    let oldest = busy.run_here(rig.backend.read(&topic, 1, limit)).expect("reads");
    assert_eq!(oldest.events.items().len() as u64, EVENTS);
    rig.stop();
}

#[test]
fn the_state_of_a_topic_uses_a_blocking_thread_only_for_files() {
    let Kept { rig, topic, .. } = kept();
    let newest_key = format!("key-{EVENTS}");
    let mut cold = BusyRuntime::new();
    cold.needs_blocking_thread("a cold map", rig.backend.latest(&topic, of_key(&newest_key)));
    let past = LatestQuery { at_ts: Some(i64::MAX), ..of_key(&newest_key) };
    cold.needs_blocking_thread("a state of another time", rig.backend.latest(&topic, past));
    cold.release();
    let page = cold.run_here(rig.backend.latest(&topic, of_key(&newest_key))).expect("reads");
    assert_eq!(page.key_count, EVENTS);
    rig.done(rig.bus.publish("kv", "newer").key(newest_key.as_str()).send()).expect("publishes");

    let busy = BusyRuntime::new();
    let page = busy.run_here(rig.backend.latest(&topic, of_key(&newest_key))).expect("reads");
    assert_eq!(page.events.items()[0].seq, EVENTS + 1);
    let unknown = busy.run_here(rig.backend.latest(&topic, of_key("unknown"))).expect("reads");
    assert!(unknown.events.is_empty());
    busy.needs_blocking_thread("an old event", rig.backend.latest(&topic, of_key("key-1")));
    busy.needs_blocking_thread("all keys", rig.backend.latest(&topic, LatestQuery::default()));
    rig.stop();
}

#[test]
fn places_in_several_topics_are_found_off_the_async_threads() {
    let Kept { rig, topic, ids } = kept();
    let (backend, pattern) = (&rig.backend, Pattern::new("**").expect("a pattern"));
    let mut busy = BusyRuntime::new();
    let after = busy.run_here(backend.place_of(&pattern, Start::Latest)).expect("is there");
    let query = || MergedQuery {
        pattern: pattern.clone(),
        filter: None,
        after: Some(BusPosition::START),
        is_live: false,
    };
    let other = BusPosition { topic: u32::MAX, ..after };
    busy.needs_blocking_thread("a time", backend.place_of(&pattern, Start::Ts(1)));
    busy.needs_blocking_thread("an id", backend.place_of(&pattern, Start::AfterId(ids[0])));
    busy.needs_blocking_thread("an id in a topic", backend.locate(&topic, Start::AfterId(ids[0])));
    busy.needs_blocking_thread("a seq after a position", backend.first_after(&topic, other));
    busy.needs_blocking_thread("a list of topics", async { backend.merged(query()).await.is_ok() });
    busy.release();
    let first = busy.run_here(backend.place_of(&pattern, Start::AfterId(ids[0]))).expect("is there");
    assert_eq!(first.seq, 1);
    assert!(busy.run_here(backend.place_of(&pattern, Start::Ts(1))).is_ok());
    assert_eq!(busy.run_here(backend.locate(&topic, Start::AfterId(ids[0]))), Ok(2));
    assert_eq!(busy.run_here(backend.first_after(&topic, other)), Ok(EVENTS + 1));
    let reader = busy.run_here(backend.merged(query())).expect("reads");
    let (_, chunk) = busy.run_here(reader.read(PullLimit::default()));
    assert!(!chunk.expect("reads").places.is_empty());
    rig.stop();
}

/// The reading thread keeps the map locked even after its caller stopped waiting. The next caller waits for it without
/// blocking its own thread.
#[test]
fn a_fold_whose_caller_is_gone_blocks_no_async_thread() {
    let (rig, engine) = hooked();
    // More events than are read on an async thread.
    let all: Vec<_> = (0..20_100).map(|_| rig.bus.publish("kv", "v").key("k").send()).collect();
    for publishing in all {
        rig.done(publishing).expect("publishes");
    }
    let (release, released) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    *engine.reads.in_next.lock().expect("no panic") = Some(Box::new(move || {
        begun.send(()).expect("the test waits");
        let _ = released.recv();
    }));
    let (backend, topic) = (rig.backend.clone(), Topic::new("kv").expect("a good name"));
    let (report, reported) = mpsc::channel();
    let asking = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let short = Duration::from_millis(50);
            assert!(timeout(short, backend.latest(&topic, of_key("k"))).await.is_err());
            has_begun.recv().expect("the fold begins");
            let is_waiting = timeout(short, backend.latest(&topic, of_key("k"))).await.is_err();
            report.send(is_waiting).expect("the test waits");
            backend.latest(&topic, of_key("k")).await.expect("reads").key_count
        })
    });
    let is_waiting = reported.recv_timeout(Duration::from_secs(10));
    drop(release);
    assert_eq!(asking.join().expect("no panic"), 1);
    assert_eq!(is_waiting, Ok(true), "the second caller's thread is blocked");
    rig.stop();
}
