//! Lies, failures and power cuts that tests request.

use super::*;

#[test]
fn a_sync_that_lies_makes_nothing_durable() {
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
        assert_eq!(lying, without, "seed {seed}: the outcome must be the same as without a sync");
        lost += u64::from(lying.0 != [2; 4096]);
    }
    assert!(lost > 200);
}

#[test]
fn a_lie_applies_only_to_its_own_sync_point() {
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
        assert_eq!(
            sectors(&disk.contents("a").unwrap()),
            [3, 3, 1],
            "reads see the write although its sync failed"
        );
        let rewritten = disk.fork();
        let again = open(&rewritten, "a");
        again.write_at(&[3; 2 * SECTOR_BYTES], 0).unwrap();
        again.sync(SyncPoint::LogData).unwrap();
        rewritten.power_cut();
        assert_eq!(
            sectors(&rewritten.contents("a").unwrap()),
            [3, 3, 1],
            "sectors that are written again are dirty again"
        );
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
        assert!(
            cuts.all(|other| other == outcome),
            "seed {seed}: the failed sync has already decided the outcome"
        );
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
fn a_power_cut_cancels_requested_cuts_and_failures() {
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
    assert!(renamed > 100 && renamed < 300, "renamed {renamed} times");
    assert_eq!(unsynced_sectors.len(), 8, "each subset of the sectors stays unsynced for some seed");
}

#[test]
fn a_sync_that_lies_makes_nothing_durable_when_the_power_goes_off_in_it() {
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
        assert_eq!(
            in_folder.state.lock().durable_names.len(),
            0,
            "no name is durable yet, although \"a\" will survive the cut"
        );
    }
}
