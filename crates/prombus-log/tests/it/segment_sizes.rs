//! The sizes of segments: a new log begins with a small one, and each is larger than the one before.

use crate::support::{Rig, event, growing_options, read_all, segment_lengths};
use prombus_log::storage::simulated::Disk;
use prombus_log::{Append, AppendError, Options, Outcomes};

const KIB: usize = 1024;

#[test]
fn the_segments_of_a_new_log_grow() {
    let disk = Disk::new(11);
    let rig = Rig::open(&disk, growing_options()).unwrap();
    rig.settle();
    assert_eq!(segment_lengths(&disk), [16 * KIB], "an empty log");
    rig.fill("t", 1);
    assert_eq!(segment_lengths(&disk), [16 * KIB, 32 * KIB], "the first segment, and a prepared one");
    rig.fill("t", 3999);
    let lengths = segment_lengths(&disk);
    let grown = [16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 256 * KIB];
    assert!(lengths.starts_with(&grown), "{lengths:?}");
    rig.log.close().unwrap();
    // The prepared segment is kept, and the next one is not small again.
    let rig = Rig::open(&disk, growing_options()).unwrap();
    rig.settle();
    assert_eq!(segment_lengths(&disk), lengths);
    assert_eq!(read_all(&rig.log, rig.log.topic("t").unwrap()).len(), 4000);
}

#[test]
fn an_append_that_is_larger_than_the_prepared_segments_gets_a_larger_one() {
    let disk = Disk::new(12);
    let rig = Rig::open(&disk, growing_options()).unwrap();
    let topic = rig.fill("t", 3);
    let large = vec![7; 200 * KIB];
    let events = [event(topic, &large)];
    let append = Append { events: &events, ..Append::default() };
    let mut outcomes = Outcomes::default();
    let refused = rig.log.try_append(&append, &mut outcomes);
    assert!(matches!(refused, Err(AppendError::QueueFull)), "{refused:?}");
    rig.settle();
    assert_eq!(segment_lengths(&disk), [16 * KIB, 32 * KIB, 208 * KIB]);
    rig.put(&append);
    // The prepared segment that was too small is used too.
    rig.fill("t", 500);
    assert!(segment_lengths(&disk).starts_with(&[16 * KIB, 32 * KIB, 208 * KIB, 256 * KIB]));
    assert_eq!(read_all(&rig.log, topic).len(), 504);
    let rig = rig.reopen();
    assert_eq!(read_all(&rig.log, topic).len(), 504);
}

#[test]
fn without_room_for_a_larger_segment_small_appends_still_work() {
    let disk = Disk::new(13);
    let rig = Rig::open(&disk, growing_options()).unwrap();
    let topic = rig.fill("t", 3);
    disk.set_capacity(Some(disk.used_bytes() + 64 * 1024));
    let large = vec![7; 200 * KIB];
    let events = [event(topic, &large)];
    let append = Append { events: &events, ..Append::default() };
    let mut outcomes = Outcomes::default();
    assert!(matches!(rig.log.try_append(&append, &mut outcomes), Err(AppendError::QueueFull)));
    rig.settle();
    assert!(matches!(rig.log.try_append(&append, &mut outcomes), Err(AppendError::StorageFull)));
    // These fill the first segment and begin the prepared one.
    rig.fill("t", 80);
    disk.set_capacity(None);
    rig.settle();
    rig.put(&append);
    assert_eq!(read_all(&rig.log, topic).len(), 84);
}

/// Segments are begun in the order of the manifest: recovery relies on it to place a segment whose first batch is torn. So a
/// segment that was too small for an append must not be begun after the larger one that took the append.
#[test]
fn a_crash_after_a_prepared_segment_was_passed_over_loses_and_reorders_nothing() {
    let options = || Options { checkpoint_bytes: 4 << 20, ..growing_options() };
    let large = vec![7; 200 * KIB];
    for (seed, event_of_cut, cut) in (0..12).flat_map(|seed| {
        (0..16_u64).flat_map(move |event| (1..6).map(move |cut| (seed * 100 + event * 5 + cut, event, cut)))
    }) {
        let disk = Disk::new(seed);
        let rig = Rig::open(&disk, options()).unwrap();
        let topic = rig.fill("t", 3);
        rig.put_events(&[event(topic, &large)]);
        // These fill the segment of the large event and begin the next one.
        rig.fill("t", event_of_cut);
        let bodies: Vec<Vec<u8>> = (0..6_u8).map(|number| vec![b'a' + number; 150]).collect();
        let events: Vec<_> = bodies.iter().map(|body| event(topic, body)).collect();
        disk.cut_after(cut);
        let mut outcomes = Outcomes::default();
        let ticket = rig.log.try_append(&Append { events: &events, ..Append::default() }, &mut outcomes);
        rig.settle();
        let durable =
            4 + event_of_cut as usize + if ticket.is_ok_and(|it| rig.log.is_durable(it)) { 6 } else { 0 };
        drop(rig);
        disk.power_cut();
        let rig = Rig::open(&disk, options()).unwrap();
        let seqs: Vec<u64> = read_all(&rig.log, topic).iter().map(|event| event.seq).collect();
        assert_eq!(
            seqs,
            (1..=seqs.len() as u64).collect::<Vec<_>>(),
            "seed {seed}, event {event_of_cut}, cut {cut}"
        );
        assert!(
            seqs.len() >= durable,
            "seed {seed}, event {event_of_cut}, cut {cut}: {} of {durable}",
            seqs.len()
        );
        let faults = rig.listener.faults();
        assert!(faults.is_empty(), "seed {seed}, event {event_of_cut}, cut {cut}: {faults:?}");
    }
}
