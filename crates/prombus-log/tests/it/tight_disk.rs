//! A disk that is nearly full: segments are smaller than on a roomy disk, and a refusal that concerns only large appends is
//! reported as such.

use crate::support::{Cut, Rig, clean, event, growing_options, read_all, segment_lengths, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::storage::{Lock, OpenMode, Storage, StorageFile, SyncPoint};
use prombus_log::{Append, AppendError, NewState, Notice, Options, Outcomes, Step, Ticket, TopicId};
use std::io;
use std::sync::Arc;

const KIB: usize = 1024;
/// Free space that the log leaves on a disk whose free space it knows.
const FREE_MARGIN: u64 = 8 << 20;

fn try_event(rig: &Rig, topic: TopicId, body: &[u8]) -> Result<Ticket, AppendError> {
    rig.log
        .try_append(&Append { events: &[event(topic, body)], ..Append::default() }, &mut Outcomes::default())
}

/// Appends, and repeats that while there is no room yet. Returns false if the append is refused because the disk is full.
fn is_appended(rig: &Rig, append: impl Fn() -> Result<Ticket, AppendError>) -> bool {
    for _ in 0..10 {
        match append() {
            Ok(ticket) => {
                rig.settle();
                return rig.log.is_durable(ticket);
            }
            Err(AppendError::QueueFull) => rig.settle(),
            Err(AppendError::StorageFull) => return false,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("an append waits for room that maintenance does not make");
}

/// Publishes one event. Returns false if it is refused because the disk is full.
fn is_stored(rig: &Rig, topic: TopicId, body: &[u8]) -> bool {
    is_appended(rig, || try_event(rig, topic, body))
}

/// Publishes until an event is refused. Returns how many were accepted.
fn fill_up(rig: &Rig, topic: TopicId, body: &[u8]) -> usize {
    (0..100_000).find(|_| !is_stored(rig, topic, body)).expect("the disk is never full")
}

/// Appends a state record. Returns false if the disk is full.
fn put_state(rig: &Rig, number: u64) -> bool {
    let states = [NewState { tag: number as u32, body: &number.to_le_bytes() }];
    let append = Append { states: &states, use_reserve: true, ..Append::default() };
    is_appended(rig, || rig.log.try_append(&append, &mut Outcomes::default()))
}

/// The notices about the storage so far: `full`, `large` (only large appends are refused) and `freed`.
fn notices(rig: &Rig) -> Vec<&'static str> {
    let name = |notice: &Notice| match notice {
        Notice::StorageFull { refused_bytes: None, .. } => Some("full"),
        Notice::StorageFull { refused_bytes: Some(_), .. } => Some("large"),
        Notice::StorageFreed => Some("freed"),
        _ => None,
    };
    rig.listener.notices().iter().filter_map(name).collect()
}

/// A log whose next segment would have 256 KiB, on a disk with `free_bytes` more than it uses.
fn tight_rig(seed: u64, free_bytes: u64) -> (Rig, TopicId) {
    let disk = Disk::new(seed);
    let rig = Rig::open(&disk, growing_options()).unwrap();
    let mut number = 0;
    while segment_lengths(&disk).last() != Some(&(128 * KIB)) {
        number += 1;
        rig.fill("t", 1);
        assert!(number < 2_000);
    }
    disk.set_capacity(Some(disk.used_bytes() + free_bytes));
    let topic = rig.topic("t");
    (rig, topic)
}

#[test]
fn a_disk_without_room_for_a_doubled_segment_is_filled_with_smaller_ones() {
    let (rig, topic) = tight_rig(1, 220 * 1024);
    let before = read_all(&rig.log, topic).len();
    let count = fill_up(&rig, topic, &[b'x'; 200]);
    let lengths = segment_lengths(&rig.disk);
    assert!(lengths.starts_with(&[16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 128 * KIB]), "{lengths:?}");
    assert!(lengths[5..].iter().all(|length| (16 * KIB..128 * KIB).contains(length)), "{lengths:?}");
    assert!(lengths.iter().sum::<usize>() > (240 + 180) * KIB, "space is left unused: {lengths:?}");
    assert_eq!(notices(&rig), ["full"], "{lengths:?}");
    // The reserve is untouched.
    assert!((1..=20).all(|number| put_state(&rig, number)));
    rig.disk.set_capacity(None);
    rig.settle();
    assert_eq!(notices(&rig), ["full", "freed"]);
    // The sizes grow again.
    rig.fill("t", 4000);
    assert_eq!(segment_lengths(&rig.disk).last(), Some(&(256 * KIB)));
    rig.log.close().unwrap();
    let rig = Rig::open(&rig.disk, growing_options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), before + count + 4000);
    assert_eq!(rig.state.all(), (1..=20).collect::<Vec<_>>());
}

#[test]
fn a_restart_on_a_tight_disk_continues_with_smaller_segments() {
    let (rig, topic) = tight_rig(2, 100 * 1024);
    let count = fill_up(&rig, topic, &[b'x'; 200]);
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 70 * 1024));
    rig.log.close().unwrap();
    let rig = Rig::open(&rig.disk, growing_options()).unwrap();
    rig.settle();
    assert!(is_stored(&rig, topic, &[b'x'; 200]), "refused after {count} events, with 70 KiB free");
}

#[test]
fn an_append_that_does_not_fit_into_a_doubled_segment_gets_one_of_its_size() {
    let (rig, topic) = tight_rig(3, 215 * 1024);
    let before = read_all(&rig.log, topic).len();
    let large = vec![7; 200 * KIB];
    assert!(is_stored(&rig, topic, &large));
    // After this append, the disk has no room for the smallest segment.
    assert_eq!(segment_lengths(&rig.disk)[4..], [208 * KIB]);
    assert!(is_stored(&rig, topic, b"small"), "the segment that was passed over is used");
    assert_eq!(read_all(&rig.log, topic).len(), before + 2);
    assert_eq!(notices(&rig), Vec::<&str>::new());
}

#[test]
fn a_refusal_of_large_appends_is_reported_once_and_does_not_count_as_a_full_disk() {
    let (rig, topic) = tight_rig(4, 60 * 1024);
    let large = vec![7; 200 * KIB];
    for _ in 0..5 {
        assert!(!is_stored(&rig, topic, &large));
        assert!(is_stored(&rig, topic, b"small"));
    }
    assert_eq!(notices(&rig), ["large"]);
    // Small events begin two more segments. The disk still has no room for the large one.
    let lengths = segment_lengths(&rig.disk).len();
    while segment_lengths(&rig.disk).len() < lengths + 1 {
        assert!(is_stored(&rig, topic, &[b'x'; 200]));
    }
    assert!(!is_stored(&rig, topic, &large));
    assert_eq!(notices(&rig), ["large"]);
    // Then it has no room for small ones either.
    fill_up(&rig, topic, &[b'x'; 200]);
    assert!(!is_stored(&rig, topic, &large));
    assert_eq!(notices(&rig), ["large", "full"]);
    // Room for a few small segments, but not for the large one.
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 40 * 1024));
    rig.settle();
    assert!(is_stored(&rig, topic, b"small"));
    assert_eq!(notices(&rig), ["large", "full", "large"]);
    rig.disk.set_capacity(None);
    rig.settle();
    assert_eq!(notices(&rig), ["large", "full", "large", "freed"]);
    assert!(is_stored(&rig, topic, &large));
    assert_eq!(notices(&rig), ["large", "full", "large", "freed"]);
}

#[test]
fn a_large_append_is_accepted_as_soon_as_there_is_room() {
    let (rig, topic) = tight_rig(5, 60 * 1024);
    let large = vec![7; 200 * KIB];
    assert!(!is_stored(&rig, topic, &large));
    // One of a size between the refused one and the prepared segment is tried by itself.
    assert!(!is_stored(&rig, topic, &vec![7; 150 * KIB]));
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 170 * 1024));
    rig.settle();
    assert!(is_stored(&rig, topic, &vec![7; 150 * KIB]), "the larger append is not repeated");
    assert_eq!(notices(&rig), ["large", "freed"]);
}

/// The file of a cleaned segment needs no further space, whatever its size.
#[test]
fn a_full_disk_recycles_a_file_that_is_larger_than_the_next_segment() {
    let disk = Disk::new(6);
    let segment_bytes = 64 * 1024;
    // All old segments have the full size.
    let options = Options { segment_bytes, first_segment_bytes: segment_bytes, ..growing_options() };
    let rig = Rig::open(&disk, options).unwrap();
    rig.fill("old", 1500);
    rig.log.close().unwrap();
    let rig = Rig::open(&disk, Options { segment_bytes, ..growing_options() }).unwrap();
    let topic = rig.topic("t");
    disk.set_capacity(Some(disk.used_bytes() + 50 * 1024));
    fill_up(&rig, topic, &[b'x'; 200]);
    assert_eq!(segment_lengths(&disk).last(), Some(&(16 * KIB)), "the next segment would have 32 KiB");
    let old = rig.log.topic("old").unwrap();
    let report = clean(&rig.log, &Cut(|topic| if topic == old { u64::MAX } else { 1 })).unwrap();
    assert!(report.segments_retired > 1, "{report:?}");
    // Another program uses the space that other files freed.
    disk.set_capacity(Some(disk.used_bytes() + 3_000));
    rig.settle();
    assert!(is_stored(&rig, topic, b"there is room"));
    assert_eq!(segment_lengths(&disk).last(), Some(&(64 * KIB)));
}

/// The next segment for publishers, or the smallest one, is as large as those of the reserve here, so it could use their files.
#[test]
fn the_reserve_of_a_tight_disk_is_not_used_for_publishers() {
    for reserve_kib in [16, 32] {
        let options = Options {
            segment_bytes: 64 * 1024,
            first_segment_bytes: 16 * 1024,
            reserve_bytes: reserve_kib * 1024,
            ..small_options()
        };
        let rig = Rig::open(&Disk::new(7), options).unwrap();
        let topic = rig.fill("t", 300);
        rig.disk.set_capacity(Some(rig.disk.used_bytes() + 118 * 1024));
        fill_up(&rig, topic, &[b'x'; 200]);
        let newest = rig.disk.names().into_iter().rfind(|name| name.ends_with(".seg")).unwrap();
        let newest_kib = rig.disk.contents(&newest).unwrap().len() / KIB;
        assert_eq!(newest_kib, 16, "the next segment for publishers would have 32 KiB");
        let (mut number, mut refusals) = (0, 0);
        while number < 800 {
            if put_state(&rig, number + 1) {
                number += 1;
            } else {
                refusals += 1;
                assert!(refusals < 200, "reserve {reserve_kib} KiB: {number} records are written");
                if refusals == 1 {
                    // No room to rewrite segments of events.
                    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 4_000));
                }
                clean(&rig.log, &Cut(|_| 1)).unwrap();
                rig.settle();
                // Publishers use all that they can get.
                fill_up(&rig, topic, &[b'x'; 200]);
                if refusals == 1 {
                    assert!(put_state(&rig, number + 1), "publishers got the file of the reserve");
                    number += 1;
                }
                // Room for a checkpoint, but not for a segment.
                rig.disk.set_capacity(Some(rig.disk.used_bytes() + 12_000));
            }
        }
    }
}

#[test]
fn space_that_becomes_free_is_first_used_for_the_reserve() {
    let options = Options { reserve_bytes: 40 * 1024, ..growing_options() };
    let rig = Rig::open(&Disk::new(10), options).unwrap();
    let topic = rig.fill("t", 300);
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 100 * 1024));
    fill_up(&rig, topic, &[b'x'; 200]);
    let reserves = || segment_lengths(&rig.disk).iter().filter(|&&length| length == 40 * KIB).count();
    assert_eq!(reserves(), 2);
    // A reserve segment is in use, so one is missing.
    assert!((1..=10).all(|number| put_state(&rig, number)));
    for free_kib in [20, 30] {
        rig.disk.set_capacity(Some(rig.disk.used_bytes() + free_kib * 1024));
        rig.settle();
        assert!(!is_stored(&rig, topic, b"refused"), "{free_kib} KiB are free");
        assert_eq!(reserves(), 2);
    }
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 50 * 1024));
    rig.settle();
    assert_eq!(reserves(), 3);
    assert!(!is_stored(&rig, topic, b"refused"));
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 20 * 1024));
    rig.settle();
    assert!(is_stored(&rig, topic, b"stored"));
    assert_eq!(notices(&rig), ["full", "freed", "full"]);
    assert_eq!(reserves(), 3);
}

/// A log with a prepared segment that was passed over, on a disk without a free byte.
fn passed_over_on_a_full_disk(seed: u64) -> (Rig, TopicId) {
    let disk = Disk::new(seed);
    let rig = Rig::open(&disk, growing_options()).unwrap();
    let topic = rig.fill("t", 3);
    let large = vec![7; 200 * KIB];
    assert_eq!(try_event(&rig, topic, &large), Err(AppendError::QueueFull));
    rig.settle();
    // The large segment is used, and maintenance has not run since.
    try_event(&rig, topic, &large).unwrap();
    assert_eq!(rig.log.step_commit(), Step::Worked);
    Storage::remove(&disk, "RESERVE").unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    rig.settle();
    (rig, topic)
}

#[test]
fn a_segment_that_was_passed_over_does_not_block_maintenance_of_a_full_disk() {
    let (rig, topic) = passed_over_on_a_full_disk(8);
    let count = fill_up(&rig, topic, &[b'x'; 200]);
    assert!(count < 100, "{count}");
    assert_eq!(notices(&rig), ["full"]);
    assert!((1..=50).all(|number| put_state(&rig, number)), "the reserve is not used");
    rig.disk.set_capacity(None);
    rig.settle();
    assert_eq!(notices(&rig), ["full", "freed"]);
    let passed_over = |disk: &Disk| {
        let of_size = |name: &String| disk.contents(name).unwrap().len() == 32 * KIB;
        let name = disk.names().into_iter().find(|name| name.ends_with(".seg") && of_size(name)).unwrap();
        disk.contents(&name).unwrap()[4096..].iter().any(|&byte| byte != 0)
    };
    assert!(!passed_over(&rig.disk), "the segment is used before it has its new place in the manifest");
    rig.fill("t", 20);
    assert!(passed_over(&rig.disk), "the segment is not used again");
    rig.log.close().unwrap();
    let rig = Rig::open(&rig.disk, growing_options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), 4 + count + 20);
    assert_eq!(rig.state.all(), (1..=50).collect::<Vec<_>>());
}

/// Power cuts while the segment waits for room in the manifest, and after it got its new place there.
#[test]
fn a_crash_of_a_full_disk_with_a_passed_over_segment_loses_and_reorders_nothing() {
    for (seed, cut) in (0..8).flat_map(|seed| (1..40_u64).map(move |cut| (seed * 100 + cut, cut))) {
        let (rig, topic) = passed_over_on_a_full_disk(seed);
        let (mut durable, mut states) = (4, 0);
        // Before the cut: everything happens on the full disk, or after it was freed.
        if cut % 2 == 0 {
            durable += fill_up(&rig, topic, &[b'x'; 200]);
            rig.disk.set_capacity(None);
        }
        rig.disk.cut_after(cut);
        for _ in 0..12 {
            if rig.disk.is_off() {
                break;
            }
            let ticket = try_event(&rig, topic, &[b'y'; 900]);
            rig.settle();
            durable += usize::from(ticket.is_ok_and(|it| rig.log.is_durable(it)));
            let record = [NewState { tag: states + 1, body: &u64::from(states + 1).to_le_bytes() }];
            let append = Append { states: &record, use_reserve: true, ..Append::default() };
            let ticket = rig.log.try_append(&append, &mut Outcomes::default());
            rig.settle();
            states += u32::from(ticket.is_ok_and(|it| rig.log.is_durable(it)));
        }
        let disk = rig.disk.clone();
        drop((rig.log, rig.state));
        disk.set_capacity(None);
        disk.power_cut();
        let rig = Rig::open(&disk, growing_options()).unwrap();
        let seqs: Vec<u64> = read_all(&rig.log, topic).iter().map(|event| event.seq).collect();
        assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "seed {seed}, cut {cut}");
        assert!(seqs.len() >= durable, "seed {seed}, cut {cut}: {} of {durable}", seqs.len());
        let records = rig.state.all();
        assert_eq!(records, (1..=records.len() as u64).collect::<Vec<_>>(), "seed {seed}, cut {cut}");
        assert!(records.len() >= states as usize, "seed {seed}, cut {cut}: {records:?} of {states}");
        let faults = rig.listener.faults();
        assert!(faults.is_empty(), "seed {seed}, cut {cut}: {faults:?}");
    }
}

/// A simulated disk of a known size.
struct Measured {
    disk: Disk,
    total_bytes: u64,
}

impl Storage for Measured {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        Storage::open(&self.disk, name, mode)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        Storage::remove(&self.disk, name)
    }
    fn sync_folder(&self, point: SyncPoint) -> io::Result<()> {
        self.disk.sync_folder(point)
    }
    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        self.disk.lock()
    }
    fn random(&self) -> u64 {
        self.disk.random()
    }
    fn free_bytes(&self) -> Option<u64> {
        Some(self.total_bytes.saturating_sub(self.disk.used_bytes()))
    }
    fn location(&self) -> String {
        self.disk.location()
    }
}

#[test]
fn smaller_segments_leave_the_free_margin_of_the_disk() {
    let (listener, state) = (crate::support::Listener::new(), crate::support::Remembered::default());
    let disk = Disk::new(9);
    let storage = Measured { disk: disk.clone(), total_bytes: FREE_MARGIN + 400 * 1024 };
    let options =
        Options { observer: Arc::<crate::support::Listener>::clone(&listener), ..growing_options() };
    let log = prombus_log::Log::open_storage(Arc::new(storage), options, Box::new(state.clone())).unwrap();
    let rig = Rig { disk, log, state, listener };
    let topic = rig.fill("t", 1);
    fill_up(&rig, topic, &[b'x'; 200]);
    let lengths = segment_lengths(&rig.disk);
    // A reserve segment fits neither, so less than 16 KiB above the margin are free.
    let used: usize = lengths.iter().sum();
    assert!(used > 320 * KIB, "{lengths:?}");
    assert!(rig.disk.used_bytes() < 430 * 1024, "{}", rig.disk.used_bytes());
    assert_eq!(notices(&rig), ["full"]);
}
