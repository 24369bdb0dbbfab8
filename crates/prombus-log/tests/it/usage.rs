//! The size of each topic, according to the indexes.

use crate::support::{Cut, Rig, clean, event, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{NewEvent, Options, TopicUsage};

const FRAME_HEADER: u64 = 64;

#[test]
fn usage_counts_the_frames_of_each_topic_exactly() {
    let options = Options { tail_bytes: 0, ..small_options() };
    let rig = Rig::open(&Disk::new(1), options).unwrap();
    let (a, b) = (rig.topic("a"), rig.topic("b"));
    let gone = rig.fill("gone", 40);
    let mut bytes = [0; 2];
    for round in 0..300_u64 {
        let body = vec![b'x'; (round % 90) as usize];
        rig.put_events(&[event(a, &body), NewEvent { key: Some(b"key"), ..event(b, &[b'y'; 300]) }]);
        bytes[0] += FRAME_HEADER + round % 90;
        bytes[1] += FRAME_HEADER + 3 + 300;
    }
    rig.log.delete_topic(gone).unwrap();
    rig.settle();
    let expected =
        [(a, bytes[0]), (b, bytes[1])].map(|(topic, bytes)| TopicUsage { topic, events: 300, bytes });
    assert!(rig.log.stats().segments > 5);
    assert_eq!(rig.log.usage().unwrap(), expected);
    let rig = rig.reopen();
    assert_eq!(rig.log.usage().unwrap(), expected, "after a restart");

    clean(&rig.log, &Cut(|topic| if topic == a { 250 } else { 1 })).unwrap();
    let usage = rig.log.usage().unwrap();
    assert!(usage[0].events < 300 && usage[0].events >= 51, "{usage:?}");
    assert_eq!(usage[1], expected[1]);
}

#[test]
fn the_first_seq_within_a_size_keeps_about_that_much() {
    let rig = Rig::new(2);
    let topic = rig.topic("t");
    for _ in 0..600 {
        rig.put_events(&[event(topic, &[b'x'; 136])]);
    }
    let within = |bytes| rig.log.first_within_bytes(topic, bytes).unwrap();
    assert_eq!(within(u64::MAX), 1);
    assert_eq!(within(0), 600, "the newest event is always included");
    for kept in [1, 7, 100, 333, 599] {
        let first = within(kept * 200);
        assert!(first.abs_diff(601 - kept) <= 1, "{kept} events fit: {first}");
    }
    let empty = rig.topic("empty");
    assert_eq!(rig.log.first_within_bytes(empty, 100).unwrap(), 1);
}
