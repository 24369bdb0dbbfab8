//! `inspect` prints the content of every kind of file, and shows damage.

use crate::support::{Rig, event};
use prombus_log::{Append, NewEvent, NewState, inspect};
use std::path::{Path, PathBuf};

fn dump(file: &Path) -> String {
    described(file).0
}

/// The description of a file, and whether it reports damage.
fn described(file: &Path) -> (String, bool) {
    let (mut text, mut is_damaged) = (String::new(), false);
    let mut put = |line: &str, is_damage| {
        text += &format!("{line}\n");
        is_damaged |= is_damage;
        Ok(())
    };
    inspect(file, &mut put).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    (text, is_damaged)
}

/// A closed log with all kinds of files, copied to a real folder.
fn folder() -> PathBuf {
    let rig = Rig::new(1);
    let topic = rig.fill("orders.placed", 200);
    let secret = NewEvent { key: Some(b"customer-7"), ..event(topic, b"a secret body") };
    let states = [NewState { tag: 5, body: &5_u64.to_le_bytes() }];
    rig.put(&Append { events: &[secret], states: &states, use_reserve: false });
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let folder = std::env::temp_dir().join(format!("prombus-log-inspect-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for name in disk.names() {
        std::fs::write(folder.join(&name), disk.contents(&name).unwrap()).unwrap();
    }
    std::fs::write(folder.join("cut-0000000000000001-4096.bin"), [1, 2, 3]).unwrap();
    folder
}

#[test]
fn every_file_of_a_log_can_be_inspected() {
    let folder = folder();
    let mut all = String::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let (text, is_damaged) = described(&path);
        assert!(!is_damaged, "{}: {text}", path.display());
        let name = path.file_name().unwrap().to_str().unwrap();
        let expected = match name.rsplit('.').next().unwrap() {
            "seg" => "header valid",
            "idx" => "index of segment",
            "ckpt" => "topic 1 \"orders.placed\" last seq",
            "bin" => "3 bytes of an unfinished batch",
            "MANIFEST" => "closed cleanly: true",
            "RESERVE" => "given up when the disk is full",
            _ => "lock",
        };
        assert!(text.contains(expected), "{name}: {text}");
        all += &text;
    }
    for expected in [
        "event   topic 1 seq 201",
        "key \"customer-7\"",
        "state   tag 5",
        "\"orders.placed\" created",
        "commit  batch",
    ] {
        assert!(all.contains(expected), "no {expected:?}");
    }
    assert!(!all.contains("secret"), "a body was printed");

    let segment = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let segment =
        segment.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).min().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    // Outside of the magic number: the header is recognised, but its checksum is wrong.
    let mut damaged_header = bytes.clone();
    damaged_header[20] ^= 1;
    std::fs::write(&segment, damaged_header).unwrap();
    let (text, is_damaged) = described(&segment);
    assert!(text.contains("header DAMAGED") && is_damaged, "{text}");
    bytes[4096 + 300] ^= 1;
    // With a damaged header the salt comes from the manifest.
    bytes[3] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let (text, is_damaged) = described(&segment);
    assert!((text.contains("NO FRAME") || text.contains("BODY DAMAGED")) && is_damaged, "{text}");

    let index = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let index = index.filter(|path| path.extension().is_some_and(|extension| extension == "idx")).min();
    let index = index.expect("a segment has an index");
    let sound = std::fs::read(&index).unwrap();
    assert!(!dump(&index).contains("damaged"), "{}", dump(&index));
    let mut flipped = sound.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [flipped, sound[..sound.len() - 1].to_vec(), sound[..sound.len() / 2].to_vec()] {
        std::fs::write(&index, damaged).unwrap();
        let (text, is_damaged) = described(&index);
        assert!(text.contains("damaged") && is_damaged, "{text}");
    }
    for name in ["LOSSES", "LOSSES.new"] {
        std::fs::write(folder.join(name), "garbage").unwrap();
        let (text, is_damaged) = described(&folder.join(name));
        assert!(text.contains("damaged") && is_damaged, "{name}");
        std::fs::remove_file(folder.join(name)).unwrap();
    }

    std::fs::write(folder.join("other.txt"), "hello there").unwrap();
    assert!(inspect(&folder.join("other.txt"), &mut |_, _| Ok(())).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}
