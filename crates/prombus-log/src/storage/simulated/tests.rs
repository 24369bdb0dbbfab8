//! What the power-cut suites rely on: a disk that lost too little would let them pass for nothing.

use super::*;
use std::collections::BTreeSet;

const SEEDS: u64 = 400;

fn create(disk: &Disk, name: &str) -> Arc<dyn StorageFile> {
    disk.open(name, OpenMode::Create).unwrap()
}

fn open(disk: &Disk, name: &str) -> Arc<dyn StorageFile> {
    disk.open(name, OpenMode::Write).unwrap()
}

/// A disk with one durable file "a" of ones.
fn disk_with_ones(seed: u64, length: usize) -> Disk {
    let disk = Disk::new(seed);
    disk.replace("a", vec![1; length]);
    disk
}

/// What comes of `run` with any of the seeds.
fn outcomes<T: Ord>(run: impl Fn(u64) -> T) -> BTreeSet<T> {
    (0..SEEDS).map(run).collect()
}

fn sectors(contents: &[u8]) -> Vec<u8> {
    contents
        .chunks(SECTOR_BYTES)
        .map(|sector| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "torn inside a sector");
            sector[0]
        })
        .collect()
}

fn assert_off<T>(result: io::Result<T>) {
    let error = result.err().expect("the power is off");
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::Other, "power is off"));
}

fn assert_os_error<T>(result: io::Result<T>, code: i32) {
    assert_eq!(result.err().expect("an error").raw_os_error(), Some(code));
}

#[test]
fn unsynced_bytes_may_be_lost_and_synced_bytes_never_are() {
    let seen = outcomes(|seed| {
        let disk = disk_with_ones(seed, 8 * SECTOR_BYTES);
        let file = open(&disk, "a");
        file.write_at(&[2; 2 * SECTOR_BYTES], 0).unwrap();
        file.sync(SyncPoint::LogData).unwrap();
        file.write_at(&[3; 3 * SECTOR_BYTES], 4 * SECTOR_BYTES as u64).unwrap();
        disk.power_cut();
        let after = sectors(&disk.contents("a").unwrap());
        assert_eq!((&after[..4], after[7]), (&[2, 2, 1, 1][..], 1), "seed {seed}");
        after[4..7].to_vec()
    });
    let any_subset: BTreeSet<Vec<u8>> = (0..8)
        .map(|bits| (0..3).map(|sector| if bits >> sector & 1 == 1 { 3 } else { 1 }).collect())
        .collect();
    assert_eq!(seen, any_subset, "every subset of the sectors survives for some seed");
}

#[test]
fn a_long_write_is_lost_kept_torn_and_reordered() {
    let (mut lost, mut kept, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, 128 * SECTOR_BYTES);
        open(&disk, "a").write_at(&[2; 128 * SECTOR_BYTES], 0).unwrap();
        disk.power_cut();
        let after = sectors(&disk.contents("a").unwrap());
        let prefix = after.iter().take_while(|sector| **sector == 2).count();
        match after.iter().filter(|sector| **sector == 2).count() {
            0 => lost += 1,
            128 => kept += 1,
            count if count == prefix => torn += 1,
            _ => reordered += 1,
        }
    }
    assert!(lost > 20 && kept > 20 && torn > 20 && reordered > 100, "{lost} {kept} {torn} {reordered}");
}

#[test]
fn an_unsynced_growth_survives_whole_in_part_or_not_at_all() {
    let mut lengths = BTreeSet::new();
    let (mut zeros, mut garbage) = (0, 0);
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, 700);
        open(&disk, "a").write_at(&[2; 2000], 700).unwrap();
        disk.power_cut();
        let after = disk.contents("a").unwrap();
        lengths.insert(after.len());
        assert!(after[..700].iter().all(|byte| *byte == 1), "seed {seed}");
        for sector in after.chunks(SECTOR_BYTES).skip(2) {
            match sector {
                lost if lost.iter().all(|byte| *byte == 0) => zeros += 1,
                kept if kept.iter().all(|byte| *byte == 2) => {}
                _ => garbage += 1,
            }
        }
    }
    assert_eq!(lengths, BTreeSet::from([700, 1024, 1536, 2048, 2560, 2700]));
    assert!(garbage > 0 && garbage < zeros, "{garbage} of garbage and {zeros} of zeros");
}

#[test]
fn a_hole_reads_as_zeros_before_and_after_a_power_cut() {
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, 10);
        let file = open(&disk, "a");
        file.write_at(&[2; 10], 5000).unwrap();
        file.sync(SyncPoint::LogData).unwrap();
        let expected = [vec![1; 10], vec![0; 4990], vec![2; 10]].concat();
        assert_eq!(disk.contents("a").unwrap(), expected);
        disk.power_cut();
        assert_eq!(disk.contents("a").unwrap(), expected);
    }
}

#[test]
fn a_read_ends_at_the_end_of_the_file() {
    let disk = disk_with_ones(1, 10);
    let file = disk.open("a", OpenMode::Read).unwrap();
    let mut buffer = [9; 6];
    assert_eq!(file.read_at(&mut buffer, 7).unwrap(), 3);
    assert_eq!(buffer, [1, 1, 1, 9, 9, 9]);
    assert_eq!(file.read_at(&mut buffer, 10).unwrap(), 0);
    assert_eq!(file.read_at(&mut buffer, u64::MAX).unwrap(), 0);
    assert_os_error(file.write_at(&[1], 0), EBADF);
    assert_os_error(open(&disk, "a").write_at(&[1], u64::MAX), EFBIG);
}

#[test]
fn a_name_needs_its_own_folder_sync() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let disk = Disk::new(seed);
        let file = create(&disk, "a");
        file.write_at(&[7; 100], 0).unwrap();
        file.sync(SyncPoint::Segment).unwrap();
        let unsynced = disk.fork();
        unsynced.power_cut();
        match unsynced.contents("a") {
            None => lost += 1,
            Some(contents) => assert_eq!(contents, [7; 100], "seed {seed}: the bytes were synced"),
        }
        disk.sync_folder(SyncPoint::SegmentFolder).unwrap();
        disk.power_cut();
        assert_eq!(disk.contents("a").unwrap(), [7; 100], "seed {seed}");
    }
    assert!(lost > 100 && lost < 300, "{lost} of {SEEDS}");
}

#[test]
fn a_folder_sync_keeps_no_bytes() {
    let empty = (0..SEEDS).filter(|seed| {
        let disk = Disk::new(*seed);
        create(&disk, "a").write_at(&[7; 100], 0).unwrap();
        disk.sync_folder(SyncPoint::SegmentFolder).unwrap();
        disk.power_cut();
        disk.contents("a").unwrap().is_empty()
    });
    assert!(empty.count() > 50);
}

#[test]
fn a_rename_is_lost_or_kept_as_one() {
    let seen = outcomes(|seed| {
        let disk = Disk::new(seed);
        disk.replace("old", vec![1]);
        disk.replace("new", vec![2]);
        disk.rename("new", "old").unwrap();
        assert_eq!((disk.names(), disk.contents("old")), (vec!["old".to_owned()], Some(vec![2])));
        disk.power_cut();
        (disk.contents("old"), disk.contents("new"))
    });
    assert_eq!(seen, BTreeSet::from([(Some(vec![1]), Some(vec![2])), (Some(vec![2]), None)]));
}

#[test]
fn a_change_of_a_lost_name_has_no_effect() {
    let seen = outcomes(|seed| {
        let disk = Disk::new(seed);
        disk.replace("manifest", vec![1]);
        let file = create(&disk, "temporary");
        file.write_at(&[2], 0).unwrap();
        file.sync(SyncPoint::Manifest).unwrap();
        disk.rename("temporary", "manifest").unwrap();
        disk.power_cut();
        (disk.contents("manifest"), disk.contents("temporary"))
    });
    let neither = (Some(vec![1]), None);
    let only_created = (Some(vec![1]), Some(vec![2]));
    let both = (Some(vec![2]), None);
    assert_eq!(seen, BTreeSet::from([neither, only_created, both]));
}

#[test]
fn a_name_that_came_back_is_the_old_file() {
    let seen = outcomes(|seed| {
        let disk = Disk::new(seed);
        disk.replace("a", vec![1]);
        disk.remove("a").unwrap();
        let file = create(&disk, "a");
        file.write_at(&[2], 0).unwrap();
        file.sync(SyncPoint::Segment).unwrap();
        disk.power_cut();
        disk.contents("a")
    });
    assert_eq!(seen, BTreeSet::from([None, Some(vec![1]), Some(vec![2])]));
}

#[test]
fn a_change_never_hits_another_file_of_that_name() {
    let mut names = BTreeMap::from([("a".to_owned(), 1)]);
    assert!(!NameChange::new(2, None, Some("a")).apply(&mut names));
    assert!(!NameChange::new(2, Some("a"), Some("b")).apply(&mut names));
    assert!(!NameChange::new(2, Some("a"), None).apply(&mut names));
    assert_eq!(names, BTreeMap::from([("a".to_owned(), 1)]));
    assert!(NameChange::new(1, Some("a"), Some("b")).apply(&mut names));
    assert_eq!(names, BTreeMap::from([("b".to_owned(), 1)]));
}

#[test]
fn a_removed_file_stays_away_once_the_folder_is_synced() {
    let mut came_back = 0;
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, 10);
        disk.remove("a").unwrap();
        let unsynced = disk.fork();
        unsynced.power_cut();
        came_back += u64::from(unsynced.contents("a").is_some());
        disk.sync_folder(SyncPoint::SegmentFolder).unwrap();
        disk.power_cut();
        assert_eq!(disk.contents("a"), None);
    }
    assert!(came_back > 100 && came_back < 300, "{came_back} of {SEEDS}");
}

#[test]
fn open_files_outlive_rename_remove_and_folder_sync() {
    let disk = disk_with_ones(1, 10);
    disk.replace("b", vec![2; 10]);
    let (first, second) = (open(&disk, "a"), open(&disk, "b"));
    disk.rename("a", "b").unwrap();
    disk.remove("b").unwrap();
    disk.sync_folder(SyncPoint::SegmentFolder).unwrap();
    let mut buffer = [0; 2];
    for (file, byte) in [(first, 1), (second, 2)] {
        file.write_at(&[9], 0).unwrap();
        file.sync(SyncPoint::LogData).unwrap();
        file.read_at(&mut buffer, 0).unwrap();
        assert_eq!(buffer, [9, byte]);
    }
    disk.sync_folder(SyncPoint::SegmentFolder).unwrap();
    assert!(disk.state.lock().inodes.is_empty(), "closed and without a name");
}

#[test]
fn names_are_checked_like_in_a_real_folder() {
    let disk = disk_with_ones(1, 10);
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(disk.open("a", OpenMode::Create).map(drop)), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(disk.open("b", OpenMode::Write).map(drop)), io::ErrorKind::NotFound);
    assert_eq!(kind(disk.rename("b", "c")), io::ErrorKind::NotFound);
    assert_eq!(kind(disk.remove("b")), io::ErrorKind::NotFound);
    disk.rename("a", "a").unwrap();
    assert_eq!(disk.list().unwrap(), ["a"]);
}

#[test]
fn files_from_before_a_power_cut_or_a_kill_are_dead() {
    for end in [Disk::power_cut, Disk::kill] {
        let disk = disk_with_ones(1, 10);
        let file = open(&disk, "a");
        end(&disk);
        let operations = disk.operations();
        assert_off(file.len());
        assert_off(file.read_at(&mut [0], 0));
        assert_off(file.write_at(&[2], 0));
        assert_off(file.sync(SyncPoint::LogData));
        assert_eq!(disk.operations(), operations);
        let alive = open(&disk, "a");
        drop(file);
        alive.write_at(&[2], 0).unwrap();
        assert_eq!(disk.contents("a").unwrap()[0], 2);
    }
}

#[test]
fn the_lock_is_free_after_drop_power_cut_and_kill() {
    let disk = Disk::new(1);
    let held = disk.lock().unwrap().expect("free");
    assert!(disk.clone().lock().unwrap().is_none());
    drop(held);
    for end in [Disk::power_cut, Disk::kill] {
        let dead = disk.lock().unwrap().expect("free after a drop");
        end(&disk);
        let held = disk.lock().unwrap().expect("free after the end of its holder");
        drop(dead);
        assert!(disk.lock().unwrap().is_none(), "a dead lock releases nothing");
        drop(held);
    }
}

#[test]
fn a_kill_keeps_the_cache_and_what_is_unsynced_in_it() {
    let (mut bytes_lost, mut name_lost) = (0, 0);
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, 10);
        open(&disk, "a").write_at(&[2; 10], 0).unwrap();
        create(&disk, "b");
        disk.kill();
        assert_eq!((disk.contents("a"), disk.names().len()), (Some(vec![2; 10]), 2));
        disk.power_cut();
        bytes_lost += u64::from(disk.contents("a").unwrap() == [1; 10]);
        name_lost += u64::from(disk.contents("b").is_none());
    }
    assert!(bytes_lost > 100 && name_lost > 100, "{bytes_lost} {name_lost}");
}

#[test]
fn a_lied_sync_keeps_nothing() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let [lying, without] = [true, false].map(|syncs| {
            let disk = disk_with_ones(seed, 4096);
            disk.lie_about(Some(SyncPoint::LogData));
            let file = open(&disk, "a");
            create(&disk, "b");
            file.write_at(&[2; 4096], 0).unwrap();
            if syncs {
                file.sync(SyncPoint::LogData).unwrap();
                disk.sync_folder(SyncPoint::LogData).unwrap();
            }
            disk.power_cut();
            (disk.contents("a").unwrap(), disk.contents("b"))
        });
        assert_eq!(lying, without, "seed {seed}: the same as with no sync at all");
        lost += u64::from(lying.0 != [2; 4096]);
    }
    assert!(lost > 200);
}

#[test]
fn a_lie_is_only_about_its_own_point() {
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, 4096);
        disk.lie_about(Some(SyncPoint::LogData));
        let file = open(&disk, "a");
        file.write_at(&[2; 4096], 0).unwrap();
        file.sync(SyncPoint::Segment).unwrap();
        file.write_at(&[3; 4096], 0).unwrap();
        disk.lie_about(None);
        file.sync(SyncPoint::LogData).unwrap();
        disk.power_cut();
        assert_eq!(disk.contents("a").unwrap(), [3; 4096]);
    }
}

#[test]
fn a_failed_sync_drops_the_dirty_mark() {
    let seen = outcomes(|seed| {
        let disk = disk_with_ones(seed, 3 * SECTOR_BYTES);
        let file = open(&disk, "a");
        file.write_at(&[2; 2 * SECTOR_BYTES], 0).unwrap();
        disk.fail_next_sync(SyncPoint::LogData);
        file.sync(SyncPoint::Segment).unwrap();
        file.write_at(&[3; 2 * SECTOR_BYTES], 0).unwrap();
        assert_os_error(file.sync(SyncPoint::LogData), EIO);
        file.sync(SyncPoint::LogData).unwrap();
        assert_eq!(sectors(&disk.contents("a").unwrap()), [3, 3, 1], "reads see it");
        let rewritten = disk.fork();
        let again = open(&rewritten, "a");
        again.write_at(&[3; 2 * SECTOR_BYTES], 0).unwrap();
        again.sync(SyncPoint::LogData).unwrap();
        rewritten.power_cut();
        assert_eq!(sectors(&rewritten.contents("a").unwrap()), [3, 3, 1], "written again is dirty again");
        let failed_twice = disk.fork();
        failed_twice.fail_next_sync(SyncPoint::LogData);
        assert_os_error(open(&failed_twice, "a").sync(SyncPoint::LogData), EIO);
        failed_twice.power_cut();
        let mut cuts = (0..8).map(|reseed| {
            let cut = disk.fork();
            cut.reseed(reseed);
            cut.power_cut();
            sectors(&cut.contents("a").unwrap())
        });
        let outcome = cuts.next().unwrap();
        assert_eq!(sectors(&failed_twice.contents("a").unwrap()), outcome, "seed {seed}");
        assert!(cuts.all(|other| other == outcome), "seed {seed}: nothing was left to chance");
        outcome
    });
    assert_eq!(seen, BTreeSet::from([vec![2, 2, 1], vec![2, 3, 1], vec![3, 2, 1], vec![3, 3, 1]]));
}

#[test]
fn a_growth_whose_sync_failed_is_not_synced_later() {
    let lengths = outcomes(|seed| {
        let disk = disk_with_ones(seed, 100);
        let file = open(&disk, "a");
        file.write_at(&[2; 100], 100).unwrap();
        disk.fail_next_sync(SyncPoint::LogData);
        assert_os_error(file.sync(SyncPoint::LogData), EIO);
        file.sync(SyncPoint::LogData).unwrap();
        let rewritten = disk.fork();
        open(&rewritten, "a").write_at(&[2; 100], 100).unwrap();
        open(&rewritten, "a").sync(SyncPoint::LogData).unwrap();
        rewritten.power_cut();
        assert_eq!(rewritten.contents("a").unwrap(), [[1; 100], [2; 100]].concat());
        disk.power_cut();
        disk.contents("a").unwrap().len()
    });
    assert_eq!(lengths, BTreeSet::from([100, 200]));
}

#[test]
fn a_failed_folder_sync_keeps_some_names_and_can_be_repeated() {
    let counts = outcomes(|seed| {
        let disk = Disk::new(seed);
        for name in ["a", "b", "c"] {
            create(&disk, name);
        }
        disk.fail_next_sync(SyncPoint::SegmentFolder);
        assert_os_error(disk.sync_folder(SyncPoint::SegmentFolder), EIO);
        let durable = disk.state.lock().durable_names.len();
        disk.sync_folder(SyncPoint::SegmentFolder).unwrap();
        disk.power_cut();
        assert_eq!(disk.names(), ["a", "b", "c"]);
        durable
    });
    assert_eq!(counts, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn a_failed_write_leaves_any_prefix() {
    let lengths = outcomes(|seed| {
        let disk = Disk::new(seed);
        let file = create(&disk, "a");
        disk.fail_next_write();
        assert_os_error(file.write_at(&[2; 4], 0), EIO);
        let length = file.len().unwrap();
        file.write_at(&[2; 4], 0).unwrap();
        assert_eq!(disk.contents("a").unwrap(), [2; 4]);
        length
    });
    assert_eq!(lengths, BTreeSet::from([0, 1, 2, 3, 4]));
}

/// One of each mutating operation, in an order in which all of them work.
const SCRIPT: [Step; 6] = [
    Step::Create,
    Step::Write,
    Step::Sync(SyncPoint::Manifest),
    Step::Rename,
    Step::SyncFolder(SyncPoint::ManifestFolder),
    Step::Remove,
];

fn run(disk: &Disk, step: Step) -> io::Result<()> {
    match step {
        Step::Create => disk.open("new", OpenMode::Create).map(drop),
        Step::Write => disk.open("new", OpenMode::Write)?.write_at(&[2; 5000], 0),
        Step::Sync(point) => disk.open("new", OpenMode::Write)?.sync(point),
        Step::Rename => disk.rename("new", "a"),
        Step::SyncFolder(point) => disk.sync_folder(point),
        Step::Remove => disk.remove("a"),
    }
}

#[test]
fn the_power_goes_off_at_the_counted_operation_and_stays_off() {
    for at in 1..=SCRIPT.len() {
        let disk = disk_with_ones(at as u64, 10);
        disk.cut_after(at as u64);
        for step in &SCRIPT[..at - 1] {
            run(&disk, *step).unwrap();
        }
        assert!(!disk.is_off());
        assert_off(run(&disk, SCRIPT[at - 1]));
        assert!(disk.is_off());
        assert_eq!((disk.operations(), disk.last_cut()), (at as u64, Some(SCRIPT[at - 1])));
        for step in SCRIPT {
            assert_off(run(&disk, step));
        }
        assert_off(disk.list());
        assert_off(disk.lock());
        assert_off(disk.open("a", OpenMode::Read));
        disk.power_cut();
        assert!(!disk.is_off());
        assert_eq!((disk.operations(), disk.last_cut()), (at as u64, Some(SCRIPT[at - 1])));
        disk.list().unwrap();
    }
}

#[test]
fn a_power_cut_forgets_the_cuts_and_failures_ahead() {
    let disk = disk_with_ones(1, 10);
    disk.cut_after(1);
    disk.fail_at(1);
    disk.fail_next_write();
    disk.fail_next_sync(SyncPoint::Manifest);
    disk.power_cut();
    assert_eq!(disk.last_cut(), None);
    for step in SCRIPT {
        run(&disk, step).unwrap();
    }
    disk.cut_after(0);
    assert!(disk.is_off());
}

#[test]
fn the_counted_operation_fails_once() {
    for (index, step) in SCRIPT.into_iter().enumerate() {
        let disk = disk_with_ones(1, 10);
        disk.fail_at(index as u64 + 1);
        for earlier in &SCRIPT[..index] {
            run(&disk, *earlier).unwrap();
        }
        let names = disk.names();
        assert_os_error(run(&disk, step), EIO);
        assert_eq!(disk.names(), names);
        for later in &SCRIPT[index..] {
            run(&disk, *later).unwrap();
        }
    }
}

#[test]
fn the_operation_in_which_the_power_goes_off_may_take_effect() {
    let (mut lengths, mut renamed, mut unsynced_sectors) = (BTreeSet::new(), 0, BTreeSet::new());
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, 10);
        disk.cut_after(1);
        assert_off(open(&disk, "a").write_at(&[2; 3], 10));
        lengths.insert(disk.contents("a").unwrap().len());

        let disk = disk_with_ones(seed, 10);
        disk.cut_after(1);
        assert_off(disk.rename("a", "b"));
        renamed += u64::from(disk.contents("b").is_some());

        let disk = disk_with_ones(seed, 3 * SECTOR_BYTES);
        let file = open(&disk, "a");
        file.write_at(&[2; 3 * SECTOR_BYTES], 0).unwrap();
        disk.cut_after(1);
        assert_off(file.sync(SyncPoint::LogData));
        let state = disk.state.lock();
        let inode = state.inodes.values().next().unwrap();
        unsynced_sectors.insert(inode.unsynced.keys().copied().collect::<Vec<_>>());
    }
    assert_eq!(lengths, BTreeSet::from([10, 11, 12, 13]));
    assert!(renamed > 100 && renamed < 300, "{renamed}");
    assert_eq!(unsynced_sectors.len(), 8, "any subset was synced");
}

#[test]
fn a_lied_sync_keeps_nothing_when_the_power_goes_off_in_it() {
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, SECTOR_BYTES);
        let file = open(&disk, "a");
        create(&disk, "b");
        file.write_at(&[2; SECTOR_BYTES], 0).unwrap();
        disk.lie_about(Some(SyncPoint::LogData));
        let in_folder = disk.fork();
        disk.cut_after(1);
        in_folder.cut_after(1);
        assert_off(file.sync(SyncPoint::LogData));
        assert_off(in_folder.sync_folder(SyncPoint::LogData));
        assert_eq!(disk.state.lock().inodes.values().next().unwrap().unsynced.len(), 1);
        assert_eq!(in_folder.state.lock().durable_names.len(), 0, "\"a\" is certain, but not settled yet");
    }
}

#[test]
fn a_full_disk_refuses_growth_and_new_files_and_takes_overwrites() {
    let disk = disk_with_ones(1, 100);
    let file = open(&disk, "a");
    disk.set_capacity(Some(110));
    assert_eq!(disk.used_bytes(), 100);
    let error = file.write_at(&[2; 30], 95).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.contents("a").unwrap(), [vec![1; 95], vec![2; 15]].concat(), "what fits is written");
    assert_eq!(disk.used_bytes(), 110);
    assert_eq!(file.write_at(&[2; 30], 200).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 110, "nothing fits behind a hole that does not fit");
    file.write_at(&[3; 110], 0).unwrap();
    let refused = disk.open("b", OpenMode::Create).err().expect("no space");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.names(), ["a"]);
    file.sync(SyncPoint::LogData).unwrap();
    disk.set_capacity(Some(50));
    file.write_at(&[4; 110], 0).unwrap();
    disk.set_capacity(None);
    file.write_at(&[4; 30], 200).unwrap();
    assert_eq!(disk.used_bytes(), 230);
    disk.remove("a").unwrap();
    assert_eq!(disk.used_bytes(), 0);
}

#[test]
fn a_read_only_disk_can_be_read_and_locked() {
    let disk = disk_with_ones(1, 10);
    let file = open(&disk, "a");
    disk.set_read_only(true);
    assert_os_error(file.write_at(&[2], 0), EROFS);
    for step in SCRIPT {
        assert_os_error(run(&disk, step), EROFS);
    }
    assert_eq!(disk.operations(), 0);
    let reading = disk.open("a", OpenMode::Read).unwrap();
    assert_eq!(reading.read_at(&mut [0; 10], 0).unwrap(), 10);
    assert!(disk.lock().unwrap().is_some());
    disk.set_read_only(false);
    file.write_at(&[2], 0).unwrap();
}

#[test]
fn a_flipped_bit_is_flipped_in_the_cache_and_on_the_disk() {
    let seen = outcomes(|seed| {
        let disk = disk_with_ones(seed, 10);
        open(&disk, "a").write_at(&[2], 3).unwrap();
        disk.flip_bit("a", 3, 7);
        disk.flip_bit("a", 4, 7);
        assert_eq!(disk.contents("a").unwrap()[3..5], [0x82, 0x81]);
        disk.power_cut();
        disk.contents("a").unwrap()[3..5].to_vec()
    });
    assert_eq!(seen, BTreeSet::from([vec![0x82, 0x81], vec![0x81, 0x81]]));
}

#[test]
#[should_panic(expected = "no byte 10 in a file a")]
fn flipping_nothing_is_an_error_of_the_test() {
    disk_with_ones(1, 10).flip_bit("a", 10, 0);
}

#[test]
fn a_replaced_file_is_durable_and_what_was_pending_before_it_stays_pending() {
    let seen = outcomes(|seed| {
        let disk = Disk::new(seed);
        disk.replace("a", vec![1]);
        disk.sync_folder(SyncPoint::Cut).unwrap();
        disk.rename("a", "b").unwrap();
        disk.replace("a", vec![2]);
        assert_eq!(disk.names(), ["a", "b"]);
        disk.power_cut();
        assert_eq!(disk.contents("a"), Some(vec![2]));
        disk.contents("b")
    });
    assert_eq!(seen, BTreeSet::from([None, Some(vec![1])]));
}

#[test]
fn a_fork_goes_its_own_way() {
    let disk = disk_with_ones(1, 4096);
    let file = open(&disk, "a");
    let _held = disk.lock().unwrap();
    file.write_at(&[2; 4096], 0).unwrap();
    disk.cut_after(0);
    let losses: BTreeSet<Vec<u8>> = (0..20)
        .map(|seed| {
            let fork = disk.fork();
            assert!(!fork.is_off() && fork.lock().unwrap().is_some());
            fork.reseed(seed);
            fork.power_cut();
            fork.contents("a").unwrap()
        })
        .collect();
    assert!(losses.len() > 5, "each cut of the same state can lose something else");
    assert!(disk.is_off());
    assert_eq!(disk.contents("a").unwrap(), [2; 4096]);
}

#[test]
fn salts_do_not_come_twice_after_a_reseed() {
    let disk = Disk::new(5);
    let before: Vec<u64> = (0..10).map(|_| disk.random()).collect();
    disk.reseed(5);
    assert!((0..10).all(|_| !before.contains(&disk.random())));
    assert_eq!(Disk::new(5).random(), before[0]);
    assert_ne!(Disk::new(6).random(), before[0]);
}

/// Random operations on three names, with cuts, kills and failures; answers all that the disk was seen to
/// hold.
fn history(seed: u64) -> Vec<(String, Vec<u8>)> {
    let disk = disk_with_ones(seed, 5000);
    disk.replace("b", Vec::new());
    let mut choice = Random { state: !seed };
    let mut seen = Vec::new();
    for _ in 0..300 {
        let name = ["a", "b", "c"][choice.index_below(3)];
        // Refusals (no such file, power is off, EIO) are part of the history.
        let _ = match choice.below(24) {
            0..=3 => disk.open(name, OpenMode::Create).map(drop),
            4 => disk.rename(name, "a"),
            5 => disk.remove(name),
            6..=7 => disk.sync_folder(SyncPoint::SegmentFolder),
            8..=11 => disk.open(name, OpenMode::Write).and_then(|file| file.sync(SyncPoint::LogData)),
            _ => disk.open(name, OpenMode::Write).and_then(|file| {
                let bytes = vec![choice.next() as u8; choice.index_below(3000)];
                file.write_at(&bytes, choice.below(8000))
            }),
        };
        match choice.below(40) {
            0 => disk.cut_after(choice.below(5)),
            1 => disk.kill(),
            2 => disk.fail_at(choice.below(5)),
            _ => {}
        }
        if disk.is_off() {
            disk.power_cut();
            seen.extend(disk.names().into_iter().map(|name| (name.clone(), disk.contents(&name).unwrap())));
        }
    }
    seen
}

#[test]
fn same_seed_same_loss() {
    for seed in 0..20 {
        let first = history(seed);
        assert!(!first.is_empty());
        assert_eq!(first, history(seed), "seed {seed}");
        assert_ne!(first, history(seed + 1), "seed {seed}");
    }
}

/// One file under random writes, syncs and cuts, against two plain arrays.
#[test]
fn every_sector_is_the_synced_or_the_newest_one() {
    const LENGTH: usize = 16 * SECTOR_BYTES;
    for seed in 0..SEEDS {
        let disk = disk_with_ones(seed, LENGTH);
        let mut choice = Random { state: !seed };
        let mut newest = vec![1; LENGTH];
        let mut synced = newest.clone();
        let mut file = open(&disk, "a");
        for _ in 0..200 {
            match choice.below(16) {
                0 => {
                    disk.power_cut();
                    let after = disk.contents("a").unwrap();
                    assert_eq!(after.len(), LENGTH);
                    for start in (0..LENGTH).step_by(SECTOR_BYTES) {
                        let sector = start..start + SECTOR_BYTES;
                        let found = &after[sector.clone()];
                        assert!(found == &newest[sector.clone()] || found == &synced[sector], "seed {seed}");
                    }
                    newest.clone_from(&after);
                    synced = after;
                    file = open(&disk, "a");
                }
                1..=3 => {
                    file.sync(SyncPoint::LogData).unwrap();
                    synced.clone_from(&newest);
                }
                _ => {
                    let start = choice.index_below(LENGTH);
                    let end = LENGTH.min(start + choice.index_below(2000));
                    choice.fill(&mut newest[start..end]);
                    file.write_at(&newest[start..end], start as u64).unwrap();
                    assert_eq!(disk.contents("a").unwrap(), newest, "seed {seed}");
                }
            }
        }
    }
}
