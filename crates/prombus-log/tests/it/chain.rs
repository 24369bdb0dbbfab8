//! A batch is only replayed if it continues the previous batch: by its number, and by the chain value of its COMMIT.

use crate::support::{Rig, event, last_commit, read_all, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{Options, TopicId, verify_storage};
use std::sync::Arc;

/// Options without checkpoints, so that everything is replayed.
fn options() -> Options {
    Options { checkpoint_bytes: 1 << 30, ..small_options() }
}

fn segment(disk: &Disk) -> String {
    disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap()
}

/// Where the last batch of the first segment ends.
fn end(disk: &Disk) -> usize {
    disk.contents(&segment(disk)).unwrap().iter().rposition(|&byte| byte != 0).unwrap() + 1
}

fn put(rig: &Rig, topic: TopicId, body: &str) {
    // The end of a batch is found as the last byte that is not zero, so its COMMIT must not end with a zero.
    rig.put_events(&[event(topic, body.as_bytes())]);
}

/// Kills the process and returns its disk.
fn crash(rig: Rig) -> Disk {
    let survivor = rig.disk.fork();
    rig.disk.cut_after(0);
    survivor
}

/// Checks that the last batch, of this length, is cut off as a torn tail and its bytes are kept.
fn last_batch_is_cut(disk: &Disk, bodies: &[&str], batch_bytes: usize) {
    let report = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
    assert_eq!((report.faults, report.torn_tail_bytes), (vec![], batch_bytes as u64));
    let rig = Rig::open(disk, options()).unwrap();
    let topic = rig.topic("t");
    assert_eq!(rig.bodies(topic), bodies);
    assert!(disk.names().iter().any(|name| name.starts_with("cut-")));
    assert_eq!(rig.put_events(&[event(topic, b"next")])[0].seq, bodies.len() as u64 + 1);
    let seqs: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    assert!(seqs.iter().copied().eq(1..=bodies.len() as u64 + 1), "{seqs:?}");
}

#[test]
fn a_batch_that_skips_a_number_is_cut() {
    let rig = Rig::open(&Disk::new(1), options()).unwrap();
    let topic = rig.topic("t");
    put(&rig, topic, "one");
    put(&rig, topic, "two");
    let two_ends = end(&rig.disk);
    put(&rig, topic, "three");
    let three_ends = end(&rig.disk);
    put(&rig, topic, "four");
    let four_ends = end(&rig.disk);
    let disk = crash(rig);
    // The fourth batch is in the place of the third: it is intact, but does not continue the second one.
    let mut bytes = disk.contents(&segment(&disk)).unwrap();
    bytes.copy_within(three_ends..four_ends, two_ends);
    let batch_bytes = four_ends - three_ends;
    bytes[two_ends + batch_bytes..four_ends].fill(0);
    disk.replace(&segment(&disk), bytes);
    last_batch_is_cut(&disk, &["one", "two"], batch_bytes);
}

#[test]
fn a_batch_that_continues_another_history_is_cut() {
    let rig = Rig::open(&Disk::new(2), options()).unwrap();
    let topic = rig.topic("t");
    put(&rig, topic, "one");
    let base = crash(rig);
    let history = |bodies: &[&str]| {
        let rig = Rig::open(&base.fork(), options()).unwrap();
        bodies.iter().for_each(|body| put(&rig, topic, body));
        crash(rig)
    };
    // Two histories of the same log with the same numbers and lengths.
    let ours = history(&["two of ours"]);
    let theirs = history(&["two, theirs", "three"]);
    let (start, last) = (end(&ours), end(&theirs));
    let name = segment(&ours);
    let mut bytes = ours.contents(&name).unwrap();
    bytes[start..last].copy_from_slice(&theirs.contents(&name).unwrap()[start..last]);
    ours.replace(&name, bytes);
    last_batch_is_cut(&ours, &["one", "two of ours"], last - start);
}

/// Changes the batch number in the last COMMIT of a segment, with correct checksums.
fn renumber_last_commit(disk: &Disk, number: u64) {
    let name = segment(disk);
    let at = last_commit(disk, &name) as usize;
    let mut bytes = disk.contents(&name).unwrap();
    let salt = u32::from_le_bytes(bytes[32..36].try_into().unwrap());
    let table_bytes = u32::from_le_bytes(bytes[at + 12..at + 16].try_into().unwrap()) as usize;
    let previous = u32::from_be_bytes(bytes[at + 56..at + 60].try_into().unwrap());
    bytes[at + 24..at + 32].copy_from_slice(&number.to_le_bytes());
    let chained =
        [&previous.to_le_bytes()[..], &number.to_le_bytes(), &bytes[at + 64..at + 64 + table_bytes]].concat();
    bytes[at + 60..at + 64].copy_from_slice(&crc32c::crc32c(&chained).to_be_bytes());
    let crc = crc32c::crc32c(&bytes[at + 8..at + 64]) ^ salt;
    bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
    disk.replace(&name, bytes);
}

#[test]
fn a_batch_with_the_right_chain_and_another_number_is_cut() {
    let rig = Rig::open(&Disk::new(3), options()).unwrap();
    let topic = rig.topic("t");
    put(&rig, topic, "one");
    let start = end(&rig.disk);
    put(&rig, topic, "two");
    let (last, number) = (end(&rig.disk), rig.log.durable_batch());
    let disk = crash(rig);
    // With the original number the batch is replayed: the COMMIT written by this test is valid.
    renumber_last_commit(&disk, number);
    assert_eq!(Rig::open(&disk.fork(), options()).unwrap().bodies(topic), ["one", "two"]);
    renumber_last_commit(&disk, number + 1);
    last_batch_is_cut(&disk, &["one"], last - start);
}
