//! Opening folders: a refused open returns a clear error and does not change the folder.

use crate::support::{Cut, Rig, clean, event, read_all, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{FaultKind, Log, OpenError, Options, Step, Unavailable, verify, verify_storage};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn contents(disk: &Disk) -> BTreeMap<String, Vec<u8>> {
    disk.names().into_iter().map(|name| (name.clone(), disk.contents(&name).unwrap())).collect()
}

/// A disk with a closed log of three segments.
fn closed_log(seed: u64) -> Disk {
    let rig = Rig::new(seed);
    rig.fill("t", 150);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    disk
}

fn refuse(disk: &Disk) -> OpenError {
    let before = contents(disk);
    let error = match Rig::open(disk, small_options()) {
        Err(error) => error,
        Ok(_) => panic!("the log opened"),
    };
    assert_eq!(contents(disk), before, "the folder was changed");
    error
}

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("prombus-log-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn a_folder_with_other_files_is_not_touched() {
    let folder = scratch("not-ours");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("letter.txt"), "dear").unwrap();
    let error = Log::open(&folder, Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::NotALog { .. }), "{error}");
    assert!(error.to_string().contains("letter.txt"), "{error}");
    let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["letter.txt"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_path_to_a_file_is_refused() {
    let file = scratch("file");
    std::fs::write(&file, "x").unwrap();
    assert!(Log::open(&file, Options::default()).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_log_cannot_be_opened_twice_at_a_time() {
    let folder = scratch("locked");
    let options = || Options { segment_bytes: 64 * 1024, reserve_bytes: 8192, ..Options::default() };
    let log = Log::open(&folder, options()).unwrap();
    assert!(matches!(Log::open(&folder, options()), Err(OpenError::Locked { .. })));
    assert!(verify(&folder, |_| {}).unwrap_err().to_string().contains("in use"));
    log.close().unwrap();
    Log::open(&folder, options()).unwrap().close().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_log_whose_lock_file_was_deleted_cannot_be_opened_twice_at_a_time() {
    let folder = scratch("lock-deleted");
    let options = || Options { segment_bytes: 64 * 1024, reserve_bytes: 8192, ..Options::default() };
    let log = Log::open(&folder, options()).unwrap();
    std::fs::remove_file(folder.join("LOCK")).unwrap();
    assert!(matches!(Log::open(&folder, options()), Err(OpenError::Locked { .. })));
    assert!(verify(&folder, |_| {}).unwrap_err().to_string().contains("in use"));
    log.close().unwrap();
    // An older build, which locks only LOCK, has the folder open.
    let lock = std::fs::File::create(folder.join("LOCK")).unwrap();
    lock.try_lock().unwrap();
    assert!(matches!(Log::open(&folder, options()), Err(OpenError::Locked { .. })));
    drop(lock);
    Log::open(&folder, options()).unwrap().close().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_manifest_that_is_cut_is_read_from_its_first_copy() {
    let disk = closed_log(11);
    let manifest = disk.contents("MANIFEST").unwrap();
    let damaged = [
        manifest[..manifest.len() - 512].to_vec(),
        manifest[..manifest.len() / 2].to_vec(),
        [&manifest[..], &[0; 512]].concat(),
        // The length in the first copy is wrong, so the second copy must be searched for.
        [&manifest[..16], &[0xff], &manifest[17..]].concat(),
    ];
    for (case, bytes) in damaged.into_iter().enumerate() {
        let disk = disk.fork();
        disk.replace("MANIFEST", bytes);
        let report = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
        assert_eq!(report.faults.iter().filter(|fault| fault.what == FaultKind::Manifest).count(), 1);
        let rig = Rig::open(&disk, small_options()).unwrap_or_else(|error| panic!("case {case}: {error}"));
        assert_eq!(read_all(&rig.log, rig.log.topic("t").unwrap()).len(), 150, "case {case}");
        assert_eq!(rig.listener.faults().len(), 1, "case {case}: {:?}", rig.listener.faults());
        rig.log.close().unwrap();
        // The next manifest is intact.
        assert_eq!(verify_storage(Arc::new(disk), |_| {}).unwrap().faults, [], "case {case}");
    }
}

#[test]
fn a_newer_format_is_refused() {
    let disk = closed_log(1);
    let mut manifest = disk.contents("MANIFEST").unwrap();
    let half = manifest.len() / 2;
    for start in [0, half] {
        manifest[start + 12..start + 16].copy_from_slice(&9_u32.to_le_bytes());
        let length = u64::from_le_bytes(manifest[start + 16..start + 24].try_into().unwrap()) as usize;
        let crc = crc32c::crc32c(&manifest[start + 12..start + 24 + length]);
        manifest[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
    }
    disk.replace("MANIFEST", manifest);
    let error = refuse(&disk);
    assert!(matches!(error, OpenError::Newer { found: 9, .. }), "{error}");
}

#[test]
fn a_read_only_folder_is_refused() {
    let disk = closed_log(2);
    disk.set_read_only(true);
    let error = refuse(&disk);
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error}");
}

#[test]
fn a_missing_segment_is_refused_with_its_name() {
    let disk = closed_log(3);
    let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let without = disk.fork();
    prombus_log::storage::Storage::remove(&without, &name).unwrap();
    let error = refuse(&without);
    assert!(error.to_string().contains(&name), "{error}");
}

#[test]
fn a_missing_manifest_is_refused_when_there_are_events() {
    let disk = closed_log(4);
    prombus_log::storage::Storage::remove(&disk, "MANIFEST").unwrap();
    let error = refuse(&disk);
    assert!(matches!(error, OpenError::ManifestMissing { .. }), "{error}");
}

#[test]
fn two_bad_copies_of_the_manifest_are_refused() {
    let disk = closed_log(5);
    let length = disk.contents("MANIFEST").unwrap().len() as u64;
    disk.flip_bit("MANIFEST", 40, 3);
    disk.flip_bit("MANIFEST", length / 2 + 40, 3);
    let error = refuse(&disk);
    assert!(matches!(error, OpenError::ManifestDamaged(_)), "{error}");
}

#[test]
fn two_bad_checkpoints_are_refused() {
    let disk = closed_log(6);
    for name in disk.names().into_iter().filter(|name| name.ends_with(".ckpt")) {
        disk.flip_bit(&name, 50, 1);
    }
    let error = refuse(&disk);
    assert!(matches!(error, OpenError::CheckpointsDamaged { .. }), "{error}");
}

#[test]
fn invalid_options_are_refused_with_their_name() {
    for (options, name) in [
        (Options { segment_bytes: 100, ..Options::default() }, "segment_bytes"),
        (Options { segment_bytes: 1 << 40, ..Options::default() }, "segment_bytes"),
        (Options { first_segment_bytes: 100, ..Options::default() }, "first_segment_bytes"),
        (Options { reserve_bytes: 1, ..Options::default() }, "reserve_bytes"),
        (Options { prepared_segments: 0, ..Options::default() }, "prepared_segments"),
        (Options { batch_bytes: 0, ..Options::default() }, "batch_bytes"),
        (Options { checkpoint_bytes: 0, ..Options::default() }, "checkpoint_bytes"),
    ] {
        let error = Log::open(Path::new("/nonexistent/never"), options).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn missing_index_files_are_rebuilt() {
    let disk = closed_log(7);
    let names: Vec<String> = disk.names().into_iter().filter(|name| name.ends_with(".idx")).collect();
    assert!(names.len() >= 2);
    for name in &names {
        prombus_log::storage::Storage::remove(&disk, name).unwrap();
    }
    let rig = Rig::open(&disk, small_options()).unwrap();
    assert_eq!(read_all(&rig.log, rig.log.topic("t").unwrap()).len(), 150);
    assert!(names.iter().all(|name| disk.contents(name).is_some()));
    assert!(rig.listener.faults().is_empty(), "a missing index is not damage");
}

#[test]
fn a_changed_segment_size_applies_to_new_segments() {
    let disk = closed_log(8);
    for segment_bytes in [32 * 1024, 9 * 1024, 16 * 1024] {
        let rig = Rig::open(&disk, Options { segment_bytes, ..small_options() }).unwrap();
        rig.fill("t", 100);
        rig.log.close().unwrap();
    }
    let rig = Rig::open(&disk, small_options()).unwrap();
    assert_eq!(read_all(&rig.log, rig.log.topic("t").unwrap()).len(), 450);
}

#[test]
fn a_prepared_segment_of_a_smaller_size_does_not_block_a_large_append() {
    let disk = closed_log(9);
    let rig = Rig::open(&disk, Options { segment_bytes: 256 * 1024, ..small_options() }).unwrap();
    let topic = rig.log.topic("t").unwrap();
    rig.put_events(&[event(topic, &[b'x'; 100_000])]);
    assert_eq!(rig.log.last_seq(topic), 151);
}

#[test]
fn nothing_is_written_after_close_whatever_other_handles_do() {
    let rig = Rig::new(10);
    let topic = rig.fill("t", 300);
    let other = rig.log.clone();
    rig.log.close().unwrap();
    for name in rig.disk.names().into_iter().filter(|name| name.ends_with(".idx")) {
        rig.disk.flip_bit(&name, 600, 1);
    }
    let operations = rig.disk.operations();
    assert_eq!(clean(&other, &Cut(|_| u64::MAX)), Err(Unavailable::Closed));
    assert_eq!(other.step_housekeeping(), Step::Stopped);
    assert_eq!(read_all(&other, topic).len(), 300);
    assert_eq!(rig.disk.operations(), operations);
}
