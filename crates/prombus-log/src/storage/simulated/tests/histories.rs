//! The same seed loses the same bytes.

use super::*;

/// Runs random operations on three names, with cuts, kills and failures. Returns all contents that the disk had.
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

/// Runs random writes, syncs and power cuts on one file, and compares it with two plain arrays: its newest and its
/// synced content.
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
