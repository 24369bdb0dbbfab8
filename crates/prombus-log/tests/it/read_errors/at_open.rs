//! Permanently unreadable sectors: one at every position of every file, and whole files.

use super::*;
use std::collections::BTreeMap;

const EXTRA: u64 = 4;
const DEAD: Dead = Dead { cut: FIRST_KEPT, floor: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Opened,
    Refused,
}

/// Checks that every event is served or reported as unreadable while a part of the log cannot be read. Returns how many
/// events are unreadable.
fn check_what_is_readable(rig: &Rig, dead: Dead, extra: u64) -> u64 {
    let mut unreadable = 0;
    for (name, last) in TOPICS {
        let Some(topic) = rig.log.topic(name) else { continue };
        let last = if name == "t" { last + extra } else { last };
        assert_eq!(rig.log.last_seq(topic), last, "{name}: the newest seq");
        let living = Living { log: &rig.log, dead };
        let mut chunk = Chunk::default();
        let mut seq = 1;
        while seq <= last {
            match rig.log.read(topic, seq, ReadLimit { events: 9, bytes: 2500 }, &mut chunk) {
                Ok(()) => {
                    assert!(chunk.next_seq() > seq, "{name}: no progress at {seq}");
                    for missing in chunk.missing() {
                        assert_eq!(missing.reason, MissingReason::Cleaned, "{name}: {missing:?}");
                        for seq in missing.first_seq..=missing.last_seq {
                            let is_dead = seq < living.first_live(topic) || !living.is_live(topic, seq);
                            assert!(is_dead, "{name}: seq {seq} was skipped as cleaned");
                        }
                    }
                    for event in chunk.events() {
                        assert_eq!(event.body, body(name, event.seq), "{name}");
                    }
                    seq = chunk.next_seq();
                }
                Err(ReadError::Unreadable { first_seq, last_seq, .. }) => {
                    assert!(
                        first_seq == seq && last_seq >= seq && last_seq <= last,
                        "{name}: {first_seq} {last_seq}"
                    );
                    unreadable += last_seq - first_seq + 1;
                    seq = last_seq + 1;
                }
                // The index and its segment are unreadable: the whole topic waits.
                Err(error) => {
                    assert!(is_read_error(&error), "{name}: {error}");
                    unreadable += last - seq + 1;
                    break;
                }
            }
        }
    }
    check_health(rig);
    unreadable
}

/// A publish with an existing id is a duplicate or is refused.
fn check_never_new(rig: &Rig, number: u64) {
    let topic = rig.log.topic("t").unwrap();
    let events = [NewEvent { id: Some(id(number)), ..event(topic, b"again") }];
    let mut outcomes = Outcomes::default();
    rig.settle();
    match rig.log.try_append(&Append { events: &events, ..Append::default() }, &mut outcomes) {
        Ok(_) => assert_eq!((outcomes[0].duplicate, outcomes[0].seq), (true, number)),
        Err(error) => assert!(matches!(error, AppendError::Lookup(_)), "{error}"),
    }
}

fn contents(disk: &Disk) -> BTreeMap<String, Vec<u8>> {
    disk.names().into_iter().map(|name| (name.clone(), disk.contents(&name).unwrap())).collect()
}

/// Opens a log with an unreadable part, uses it, and makes the part readable again.
fn try_without(base: &Disk, left: Left, file: &str, bytes: std::ops::Range<u64>) -> Outcome {
    let disk = base.fork();
    disk.make_unreadable(file, bytes);
    let before = contents(&disk);
    let rig = match Rig::open(&disk, options()) {
        Err(error) => {
            let OpenError::Unreadable { file: named, .. } = &error else { panic!("{error}") };
            assert!(named == file || file.ends_with(".idx"), "{error}");
            assert_eq!(contents(&disk), before, "a refused open changed something");
            disk.make_readable();
            let rig = Rig::open(&disk, options()).unwrap();
            check_opened(&rig, DEAD, 0);
            return Outcome::Refused;
        }
        Ok(rig) => rig,
    };
    assert!(rig.state.all().into_iter().eq(1..=150), "state records");
    let unreadable = check_what_is_readable(&rig, DEAD, 0);
    assert_eq!(
        rig.log.read_health().events_unreadable > 0,
        unreadable > 0 && !rig.log.unreadable().is_empty()
    );
    for number in [3, 70, 149] {
        check_never_new(&rig, number);
    }
    for number in 151..=150 + EXTRA {
        put(&rig, "t", number).unwrap();
    }
    let dead = Dead { cut: 100, floor: 80 };
    clean(&rig.log, &Living { log: &rig.log, dead }).unwrap();
    rig.settle();
    check_what_is_readable(&rig, dead, EXTRA);
    disk.make_readable();
    check(&rig, dead, EXTRA);
    let rig = match left {
        Left::Closed => {
            rig.log.close().unwrap();
            Rig::open(&disk, options()).unwrap()
        }
        Left::Killed => Rig::open(&kill(rig), options()).unwrap(),
    };
    check_opened(&rig, dead, EXTRA);
    for number in [3, 70, 149] {
        check_duplicate(&rig, number);
    }
    Outcome::Opened
}

fn at_every_sector(left: Left) {
    let base = prepared(left);
    let (mut opened, mut refused) = (0, 0);
    for file in base.names() {
        let end = length(&base, &file);
        for sector in 0..end.div_ceil(512) {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                try_without(&base, left, &file, sector * 512..sector * 512 + 1)
            }));
            match outcome {
                Ok(Outcome::Opened) => opened += 1,
                Ok(Outcome::Refused) => refused += 1,
                Err(_) => panic!("{left:?}: {file}, sector {sector}"),
            }
        }
    }
    println!("{left:?}: {opened} sectors opened, {refused} refused");
    assert!(opened > 100 && refused > 10, "{opened} opened, {refused} refused");
}

#[test]
fn an_unreadable_sector_anywhere_loses_nothing_after_a_clean_stop() {
    at_every_sector(Left::Closed);
}

#[test]
fn an_unreadable_sector_anywhere_loses_nothing_after_a_kill() {
    at_every_sector(Left::Killed);
}

/// The segment with the newest event, the end of its last frame, and the names of the prepared segments.
fn growing(disk: &Disk) -> (String, u64, Vec<String>) {
    let wanted = body("t", 150);
    let segments = files(disk, ".seg");
    let at = segments
        .iter()
        .position(|name| disk.contents(name).unwrap().windows(wanted.len()).any(|bytes| bytes == wanted));
    let at = at.unwrap();
    let commit = crate::support::last_commit(disk, &segments[at]);
    (segments[at].clone(), commit, segments[at + 1..].to_vec())
}

fn outcome(left: Left, file: impl Fn(&Disk) -> (String, std::ops::Range<u64>)) -> Outcome {
    let base = prepared(left);
    let (file, bytes) = file(&base);
    try_without(&base, left, &file, bytes)
}

fn all_of(disk: &Disk, file: &str) -> (String, std::ops::Range<u64>) {
    (file.to_owned(), 0..length(disk, file))
}

#[test]
fn one_copy_of_the_manifest_is_enough_and_none_is_refused() {
    for left in [Left::Closed, Left::Killed] {
        let half = |disk: &Disk| length(disk, "MANIFEST") / 2;
        assert_eq!(outcome(left, |disk| ("MANIFEST".into(), 0..half(disk))), Outcome::Opened);
        assert_eq!(outcome(left, |disk| ("MANIFEST".into(), half(disk)..half(disk) * 2)), Outcome::Opened);
        assert_eq!(outcome(left, |disk| all_of(disk, "MANIFEST")), Outcome::Refused);
    }
}

#[test]
fn one_checkpoint_is_enough_and_none_is_refused() {
    for left in [Left::Closed, Left::Killed] {
        let checkpoint = |at: usize| move |disk: &Disk| all_of(disk, &files(disk, ".ckpt")[at]);
        assert_eq!(outcome(left, checkpoint(0)), Outcome::Opened, "without the older one");
        assert_eq!(outcome(left, checkpoint(1)), Outcome::Opened, "without the newer one");
        let disk = prepared(left);
        for name in files(&disk, ".ckpt") {
            disk.make_unreadable(&name, 0..1);
        }
        let error = Rig::open(&disk, options()).err().unwrap();
        assert!(is_unreadable(&error), "{error}");
        disk.make_readable();
        check_opened(&Rig::open(&disk, options()).unwrap(), DEAD, 0);
    }
}

#[test]
fn an_unreadable_checkpoint_beside_a_damaged_one_is_refused_as_unreadable() {
    for (unreadable, damaged) in [(0, 1), (1, 0)] {
        let disk = prepared(Left::Killed);
        let names = files(&disk, ".ckpt");
        disk.make_unreadable(&names[unreadable], 0..1);
        disk.flip_bit(&names[damaged], 40, 1);
        match Rig::open(&disk, options()).err().unwrap() {
            OpenError::Unreadable { file, .. } => assert_eq!(file, names[unreadable]),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn a_segment_header_is_not_needed() {
    for left in [Left::Closed, Left::Killed] {
        assert_eq!(outcome(left, |disk| (growing(disk).0, 0..4096)), Outcome::Opened);
    }
}

#[test]
fn the_data_of_the_growing_segment_is_needed() {
    for left in [Left::Closed, Left::Killed] {
        assert_eq!(outcome(left, |disk| (growing(disk).0, 4096..4097)), Outcome::Refused);
        let newest_commit = |disk: &Disk| {
            let (name, commit, _) = growing(disk);
            (name, commit..commit + 64)
        };
        assert_eq!(outcome(left, newest_commit), Outcome::Refused);
    }
}

#[test]
fn unused_bytes_are_not_needed() {
    for left in [Left::Closed, Left::Killed] {
        let unused = |disk: &Disk| {
            let (name, _, _) = growing(disk);
            let end = length(disk, &name);
            (name, end - 512..end)
        };
        assert_eq!(outcome(left, unused), Outcome::Opened, "the end of the growing segment");
        let prepared_middle = |disk: &Disk| (growing(disk).2[0].clone(), 6000..6001);
        assert_eq!(outcome(left, prepared_middle), Outcome::Opened, "the middle of a prepared segment");
    }
    let prepared_start = |disk: &Disk| (growing(disk).2[0].clone(), 4096..4097);
    assert_eq!(outcome(Left::Closed, prepared_start), Outcome::Opened);
    // Acknowledged batches may be there.
    assert_eq!(outcome(Left::Killed, prepared_start), Outcome::Refused);
}

#[test]
fn an_index_is_not_needed_and_kept_ids_are() {
    for left in [Left::Closed, Left::Killed] {
        let is_kept = |disk: &Disk, name: &String| !disk.names().contains(&name.replace(".idx", ".seg"));
        let index = |kept: bool| {
            move |disk: &Disk| {
                let name = files(disk, ".idx").into_iter().find(|name| is_kept(disk, name) == kept).unwrap();
                all_of(disk, &name)
            }
        };
        assert_eq!(outcome(left, index(false)), Outcome::Opened);
        assert_eq!(outcome(left, index(true)), Outcome::Refused);
    }
}

/// The growing segment is a recycled file: after its first batch there are intact batches of an earlier life.
#[test]
fn a_recycled_growing_segment_is_not_taken_for_an_empty_one() {
    let base = prepared(Left::Killed);
    let (name, _, _) = growing(&base);
    let life = base.contents(&name).unwrap()[48];
    assert!(life > 0, "the growing segment is not a recycled file");
    let end = length(&base, &name);
    for bytes in [4096..end, 4096..4608, 4608..end, 0..end] {
        assert_eq!(try_without(&base, Left::Killed, &name, bytes.clone()), Outcome::Refused, "{bytes:?}");
    }
}

/// Events published after an open are not written to unreadable sectors, so they can be read immediately.
#[test]
fn nothing_is_written_to_unreadable_sectors() {
    type Choose = fn(&Disk) -> (String, std::ops::Range<u64>);
    let unused: Choose = |disk| {
        let (name, commit, _) = growing(disk);
        let first = (commit + 1_000) / 512 * 512;
        let end = length(disk, &name);
        (name, first..end)
    };
    let prepared_middle: Choose = |disk| (growing(disk).2[0].clone(), 6000..6001);
    for choose in [unused, prepared_middle] {
        let disk = prepared(Left::Killed);
        let (file, bytes) = choose(&disk);
        // A real disk may also fail to write there, or lose the written bytes.
        disk.make_unreadable(&file, bytes);
        let before = disk.contents(&file);
        let rig = Rig::open(&disk, options()).unwrap();
        for number in 151..=300 {
            put(&rig, "t", number).unwrap();
            assert_eq!(check_what_is_readable(&rig, DEAD, number - 150), 0, "after {number}, without {file}");
        }
        assert_eq!(disk.contents(&file), before, "{file} was written to");
    }
}
