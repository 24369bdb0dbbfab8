//! Files and locks end with their process.

use super::*;

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
fn a_kill_keeps_the_cache_and_its_unsynced_bytes() {
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
    assert!(
        bytes_lost > 100 && name_lost > 100,
        "bytes lost {bytes_lost} times, name lost {name_lost} times"
    );
}
