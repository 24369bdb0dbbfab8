//! Full and read-only disks, flipped bits, replaced files and forks.

use super::*;

#[test]
fn a_full_disk_refuses_growth_and_new_files_but_allows_overwrites() {
    let disk = disk_with_ones(1, 100);
    let file = open(&disk, "a");
    disk.set_capacity(Some(110));
    assert_eq!(disk.used_bytes(), 100);
    let error = file.write_at(&[2; 30], 95).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.contents("a").unwrap(), [vec![1; 95], vec![2; 15]].concat(), "what fits is written");
    assert_eq!(disk.used_bytes(), 110);
    assert_eq!(file.write_at(&[2; 30], 200).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 110, "nothing is written after a hole that does not fit");
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
fn flipping_a_bit_that_does_not_exist_panics() {
    disk_with_ones(1, 10).flip_bit("a", 10, 0);
}

#[test]
fn a_replaced_file_is_durable_and_earlier_pending_changes_stay_pending() {
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
fn a_fork_is_independent() {
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
    assert!(losses.len() > 5, "power cuts of the same state can lose different bytes");
    assert!(disk.is_off());
    assert_eq!(disk.contents("a").unwrap(), [2; 4096]);
}

#[test]
fn salts_do_not_repeat_after_a_reseed() {
    let disk = Disk::new(5);
    let before: Vec<u64> = (0..10).map(|_| disk.random()).collect();
    disk.reseed(5);
    assert!((0..10).all(|_| !before.contains(&disk.random())));
    assert_eq!(Disk::new(5).random(), before[0]);
    assert_ne!(Disk::new(6).random(), before[0]);
}
