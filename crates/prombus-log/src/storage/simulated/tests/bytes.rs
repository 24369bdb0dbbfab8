//! Which bytes survive a power cut.

use super::*;

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
fn a_long_write_may_be_lost_kept_torn_or_reordered() {
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
    assert!(
        lost > 20 && kept > 20 && torn > 20 && reordered > 100,
        "lost {lost}, kept {kept}, torn {torn}, reordered {reordered}"
    );
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
    assert!(garbage > 0 && garbage < zeros, "{garbage} sectors of garbage and {zeros} sectors of zeros");
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
