//! Opens folders that earlier versions of the library wrote; every version must stay readable. They contain groups with acks
//! above an unsettled event, attempts, a pattern, a filter, and from version 2 on lease marks. `PROMBUS_WRITE_FIXTURE=1`
//! writes the newest fixture if it does not exist.

use crate::folder::Folder;
use prombus::engine::LogEngineOptions;
use prombus::{Bus, BusBuilder, PublishOptions, RedeliveryReason, Uuid};
use prombus_log::Options;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The current version of group records.
const NEWEST: u32 = 2;

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{version}"))
}

fn builder() -> BusBuilder {
    let log = Options {
        segment_bytes: 16 * 1024,
        reserve_bytes: 8 * 1024,
        checkpoint_bytes: 4 * 1024,
        ..Options::default()
    };
    Bus::builder().log(LogEngineOptions { log })
}

async fn write(folder: &Path) {
    let bus = builder().open(folder).await.expect("opens");
    for number in 1..=20_u32 {
        let options = PublishOptions {
            id: (number == 7).then(|| Uuid::from_u128(7)),
            key: Some(format!("key-{number}")),
            tags: if number % 2 == 0 { vec!["even".to_owned()] } else { Vec::new() },
            ..PublishOptions::default()
        };
        bus.publish("orders.new", &number).options(options).await.expect("publishes");
    }
    let mut billing =
        bus.subscribe("orders.new", "billing").from_earliest().batch_size(10).await.expect("joins");
    for delivery in billing.next_batch().await.expect("reads").iter() {
        match delivery.seq() {
            3 => drop(delivery.nack_after(Duration::from_secs(3_600), "later").await.expect("nacks")),
            5 => {}
            _ => drop(delivery.ack().await.expect("acks")),
        }
    }
    billing.unsubscribe().await.expect("leaves");
    let mut even = bus.subscribe("orders.*", "even").tag("even").from_earliest().await.expect("joins");
    even.next().await.expect("an event").expect("reads").ack().await.expect("acks");
    even.unsubscribe().await.expect("leaves");
    let fragile = bus.subscribe("orders.new", "fragile").from_earliest().batch_size(1).max_attempts(1);
    let mut fragile = fragile.await.expect("joins");
    fragile.next().await.expect("an event").expect("reads").nack("boom").await.expect("nacks");
    fragile.unsubscribe().await.expect("leaves");
    bus.close().await.expect("closes");
}

#[tokio::test]
async fn the_fixture_is_written_when_asked() {
    if std::env::var_os("PROMBUS_WRITE_FIXTURE").is_some() && !fixture(NEWEST).exists() {
        write(&fixture(NEWEST)).await;
    }
}

#[tokio::test]
async fn the_fixture_of_version_1_opens_and_its_groups_continue() {
    // Its groups have no lease marks, so it is unknown which events were delivered.
    opens_and_continues(1, None, (8, 9)).await;
}

#[tokio::test]
async fn the_fixture_of_version_2_opens_and_its_groups_continue() {
    opens_and_continues(2, Some(RedeliveryReason::ServerRestarted), (0, 17)).await;
}

/// The fifth event of the first group was delivered and returned before the bus was closed. `even` is the number of events
/// that the group with the filter had settled above its floor, and its lag: version 1 read further ahead.
async fn opens_and_continues(version: u32, reason_of_fifth: Option<RedeliveryReason>, even: (u64, u64)) {
    let copy = Folder::new();
    for entry in std::fs::read_dir(fixture(version)).expect("the fixture exists") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copies");
    }
    let bus = builder().open(copy.path()).await.expect("opens");
    let groups = bus.groups().await.expect("lists groups");
    let found: Vec<_> = groups
        .iter()
        .map(|it| {
            (it.topic.as_str(), it.group.as_str(), it.topics[0].floor, it.topics[0].settled_above, it.lag)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("orders.new", "billing", 2, 6, 12),
            ("orders.*", "even", 3, even.0, even.1),
            ("orders.new", "fragile", 1, 0, 19)
        ]
    );
    let mut billing = bus.subscribe("orders.new", "billing").await.expect("joins");
    let mut came: Vec<(u64, u32, Option<RedeliveryReason>)> = Vec::new();
    // Events above the lease mark are delivered by a later pull.
    while !came.iter().any(|&(seq, ..)| seq == 12) {
        let batch = billing.next_batch().await.expect("reads");
        came.extend(batch.iter().map(|it| (it.seq(), it.attempt(), it.reason())));
    }
    let reason = |seq| came.iter().find(|it| it.0 == seq).expect("it came").2;
    assert_eq!((reason(5), reason(11)), (reason_of_fifth, None));
    let came: Vec<_> = came.iter().map(|&(seq, attempt, _)| (seq, attempt)).collect();
    // The third event still waits for its delay, or the delay is over and it comes first, as attempt 2.
    let waits = groups[0].waiting == 1 && came[0].0 != 3;
    assert!(waits || came[0] == (3, 2), "{came:?}");
    assert_eq!(came.iter().map(|it| it.0).filter(|&seq| seq != 3).collect::<Vec<_>>()[..3], [5, 11, 12]);
    let mut even = bus.subscribe("orders.*", "even").tag("even").await.expect("joins");
    assert_eq!(even.next().await.expect("an event").expect("reads").seq(), 4);
    let letters = bus.topics().await.expect("lists topics");
    assert!(letters.iter().any(|it| it.topic.as_str() == "dlq.orders.new" && it.last_seq == 1));
    let again = bus.publish("orders.new", &7).id(Uuid::from_u128(7)).await.expect("succeeds");
    assert_eq!((again.duplicate, again.seq), (true, 7));
    bus.close().await.expect("closes");
}
