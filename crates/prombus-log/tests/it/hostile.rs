//! Files with wrong content but correct checksums: nothing panics, hangs or allocates huge amounts of memory.

use crate::support::{Lives, Random, Rig, clean, event, setting, small_options};
use prombus_log::storage::simulated::Disk;
use prombus_log::{Append, Chunk, EventId, NewEvent, NewState, Options, Outcomes, ReadLimit, verify_storage};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const FRAME_MAGIC: [u8; 4] = [0xf5, b'p', b'm', b'b'];

fn clean_all_but_every_sixth(rig: &Rig) {
    let _ = clean(&rig.log, &Lives(|_, seq| seq % 6 == 0));
}

/// A log with sealed, rewritten and growing segments.
fn build(seed: u64, close: bool) -> Disk {
    let rig = Rig::new(seed);
    let (a, b) = (rig.topic("a"), rig.topic("b"));
    for number in 0..150_u64 {
        let key = format!("k{}", number % 7);
        let id = (number % 3 == 0).then(|| EventId::from_u128(u128::from(number) + 1));
        let keyed = NewEvent { key: Some(key.as_bytes()), id, ..event(a, &[b'x'; 90]) };
        let state = number.to_le_bytes();
        let states = [NewState { tag: number as u32, body: &state }];
        rig.put(&Append { events: &[keyed, event(b, &[b'y'; 60])], states: &states, use_reserve: false });
    }
    clean_all_but_every_sixth(&rig);
    rig.fill("a", 20);
    let disk = rig.disk.fork();
    if close {
        let disk = rig.disk.clone();
        rig.log.close().unwrap();
        return disk;
    }
    rig.disk.cut_after(0);
    disk
}

fn put_crc(bytes: &mut [u8], at: usize, range: std::ops::Range<usize>, salt: u32) {
    let crc = crc32c::crc32c(&bytes[range]) ^ salt;
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn u64_in(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Writes an extreme value somewhere and corrects the checksums.
fn tamper(name: &str, bytes: &mut [u8], random: &mut Random) {
    let length = bytes.len();
    let edges = [0, 1, u64::MAX, 1 << 63, 0xffff_ffff, 5000, random.next(), 4096, 0x7fff_ffff];
    let value = edges[random.below(edges.len() as u64) as usize].to_le_bytes();
    let width = [1, 2, 4, 8][random.below(4) as usize];
    let mut put = |bytes: &mut [u8], at: usize| bytes[at..at + width].copy_from_slice(&value[..width]);
    let anywhere =
        |random: &mut Random, from: usize, to: usize| from + random.below((to - from - 8) as u64) as usize;
    if name == "MANIFEST" {
        let end = 24 + u64_in(bytes, 16) as usize;
        put(bytes, anywhere(random, 24, end));
        put_crc(bytes, 8, 12..end, 0);
        let half = bytes.len() / 2;
        bytes.copy_within(..half, half);
    } else if name.ends_with(".ckpt") {
        put(bytes, anywhere(random, 24, length));
        put_crc(bytes, 8, 12..length, 0);
    } else if name.ends_with(".idx") {
        put(bytes, anywhere(random, 16, length));
        for section in 0..6 {
            let at = 136 + section * 24;
            let (offset, length) = (u64_in(bytes, at) as usize, u64_in(bytes, at + 8) as usize);
            let Some(end) = offset.checked_add(length).filter(|&end| end <= bytes.len() && offset >= 512)
            else {
                continue;
            };
            for page in (offset..end).step_by(4096).filter(|page| section >= 4 && page + 4096 <= end) {
                put_crc(bytes, page, page + 4..page + 4096, 0);
            }
            put_crc(bytes, at + 16, offset..end, 0);
        }
        put_crc(bytes, 8, 12..512, 0);
    } else if name.ends_with(".seg") {
        tamper_frame(bytes, random, &mut put);
    }
}

fn tamper_frame(bytes: &mut [u8], random: &mut Random, put: &mut impl FnMut(&mut [u8], usize)) {
    let salt = u32::from_le_bytes(bytes[32..36].try_into().unwrap());
    let frames: Vec<usize> =
        (4096..bytes.len() - 64).filter(|&at| bytes[at..at + 4] == FRAME_MAGIC).collect();
    if frames.is_empty() {
        return;
    }
    let frame = frames[random.below(frames.len() as u64) as usize];
    let length = u32::from_le_bytes(bytes[frame + 12..frame + 16].try_into().unwrap()) as usize
        + usize::from(u16::from_le_bytes([bytes[frame + 10], bytes[frame + 11]]));
    let end = frame + 64 + length;
    if end + 8 > bytes.len() {
        return;
    }
    let is_commit = bytes[frame + 8] == 4;
    let in_table = is_commit && random.one_in(2) && length > 0;
    let offset = if in_table { 64 + random.below(length as u64) } else { 8 + random.below(48) };
    put(bytes, frame + offset as usize);
    if is_commit {
        let mut chained = bytes[frame + 56..frame + 60].iter().rev().copied().collect::<Vec<u8>>();
        chained.extend_from_slice(&bytes[frame + 24..frame + 32]);
        chained.extend_from_slice(&bytes[frame + 64..end]);
        bytes[frame + 60..frame + 64].copy_from_slice(&crc32c::crc32c(&chained).to_be_bytes());
    }
    put_crc(bytes, frame + 16, frame + 64..end, salt);
    put_crc(bytes, frame + 4, frame + 8..frame + 64, salt);
}

/// Does everything that a process may do with a folder.
fn use_it(disk: &Disk, seed: u64) {
    let Ok(rig) = Rig::open(disk, Options { tail_bytes: 0, ..small_options() }) else { return };
    let mut chunk = Chunk::default();
    for topic in rig.log.topics().into_iter().take(10) {
        let mut seq = 1;
        for _ in 0..1000 {
            let read = rig.log.read(topic.id, seq, ReadLimit { events: 7, bytes: 3000 }, &mut chunk);
            if read.is_err() || chunk.next_seq() == seq {
                break;
            }
            seq = chunk.next_seq();
        }
        let _ = rig.log.find_id(topic.id, EventId::from_u128(31));
        let _ = rig.log.find_key(topic.id, b"k3");
        let _ = rig.log.first_at_or_after(topic.id, 1);
        let _ = rig.log.first_seq(topic.id);
        let new = NewEvent { id: Some(EventId::from_u128(seed.into())), ..event(topic.id, b"x") };
        let _ = rig.log.try_append(&Append { events: &[new], ..Append::default() }, &mut Outcomes::default());
        rig.settle();
    }
    clean_all_but_every_sixth(&rig);
    rig.settle();
}

#[test]
fn files_with_wrong_content_and_correct_checksums_do_no_harm() {
    let first = setting("PROMBUS_SEED", 1);
    let count = setting("PROMBUS_HISTORIES", 4_000);
    println!("PROMBUS_SEED={first} PROMBUS_HISTORIES={count}");
    let bases = [build(1, true), build(2, false)];
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let disk = bases[random.below(2) as usize].fork();
        let names: Vec<String> =
            disk.names().into_iter().filter(|name| name != "LOCK" && name != "RESERVE").collect();
        for _ in 0..random.between(1, 3) {
            let name = &names[random.below(names.len() as u64) as usize];
            let mut bytes = disk.contents(name).unwrap();
            tamper(name, &mut bytes, &mut random);
            disk.replace(name, bytes);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _ = verify_storage(Arc::new(disk.fork()), |_| {});
            use_it(&disk.fork(), seed);
        }));
        assert!(outcome.is_ok(), "PROMBUS_SEED={seed} PROMBUS_HISTORIES=1 panicked");
    }
}
