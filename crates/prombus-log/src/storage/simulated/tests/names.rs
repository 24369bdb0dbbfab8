//! Which names survive a power cut.

use super::*;

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
fn a_folder_sync_makes_no_bytes_durable() {
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
fn a_rename_is_lost_or_kept_as_a_whole() {
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
fn a_removed_name_that_reappears_is_the_old_file() {
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
fn a_change_never_affects_another_file_of_the_same_name() {
    let mut names = BTreeMap::from([("a".to_owned(), 1)]);
    assert!(!NameChange::new(2, None, Some("a")).apply(&mut names));
    assert!(!NameChange::new(2, Some("a"), Some("b")).apply(&mut names));
    assert!(!NameChange::new(2, Some("a"), None).apply(&mut names));
    assert_eq!(names, BTreeMap::from([("a".to_owned(), 1)]));
    assert!(NameChange::new(1, Some("a"), Some("b")).apply(&mut names));
    assert_eq!(names, BTreeMap::from([("b".to_owned(), 1)]));
}

#[test]
fn a_removed_file_does_not_reappear_once_the_folder_is_synced() {
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
    assert!(disk.state.lock().inodes.is_empty(), "a file without a name must be dropped when it is closed");
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
