//! Regression tests. The comment of a test describes the fault that it prevents.

use crate::hooked::{Hook, Hooked, hooked};
use crate::support::*;
use prombus_log::storage::simulated::Disk;
use prombus_log::*;
use std::io;
use std::sync::Arc;

/// Cleans with all events of one topic dead.
fn clean_without(rig: &Rig, topic: u32) -> CleanReport {
    clean(&rig.log, &Cut(|id: TopicId| if id.number() == topic { u64::MAX } else { 1 })).unwrap()
}

/// A read skipped an event that was committed while the read found all earlier events cleaned.
#[test]
fn a_read_never_skips_a_new_event() {
    let options = Options { tail_bytes: 0, index_cache_bytes: 0, ..small_options() };
    let (rig, hook) = hooked(&Disk::new(1), options);
    let gone = rig.topic("gone");
    while rig.log.stats().segments < 3 {
        rig.put_events(&[event(gone, &[b'g'; 2000])]);
    }
    rig.put_events(&[event(rig.topic("other"), &[b'g'; 11_000])]);
    rig.fill("other", 300);
    let last = rig.log.last_seq(gone);
    let report = clean_without(&rig, gone.number());
    assert!(report.segments_retired > 0, "{report:?}");
    rig.settle();
    assert_eq!(read_all(&rig.log, gone), []);
    rig.settle();
    // The growing segment is nearly full, so the next event starts a new one.
    let log = rig.log.clone();
    *hook.lock() = Some(Box::new(move |name, _| {
        if name.contains(".idx") && log.last_seq(gone) == last {
            let body = vec![b'x'; 11_500];
            let append = Append { events: &[event(gone, &body)], ..Append::default() };
            log.try_append(&append, &mut Outcomes::default()).unwrap();
            assert_eq!(log.step_commit(), Step::Worked);
        }
        Ok(())
    }));
    let mut chunk = Chunk::default();
    rig.log.read(gone, 1, ReadLimit::default(), &mut chunk).unwrap();
    hook.lock().take();
    assert_eq!(rig.log.last_seq(gone), last + 1);
    assert!(
        chunk.len() == 1 || chunk.next_seq() <= last + 1,
        "seq {} was skipped: {:?}",
        last + 1,
        chunk.missing()
    );
}

/// After a damaged COMMIT and a clean close, the events of the batch were lost and their seqs were assigned again.
#[test]
fn events_of_a_batch_with_a_damaged_commit_survive_a_clean_close() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(2), options()).unwrap();
    let topic = rig.fill("t", 5);
    let disk = rig.disk.clone();
    rig.log.close().unwrap(); // checkpoint at seq 5
    let rig = Rig::open(&disk, options()).unwrap();
    rig.fill("t", 1); // seq 6: acknowledged
    // A second batch is torn by a crash: the open cuts it off and seals the segment after seq 6.
    let survivor = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let name = survivor.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let mut bytes = survivor.contents(&name).unwrap();
    let end = last_commit(&survivor, &name) as usize + 64 + 24;
    bytes[end..end + 40].fill(7);
    survivor.replace(&name, bytes);
    let rig = Rig::open(&survivor, options()).unwrap();
    assert_eq!(rig.log.last_seq(topic), 6);
    // kill -9, and then one bit of the COMMIT of seq 6 flips.
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    disk.flip_bit(&name, last_commit(&disk, &name) + 30, 1);
    let rig = Rig::open(&disk, options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), 6, "the event itself is intact");
    rig.log.close().unwrap();
    let rig = Rig::open(&disk, options()).unwrap();
    let seqs: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    let next = rig.put_events(&[event(topic, b"new")])[0].seq;
    assert_eq!((seqs, next), (vec![1, 2, 3, 4, 5, 6], 7));
}

/// One unreadable sector of an old segment made cleaning stop all writing.
#[test]
fn a_bad_sector_found_by_cleaning_does_not_stop_writing() {
    let (rig, hook) = hooked(&Disk::new(3), small_options());
    let _topic = rig.fill("t", 300);
    let first = rig.disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    *hook.lock() = Some(Box::new(
        move |name, _| {
            if name == first { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
        },
    ));
    let _ = clean(&rig.log, &Lives(|_, seq| seq % 10 == 0));
    assert_eq!(rig.log.unavailable(), None);
}

/// While an index was rebuilt in memory and another segment was cleaned, duplicates were not found.
#[test]
fn a_duplicate_is_found_while_its_index_is_rebuilt() {
    let options = Options { tail_bytes: 0, index_cache_bytes: 0, ..small_options() };
    let rig = Rig::open(&Disk::new(4), options).unwrap();
    let junk = rig.fill("junk", 150);
    let topic = rig.topic("t");
    let id = EventId::from_u128(0xabcdef);
    rig.put_events(&[NewEvent { id: Some(id), ..event(topic, b"once") }]);
    rig.fill("t", 300);
    let again = [NewEvent { id: Some(id), ..event(topic, b"once") }];
    assert!(rig.put_events(&again)[0].duplicate);
    // Damage all index files after the head and filters. One lookup makes the log rebuild them in memory.
    for name in rig.disk.names().into_iter().filter(|name| name.ends_with(".idx")) {
        let length = rig.disk.contents(&name).unwrap().len() as u64;
        for position in 512 + 64..length {
            rig.disk.flip_bit(&name, position, 3);
        }
    }
    assert_eq!(rig.log.find_id(topic, id).unwrap(), Some(1));
    let report = clean_without(&rig, junk.number());
    assert!(report.segments_retired > 0, "{report:?}");
    let mut outcomes = Outcomes::default();
    rig.log.try_append(&Append { events: &again, ..Append::default() }, &mut outcomes).unwrap();
    assert!(outcomes[0].duplicate, "{:?}", outcomes[0]);
}

/// On a full disk it must be possible to delete a topic, so that cleaning can free space.
#[test]
fn a_topic_can_be_deleted_on_a_full_disk() {
    let rig = Rig::new(7);
    let topic = rig.topic(&"t".repeat(300));
    rig.settle();
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 60 * 1024));
    let append = Append { events: &[event(topic, &[b'x'; 200])], ..Append::default() };
    loop {
        match rig.log.try_append(&append, &mut Outcomes::default()) {
            Err(AppendError::StorageFull) => break,
            _ => rig.settle(),
        }
    }
    let deleted = rig.log.delete_topic(topic);
    assert!(deleted.is_ok(), "{deleted:?}");
}

/// In a clean log whose newer checkpoint is damaged, verify did not read beyond the older checkpoint.
#[test]
fn verify_finds_damage_after_the_older_checkpoint() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(8), options()).unwrap();
    let _topic = rig.fill("t", 5);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let rig = Rig::open(&disk, options()).unwrap();
    rig.fill("t", 5);
    rig.log.close().unwrap();
    let healthy = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
    let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let bytes = disk.contents(&name).unwrap();
    let body = bytes.windows(8).position(|w| w == b"{\"n\":8,\"").unwrap() as u64;
    disk.flip_bit(&name, body + 20, 1);
    let newest = disk.names().into_iter().rfind(|n| n.ends_with(".ckpt")).unwrap();
    disk.flip_bit(&newest, 30, 1);
    let report = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
    println!("healthy {} events; now {} events {:?}", healthy.events, report.events, report.faults);
    assert!(report.faults.iter().any(|fault| fault.file == name), "{:?}", report.faults);
}

/// With one flipped bit in a prepared segment, a torn last batch was not cut off, and a part of an append was served.
#[test]
fn a_torn_batch_is_cut_also_when_a_prepared_segment_is_damaged() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(9), options()).unwrap();
    let topic = rig.fill("t", 3);
    let two = [event(topic, b"first half"), event(topic, b"second half")];
    rig.put(&Append {
        events: &two,
        states: &[NewState { tag: 1, body: &1u64.to_le_bytes() }],
        use_reserve: false,
    });
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let mut bytes = disk.contents(&name).unwrap();
    // As if only the first half of that batch had reached the disk.
    let half = bytes.windows(11).position(|w| w == b"second half").unwrap() - 64;
    bytes[half..].fill(0);
    disk.replace(&name, bytes);
    let spare = disk.names().into_iter().filter(|name| name.ends_with(".seg")).nth(1).unwrap();
    assert!(disk.contents(&spare).unwrap()[4096..].iter().all(|&b| b == 0));
    disk.flip_bit(&spare, 9000, 0);
    let rig = Rig::open(&disk, options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), 3, "a part of an append exists");
}

/// The only batch of a segment was cut off because its COMMIT was damaged, although a later segment was begun.
#[test]
fn a_batch_is_not_cut_when_a_later_segment_is_begun() {
    let options = || Options { checkpoint_bytes: 1 << 30, prepared_segments: 3, ..small_options() };
    let rig = Rig::open(&Disk::new(10), options()).unwrap();
    let topic = rig.fill("t", 3);
    let big = vec![b'b'; 11_000];
    // No maintenance between the appends, so the manifest does not contain the sealed length.
    for body in [&big[..], &big[..], &big[..]] {
        rig.log
            .try_append(
                &Append { events: &[event(topic, body)], ..Append::default() },
                &mut Outcomes::default(),
            )
            .unwrap();
        while rig.log.step_commit() == Step::Worked {}
    }
    assert_eq!(rig.log.last_seq(topic), 6);
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let segments: Vec<String> = disk.names().into_iter().filter(|n| n.ends_with(".seg")).collect();
    let with: Vec<&String> = segments.iter().filter(|n| disk.contents(n).unwrap()[4096] != 0).collect();
    let victim = with[with.len() - 2];
    disk.flip_bit(victim, last_commit(&disk, victim) + 30, 1);
    let rig = Rig::open(&disk, options()).unwrap();
    let seqs: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
}

/// An unreadable sector of an index, which can be rebuilt, prevented the log from opening.
#[test]
fn an_unreadable_index_does_not_prevent_the_log_from_opening() {
    let rig = Rig::new(11);
    rig.fill("t", 300);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let bad = disk.names().into_iter().find(|name| name.ends_with(".idx")).unwrap();
    let hook: Hook = Arc::default();
    *hook.lock() = Some(Box::new(
        move |name, _| if name == bad { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) },
    ));
    let opened =
        Log::open_storage(Arc::new(Hooked { disk, hook }), small_options(), Box::new(Remembered::default()));
    assert!(opened.is_ok(), "{:?}", opened.err());
}

/// With one unreadable sector in a segment, a reader must learn which events are in it, and must be able to read all
/// others.
#[test]
fn an_unreadable_sector_blocks_only_its_own_events() {
    let options = Options { tail_bytes: 0, ..small_options() };
    let rig = Rig::open(&Disk::new(12), options).unwrap();
    let topic = rig.fill("t", 300);
    let bad = rig.disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    rig.disk.make_unreadable(&bad, 8192..8193);
    let (mut from, mut seen, mut unreadable) = (1, 0, 0);
    let mut chunk = Chunk::default();
    while from <= 300 {
        match rig.log.read(topic, from, ReadLimit { events: 1, bytes: 1 }, &mut chunk) {
            Ok(()) => {
                assert_eq!(chunk.missing(), [], "unreadable events are neither damaged nor cleaned");
                seen += chunk.len() as u64;
                from = chunk.next_seq();
            }
            Err(ReadError::Unreadable { first_seq, last_seq, .. }) => {
                assert_eq!(first_seq, from);
                unreadable += last_seq - first_seq + 1;
                from = last_seq + 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(seen > 290, "{seen} of 300 events seen");
    assert_eq!(seen + unreadable, 300);
    assert_eq!(rig.log.read_health().events_unreadable, unreadable);
    assert_eq!(rig.log.stats().faults, 0);
    rig.disk.make_readable();
    assert_eq!(read_all(&rig.log, topic).len(), 300);
    assert_eq!(rig.log.read_health().events_unreadable, 0);
}

/// A batch with a damaged COMMIT in a cleanly closed log that was opened from the older checkpoint: the first open served
/// the batch, and after a crash the second open cut it off as a torn tail.
#[test]
fn events_served_after_an_open_are_served_after_the_next_one() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(20), options()).unwrap();
    let topic = rig.fill("t", 6);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let newest = disk.names().into_iter().rfind(|name| name.ends_with(".ckpt")).unwrap();
    disk.flip_bit(&newest, 30, 1);
    let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    disk.flip_bit(&name, last_commit(&disk, &name) + 30, 1);
    let rig = Rig::open(&disk, options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), 6);
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let rig = Rig::open(&disk, options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), 6);
}

#[test]
fn a_server_id_that_was_returned_is_a_duplicate_before_it_is_durable() {
    let rig = Rig::new(13);
    let topic = rig.fill("t", 1);
    let mut outcomes = Outcomes::default();
    rig.log
        .try_append(&Append { events: &[event(topic, b"x")], ..Append::default() }, &mut outcomes)
        .unwrap();
    let again = [NewEvent { id: Some(outcomes[0].id), ..event(topic, b"x") }];
    let outcome = rig.put_events(&again)[0];
    assert_eq!((outcome.seq, outcome.duplicate), (2, true));
}

/// Publishes while liveness is evaluated, as other threads would.
struct Busy<'a> {
    log: &'a Log,
    topic: TopicId,
}

impl Liveness for Busy<'_> {
    fn first_live(&self, _topic: TopicId) -> u64 {
        1
    }

    fn is_sparse(&self, _topic: TopicId) -> bool {
        true
    }

    fn live_in(&self, _topic: TopicId, first_seq: u64, last_seq: u64) -> Option<LiveCount> {
        let events = (last_seq - first_seq) / 3;
        Some(LiveCount { events, bytes: events * 190 })
    }

    fn is_live(&self, _topic: TopicId, seq: u64) -> bool {
        let append = Append { events: &[event(self.topic, &[b'x'; 200])], ..Append::default() };
        let _ = self.log.try_append(&append, &mut Outcomes::default());
        self.log.step_commit();
        self.log.step_housekeeping();
        seq % 3 == 0
    }
}

#[test]
fn checkpoints_continue_while_cleaning_runs() {
    let rig = Rig::new(6);
    let topic = rig.fill("t", 400);
    let checkpoints =
        |rig: &Rig| rig.disk.names().into_iter().filter(|name| name.ends_with(".ckpt")).collect::<Vec<_>>();
    let before = checkpoints(&rig);
    clean(&rig.log, &Busy { log: &rig.log, topic }).unwrap();
    let after = checkpoints(&rig);
    assert!(after.iter().all(|name| !before.contains(name)), "{before:?} {after:?}");
}
