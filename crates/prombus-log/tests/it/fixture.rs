//! Opens a folder of every released format version. `PROMBUS_WRITE_FIXTURE=1` writes the folder of the current version if
//! it does not exist.

use crate::support::{HandClock, Listener, Lives, Remembered, clean, read_all};
use prombus_log::{Append, EventId, Log, NewEvent, NewState, Options, Outcomes, verify};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{version}"))
}

/// A backup of the fixture's log after cleaning, with rewritten segments and kept ids.
fn cleaned_fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{version}-cleaned"))
}

fn options() -> Options {
    Options {
        segment_bytes: 16 * 1024,
        reserve_bytes: 8 * 1024,
        checkpoint_bytes: 8 * 1024,
        clock: HandClock::at(1_700_000_000_000),
        ..Options::default()
    }
}

/// The body of event `n` of 1..=300 in the fixture. Its topic is `topic(n)`.
fn body(number: u64) -> String {
    format!("{{\"ts\":{},\"topic\":\"{}\",\"payload\":{{\"n\":{number}}}}}", 1_000 + number, topic(number))
}

fn topic(number: u64) -> &'static str {
    if number % 2 == 0 { "orders.placed" } else { "heartbeat.received" }
}

fn client_id(number: u64) -> Option<EventId> {
    (number % 3 == 0)
        .then(|| EventId::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(number)))
}

fn key(number: u64) -> Option<String> {
    (number % 5 == 0).then(|| format!("key-{}", number % 7))
}

#[test]
fn the_fixture_of_the_current_version_is_written_on_request() {
    let folder = fixture(prombus_log::FORMAT_VERSION);
    if std::env::var_os("PROMBUS_WRITE_FIXTURE").is_none() || folder.exists() {
        return;
    }
    let log = Log::open_with_state(&folder, options(), Box::new(Remembered::default())).unwrap();
    let mut outcomes = Outcomes::default();
    for number in 1..=300_u64 {
        let body = body(number);
        let key = key(number);
        let event = NewEvent {
            topic: log.ensure_topic(topic(number)).unwrap(),
            id: client_id(number),
            ts: 1_000 + number as i64,
            key: key.as_ref().map(String::as_bytes),
            body: body.as_bytes(),
            tombstone: false,
        };
        let state = number.to_le_bytes();
        let states = [NewState { tag: number as u32, body: &state }];
        let states = if number % 10 == 0 { &states[..] } else { &[] };
        let append = Append { events: &[event], states, use_reserve: false };
        let ticket = log.append(&append, &mut outcomes).unwrap();
        log.wait(ticket).unwrap();
    }
    log.close().unwrap();
}

/// Whether the cleaned fixture contains an event.
fn is_kept(seq: u64) -> bool {
    seq > 60 && (seq > 120 || seq % 8 == 0)
}

fn copied(fixture: &Path, name: &str) -> PathBuf {
    let copy = std::env::temp_dir().join(format!("prombus-log-fixture-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&copy);
    std::fs::create_dir_all(&copy).unwrap();
    for entry in std::fs::read_dir(fixture).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    copy
}

#[test]
fn the_cleaned_fixture_of_the_current_version_is_written_on_request() {
    let folder = cleaned_fixture(prombus_log::FORMAT_VERSION);
    if std::env::var_os("PROMBUS_WRITE_FIXTURE").is_none() || folder.exists() {
        return;
    }
    let copy = copied(&fixture(prombus_log::FORMAT_VERSION), "to-clean");
    let log = Log::open_with_state(&copy, options(), Box::new(Remembered::default())).unwrap();
    let report = clean(&log, &Lives(|_, seq| is_kept(seq))).unwrap();
    assert!(report.segments_retired > 0 && report.segments_rewritten > 1, "{report:?}");
    log.backup(&folder, &mut |_| {}).unwrap();
    log.close().unwrap();
    std::fs::remove_dir_all(&copy).unwrap();
}

#[test]
fn the_cleaned_fixture_of_version_1_opens_with_all_live_events_and_all_ids() {
    let copy = copied(&cleaned_fixture(1), "cleaned");
    assert_eq!(verify(&copy, |_| {}).unwrap().faults, []);
    let listener = Listener::new();
    let state = Remembered::default();
    let options = Options { observer: Arc::<Listener>::clone(&listener), ..options() };
    let log = Log::open_with_state(&copy, options, Box::new(state.clone())).unwrap();
    assert_eq!(state.all(), (10..=300).step_by(10).collect::<Vec<_>>());
    for number in 1..=300 {
        let id = log.topic(topic(number)).unwrap();
        let seq = number.div_ceil(2);
        if let Some(client_id) = client_id(number) {
            assert_eq!(log.find_id(id, client_id).unwrap(), Some(seq), "{number}");
        }
        let read = read_all(&log, id).into_iter().find(|read| read.seq == seq);
        assert_eq!(read.is_some(), is_kept(seq), "{number}");
        if let Some(read) = read {
            assert_eq!(read.body, body(number).into_bytes());
        }
    }
    log.close().unwrap();
    assert!(listener.faults().is_empty());
    std::fs::remove_dir_all(&copy).unwrap();
}

#[test]
fn the_fixture_of_version_1_opens_with_all_events() {
    let copy = copied(&fixture(1), "v1");
    assert_eq!(verify(&copy, |_| {}).unwrap().faults, []);

    let listener = Listener::new();
    let state = Remembered::default();
    let options = Options { observer: Arc::<Listener>::clone(&listener), ..options() };
    let log = Log::open_with_state(&copy, options, Box::new(state.clone())).unwrap();
    assert_eq!(state.all(), (10..=300).step_by(10).collect::<Vec<_>>());
    assert_eq!(
        log.topics().iter().map(|topic| (&*topic.name, topic.last_seq)).collect::<Vec<_>>(),
        [("heartbeat.received", 150), ("orders.placed", 150)]
    );
    for parity in [0, 1] {
        let id = log.topic(topic(parity)).unwrap();
        let events = read_all(&log, id);
        let numbers: Vec<u64> = (1..=300).filter(|number| number % 2 == parity).collect();
        assert_eq!(events.len(), numbers.len());
        for (read, number) in events.iter().zip(numbers) {
            assert_eq!(read.body, body(number).into_bytes());
            assert_eq!(read.ts, 1_000 + number as i64);
            assert_eq!(read.key, key(number).map(String::into_bytes));
            assert_eq!(read.client_id, client_id(number).is_some());
            assert_eq!(log.find_id(id, read.id).unwrap(), Some(read.seq));
        }
    }
    let orders = log.topic("orders.placed").unwrap();
    assert_eq!(log.find_key(orders, b"key-0").unwrap(), Some(140));
    let again = NewEvent { topic: orders, id: client_id(6), ts: 0, key: None, body: b"{}", tombstone: false };
    let mut outcomes = Outcomes::default();
    let ticket = log
        .append(
            &Append { events: &[again, NewEvent { id: None, ..again }], ..Append::default() },
            &mut outcomes,
        )
        .unwrap();
    log.wait(ticket).unwrap();
    assert!(outcomes[0].duplicate);
    assert_eq!((outcomes[0].seq, outcomes[1].seq), (3, 151));
    log.close().unwrap();
    assert!(listener.faults().is_empty());
    std::fs::remove_dir_all(&copy).unwrap();
}
