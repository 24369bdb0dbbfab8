use crate::support::*;
use parking_lot::Mutex;
use prombus_log::storage::simulated::Disk;
use prombus_log::storage::{Lock, OpenMode, Storage, StorageFile, SyncPoint};
use prombus_log::*;
use std::io;
use std::sync::Arc;

type Hook = Arc<Mutex<Option<Box<dyn FnMut(&str, std::ops::Range<u64>) -> io::Result<()> + Send>>>>;

/// Calls a hook before each read of a file.
struct Hooked {
    disk: Disk,
    hook: Hook,
}
struct HookedFile {
    name: String,
    file: Arc<dyn StorageFile>,
    hook: Hook,
}
impl Storage for Hooked {
    fn list(&self) -> io::Result<Vec<String>> { self.disk.list() }
    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let file = Storage::open(&self.disk, name, mode)?;
        Ok(Arc::new(HookedFile { name: name.to_owned(), file, hook: Arc::clone(&self.hook) }))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> { self.disk.rename(from, to) }
    fn remove(&self, name: &str) -> io::Result<()> { self.disk.remove(name) }
    fn sync_folder(&self, point: SyncPoint) -> io::Result<()> { self.disk.sync_folder(point) }
    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> { self.disk.lock() }
    fn random(&self) -> u64 { self.disk.random() }
    fn location(&self) -> String { self.disk.location() }
}
impl StorageFile for HookedFile {
    fn len(&self) -> io::Result<u64> { self.file.len() }
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        // Taken out while it runs: what it does may read too.
        let hook = self.hook.lock().take();
        if let Some(mut hook) = hook {
            let result = hook(&self.name, position..position + buffer.len() as u64);
            let mut slot = self.hook.lock();
            if slot.is_none() { *slot = Some(hook); }
            drop(slot);
            result?;
        }
        self.file.read_at(buffer, position)
    }
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> { self.file.write_at(bytes, position) }
    fn sync(&self, point: SyncPoint) -> io::Result<()> { self.file.sync(point) }
}

fn hooked(disk: &Disk, options: Options) -> (Rig, Hook) {
    let hook: Hook = Arc::default();
    let listener = Listener::new();
    let state = Remembered::default();
    let options = Options { observer: Arc::<Listener>::clone(&listener), ..options };
    let storage = Hooked { disk: disk.clone(), hook: Arc::clone(&hook) };
    let log = Log::open_storage(Arc::new(storage), options, Box::new(state.clone())).unwrap();
    (Rig { disk: disk.clone(), log, state, listener }, hook)
}

struct Not(u32);
impl Liveness for Not {
    fn is_live(&self, record: &RecordInfo<'_>) -> bool { record.topic.number() != self.0 }
}

/// 1. A read skips an event that is committed while it finds out that all before it is cleaned.
#[test]
fn a_read_never_skips_a_new_event() {
    let options = Options { tail_bytes: 0, index_cache_bytes: 0, ..small_options() };
    let (rig, hook) = hooked(&Disk::new(1), options);
    let gone = rig.topic("gone");
    while rig.log.stats().segments < 3 { rig.put_events(&[event(gone, &[b'g'; 2000])]); }
    rig.put_events(&[event(rig.topic("other"), &[b'g'; 11_000])]);
    rig.fill("other", 300);
    let last = rig.log.last_seq(gone);
    let report = rig.log.clean(&Not(gone.number())).unwrap();
    println!("{report:?}");
    assert!(report.segments_retired > 0, "{report:?}");
    rig.settle();
    assert_eq!(read_all(&rig.log, gone), []);
    rig.settle();
    // The growing segment is nearly full, so the next event starts a new one.
    let log = rig.log.clone();
    *hook.lock() = Some(Box::new(move |name, _| {
        if name.contains(".idx") && log.last_seq(gone) == last {
            let body = vec![b'x'; 11_500];
            let append = Append { events: &[event(gone, &body)], ..Append::default() };
            log.try_append(&append, &mut Outcomes::default()).unwrap();
            assert_eq!(log.step_commit(), Step::Worked);
        }
        Ok(())
    }));
    let mut chunk = Chunk::default();
    rig.log.read(gone, 1, ReadLimit::default(), &mut chunk).unwrap();
    hook.lock().take();
    assert_eq!(rig.log.last_seq(gone), last + 1);
    println!("missing {:?} next {} segments {}", chunk.missing(), chunk.next_seq(), rig.log.stats().segments);
    assert!(chunk.len() == 1 || chunk.next_seq() <= last + 1, "seq {} was passed over: {:?}", last + 1, chunk.missing());
}

fn last_commit(disk: &Disk, segment: &str) -> u64 {
    let bytes = disk.contents(segment).unwrap();
    let is_commit = |&at: &usize| bytes[at..at + 4] == [0xf5, b'p', b'm', b'b'] && bytes[at + 8] == 4;
    (0..bytes.len() - 64).rev().find(is_commit).unwrap() as u64
}

/// 2. After a damaged COMMIT and a clean close the batch's events are gone and its seqs are given again.
#[test]
fn events_of_a_batch_with_a_damaged_commit_survive_a_clean_close() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(2), options()).unwrap();
    let topic = rig.fill("t", 5);
    let disk = rig.disk.clone();
    rig.log.close().unwrap(); // checkpoint at seq 5
    let rig = Rig::open(&disk, options()).unwrap();
    rig.fill("t", 1); // seq 6: acknowledged
    // A second batch is written and torn by a crash: the open cuts it and seals the segment behind seq 6.
    let survivor = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let name = survivor.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let mut bytes = survivor.contents(&name).unwrap();
    let end = last_commit(&survivor, &name) as usize + 64 + 24;
    bytes[end..end + 40].fill(7);
    survivor.replace(&name, bytes);
    let rig = Rig::open(&survivor, options()).unwrap();
    assert_eq!(rig.log.last_seq(topic), 6);
    // kill -9, and then one bit of the COMMIT of seq 6 flips.
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    disk.flip_bit(&name, last_commit(&disk, &name) + 30, 1);
    let rig = Rig::open(&disk, options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), 6, "the event itself is fine");
    rig.log.close().unwrap();
    let rig = Rig::open(&disk, options()).unwrap();
    let seqs: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    let next = rig.put_events(&[event(topic, b"new")])[0].seq;
    assert_eq!((seqs, next), (vec![1, 2, 3, 4, 5, 6], 7));
}

/// 3. One unreadable sector of an old segment: cleaning stops all writing.
#[test]
fn a_bad_sector_met_by_cleaning_does_not_stop_writing() {
    let (rig, hook) = hooked(&Disk::new(3), small_options());
    let topic = rig.fill("t", 300);
    let first = rig.disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    *hook.lock() = Some(Box::new(move |name, _| {
        if name == first { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }));
    let _ = rig.log.clean(&Not(77));
    assert_eq!(rig.log.unavailable(), None);
}

/// 4. An index that is rebuilt in memory answers for duplicates also when another segment is cleaned meanwhile.
#[test]
fn a_duplicate_is_found_while_its_index_is_rebuilt() {
    let options = Options { tail_bytes: 0, index_cache_bytes: 0, ..small_options() };
    let rig = Rig::open(&Disk::new(4), options).unwrap();
    let junk = rig.fill("junk", 150);
    let topic = rig.topic("t");
    let id = EventId::from_u128(0xabcdef);
    rig.put_events(&[NewEvent { id: Some(id), ..event(topic, b"once") }]);
    rig.fill("t", 300);
    let again = [NewEvent { id: Some(id), ..event(topic, b"once") }];
    assert!(rig.put_events(&again)[0].duplicate);
    // Damage all index files behind the head and filters; one look-up has them rebuilt in memory.
    for name in rig.disk.names().into_iter().filter(|name| name.ends_with(".idx")) {
        let length = rig.disk.contents(&name).unwrap().len() as u64;
        for position in 512 + 64..length { rig.disk.flip_bit(&name, position, 3); }
    }
    assert_eq!(rig.log.find_id(topic, id).unwrap(), Some(1));
    let report = rig.log.clean(&Not(junk.number())).unwrap();
    assert!(report.segments_retired > 0, "{report:?}");
    let mut outcomes = Outcomes::default();
    rig.log.try_append(&Append { events: &again, ..Append::default() }, &mut outcomes).unwrap();
    assert!(outcomes[0].duplicate, "{:?}", outcomes[0]);
}

/// 6. While cleaning runs no checkpoint and no index is written: what they would let go of stays in memory.
#[test]
fn checkpoints_go_on_while_cleaning_runs() {
    struct Slow<'a>(&'a Log, &'a Disk, TopicId, Mutex<Option<(usize, usize)>>);
    impl Liveness for Slow<'_> {
        fn is_live(&self, _record: &RecordInfo<'_>) -> bool {
            let mut done = self.3.lock();
            if done.is_none() {
                let count = |suffix: &str| self.1.names().into_iter().filter(|n| n.ends_with(suffix)).collect::<Vec<_>>();
                let before = (count(".ckpt"), count(".idx"));
                // As much as a publisher may do while a large log is read: other threads would do it.
                let mut stalled = 0;
                for n in 0..2_000u64 {
                    let body = [b'x'; 500];
                    let number = n.to_le_bytes();
                    let append = Append { events: &[event(self.2, &body)], states: &[NewState { tag: n as u32, body: &number }], use_reserve: false };
                    match self.0.try_append(&append, &mut Outcomes::default()) {
                        Ok(_) => { while self.0.step_commit() == Step::Worked {} }
                        Err(_) => { stalled += 1; }
                    }
                }
                let after = (count(".ckpt"), count(".idx"));
                println!("ckpt {:?} -> {:?}; stalled {stalled}", before.0, after.0);
                *done = Some((stalled, usize::from(before.0 != after.0)));
            }
            true
        }
    }
    let options = Options { checkpoint_bytes: 8 * 1024, prepared_segments: 40, ..small_options() };
    let rig = Rig::open(&Disk::new(6), options).unwrap();
    let topic = rig.fill("t", 300);
    let slow = Slow(&rig.log, &rig.disk, topic, Mutex::new(None));
    rig.log.clean(&slow).unwrap();
    let (_, checkpoints) = slow.3.into_inner().unwrap();
    assert!(checkpoints > 0, "600 KiB were committed, checkpoint_bytes is 8 KiB, and none was written");
}

/// 7. On a full disk a topic can be deleted, so that cleaning has something to clean.
#[test]
fn a_topic_can_be_deleted_on_a_full_disk() {
    let rig = Rig::new(7);
    let topic = rig.topic(&"t".repeat(300));
    rig.settle();
    rig.disk.set_capacity(Some(rig.disk.used_bytes() + 60 * 1024));
    let append = Append { events: &[event(topic, &[b'x'; 200])], ..Append::default() };
    loop {
        match rig.log.try_append(&append, &mut Outcomes::default()) {
            Err(AppendError::StorageFull) => break,
            _ => rig.settle(),
        }
    }
    let deleted = rig.log.delete_topic(topic);
    assert!(deleted.is_ok(), "{deleted:?}");
}

/// 8. A clean log whose newer checkpoint is damaged: verify does not look behind the older one.
#[test]
fn verify_finds_damage_behind_the_older_checkpoint() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(8), options()).unwrap();
    let topic = rig.fill("t", 5);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let rig = Rig::open(&disk, options()).unwrap();
    rig.fill("t", 5);
    rig.log.close().unwrap();
    let healthy = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
    let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let bytes = disk.contents(&name).unwrap();
    let body = bytes.windows(8).position(|w| w == b"{\"n\":8,\"").unwrap() as u64;
    disk.flip_bit(&name, body + 20, 1);
    let newest = disk.names().into_iter().filter(|n| n.ends_with(".ckpt")).last().unwrap();
    disk.flip_bit(&newest, 30, 1);
    let report = verify_storage(Arc::new(disk.clone()), |_| {}).unwrap();
    println!("healthy {} events; now {} events {:?}", healthy.events, report.events, report.faults);
    assert!(report.faults.iter().any(|fault| fault.file == name), "{:?}", report.faults);
}

/// 9. One flipped bit in a prepared segment, and a torn last batch is no longer cut: half of an append is served.
#[test]
fn a_torn_batch_is_cut_also_when_a_prepared_segment_is_damaged() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(9), options()).unwrap();
    let topic = rig.fill("t", 3);
    let two = [event(topic, b"first half"), event(topic, b"second half")];
    rig.put(&Append { events: &two, states: &[NewState { tag: 1, body: &1u64.to_le_bytes() }], use_reserve: false });
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let mut bytes = disk.contents(&name).unwrap();
    // As if only the first half of that batch had come to the disk.
    let half = bytes.windows(11).position(|w| w == b"second half").unwrap() - 64;
    bytes[half..].fill(0);
    disk.replace(&name, bytes);
    let spare = disk.names().into_iter().filter(|name| name.ends_with(".seg")).nth(1).unwrap();
    assert!(disk.contents(&spare).unwrap()[4096..].iter().all(|&b| b == 0));
    disk.flip_bit(&spare, 9000, 0);
    let rig = Rig::open(&disk, options()).unwrap();
    println!("{:?}", rig.listener.notices());
    assert_eq!(read_all(&rig.log, topic).len(), 3, "half of an append is there");
}

/// 10. A segment with one batch whose COMMIT is damaged, and a later segment begun: the batch was durable, but is cut.
#[test]
fn a_batch_is_not_cut_when_a_later_segment_is_begun() {
    let options = || Options { checkpoint_bytes: 1 << 30, prepared_segments: 3, ..small_options() };
    let rig = Rig::open(&Disk::new(10), options()).unwrap();
    let topic = rig.fill("t", 3);
    let big = vec![b'b'; 11_000];
    // No housekeeping in between: the manifest knows of no seal.
    for body in [&big[..], &big[..], &big[..]] {
        rig.log.try_append(&Append { events: &[event(topic, body)], ..Append::default() }, &mut Outcomes::default()).unwrap();
        while rig.log.step_commit() == Step::Worked {}
    }
    assert_eq!(rig.log.last_seq(topic), 6);
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let segments: Vec<String> = disk.names().into_iter().filter(|n| n.ends_with(".seg")).collect();
    let with: Vec<&String> = segments.iter().filter(|n| disk.contents(n).unwrap()[4096] != 0).collect();
    println!("{segments:?} {with:?}");
    let victim = with[with.len() - 2];
    disk.flip_bit(victim, last_commit(&disk, victim) + 30, 1);
    let rig = Rig::open(&disk, options()).unwrap();
    println!("{:?}", rig.listener.notices());
    let seqs: Vec<u64> = read_all(&rig.log, topic).iter().map(|read| read.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
}

/// 5. More segments than file descriptors: run under `ulimit -n 64`.
#[test]
fn review_fds() {
    let folder = std::env::temp_dir().join(format!("review-fds-{}", std::process::id()));
    let options = || Options { segment_bytes: 16 * 1024, reserve_bytes: 8 * 1024, batch_bytes: 4096, tail_bytes: 0, ..Options::default() };
    let log = Log::open(&folder, options()).unwrap();
    let topic = log.ensure_topic("t").unwrap();
    let mut outcomes = Outcomes::default();
    for n in 0..400 {
        let body = vec![b'x'; 4000];
        let append = Append { events: &[event(topic, &body)], ..Append::default() };
        match log.append(&append, &mut outcomes).map_err(|e| e.to_string()).and_then(|t| log.wait(t).map_err(|e| e.to_string())) {
            Ok(()) => {}
            Err(error) => { let _ = std::fs::remove_dir_all(&folder); panic!("after {n} events: {error}") }
        }
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// Hostile bytes with right checksums.
#[test]
fn review_fuzz() {
    let first = setting("PROMBUS_SEED", 1);
    let count = setting("PROMBUS_HISTORIES", 2000);
    std::panic::set_hook(Box::new(|info| {
        println!("PANIC {}", info.to_string().replace('\n', " "));
    }));
    let mut bases = Vec::new();
    for (seed, close) in [(1u64, true), (2, false)] {
        let rig = Rig::new(seed);
        let a = rig.topic("a");
        let b = rig.topic("b");
        for n in 0..150u64 {
            let key = format!("k{}", n % 7);
            let id = (n % 3 == 0).then(|| EventId::from_u128(n as u128 + 1));
            rig.put(&Append { events: &[NewEvent { key: Some(key.as_bytes()), id, ..event(a, &[b'x'; 90]) }, event(b, &[b'y'; 60])], states: &[NewState { tag: n as u32, body: &n.to_le_bytes() }], use_reserve: false });
        }
        struct L;
        impl Liveness for L { fn is_live(&self, r: &RecordInfo<'_>) -> bool { r.seq % 3 == 0 } }
        rig.log.clean(&L).unwrap();
        rig.fill("a", 20);
        let disk = if close { let d = rig.disk.clone(); rig.log.close().unwrap(); d } else { let d = rig.disk.fork(); rig.disk.cut_after(0); d };
        bases.push(disk);
    }
    let mut bad = std::collections::BTreeMap::<String, u64>::new();
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let disk = bases[random.below(2) as usize].fork();
        let names: Vec<String> = disk.names().into_iter().filter(|n| n != "LOCK" && n != "RESERVE").collect();
        let mut what = String::new();
        for _ in 0..random.between(1, 3) {
            let name = names[random.below(names.len() as u64) as usize].clone();
            let mut bytes = disk.contents(&name).unwrap();
            if bytes.len() < 64 { continue }
            // Edge values, but small enough where memory would be asked for by number of topics.
            let value: u64 = [0, 1, u64::MAX, 1 << 63, 0xffff_ffff, 5000, random.next(), 4096, 0x7fff_ffff][random.below(9) as usize];
            let width = [1, 2, 4, 8][random.below(4) as usize];
            let put = |bytes: &mut Vec<u8>, at: usize| bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            if name == "MANIFEST" {
                let half = bytes.len() / 2;
                let length = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
                let at = 24 + random.below(length as u64 - 8) as usize;
                put(&mut bytes, at);
                let crc = crc(&bytes[12..24 + length]);
                bytes[8..12].copy_from_slice(&crc.to_le_bytes());
                let copy = bytes[..half].to_vec();
                bytes[half..].copy_from_slice(&copy);
                what += &format!("{name}@{at}w{width}={value:x} ");
            } else if name.ends_with(".ckpt") {
                let at = 24 + random.below(bytes.len() as u64 - 24 - 8) as usize;
                // next_topic and topic ids: known to ask for memory by number.
                if (24 + 28 + 16 + 8 - 8..24 + 28 + 16 + 8 + 4 + 4 + 4 + 20 + 8).contains(&at) { continue }
                put(&mut bytes, at);
                let crc = crc(&bytes[12..]);
                bytes[8..12].copy_from_slice(&crc.to_le_bytes());
                what += &format!("{name}@{at}w{width}={value:x} ");
            } else if name.ends_with(".idx") {
                let at = 16 + random.below(bytes.len() as u64 - 16 - 8) as usize;
                put(&mut bytes, at);
                // Sections and pages.
                for s in 0..6 {
                    let o = 136 + s * 24;
                    let offset = u64::from_le_bytes(bytes[o..o + 8].try_into().unwrap());
                    let length = u64::from_le_bytes(bytes[o + 8..o + 16].try_into().unwrap());
                    if let Some(end) = offset.checked_add(length) && end <= bytes.len() as u64 && offset >= 512 {
                        if s >= 4 {
                            for p in (offset as usize..end as usize).step_by(4096) {
                                if p + 4096 <= bytes.len() { let c = crc(&bytes[p + 4..p + 4096]); bytes[p..p + 4].copy_from_slice(&c.to_le_bytes()); }
                            }
                        }
                        let c = crc(&bytes[offset as usize..end as usize]);
                        bytes[o + 16..o + 20].copy_from_slice(&c.to_le_bytes());
                    }
                }
                let c = crc(&bytes[12..512]);
                bytes[8..12].copy_from_slice(&c.to_le_bytes());
                what += &format!("{name}@{at}w{width}={value:x} ");
            } else if name.ends_with(".seg") {
                let salt = u32::from_le_bytes(bytes[32..36].try_into().unwrap());
                let frames: Vec<usize> = (4096..bytes.len() - 64).filter(|&at| bytes[at..at + 4] == [0xf5, b'p', b'm', b'b'] && crc(&bytes[at + 8..at + 64]) ^ salt == u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap())).collect();
                if frames.is_empty() { continue }
                let frame = frames[random.below(frames.len() as u64) as usize];
                let body = u32::from_le_bytes(bytes[frame + 12..frame + 16].try_into().unwrap()) as usize + u16::from_le_bytes(bytes[frame + 10..frame + 12].try_into().unwrap()) as usize;
                let is_commit = bytes[frame + 8] == 4;
                let at = if is_commit && random.one_in(2) { 64 + random.below(body as u64) as usize } else { 8 + random.below(56) as usize };
                if frame + at + 8 > bytes.len() { continue }
                // The topic's number is known to ask for memory by number; so is the count of a run.
                if !is_commit && (12..24).contains(&at) { continue }
                if is_commit && at >= 64 && width == 8 { continue }
                put(&mut bytes, frame + at);
                let end = (frame + 64 + body).min(bytes.len());
                if is_commit {
                    let table = bytes[frame + 64..end].to_vec();
                    let prev = u32::from_be_bytes(bytes[frame + 56..frame + 60].try_into().unwrap());
                    let mut all = prev.to_le_bytes().to_vec();
                    all.extend_from_slice(&bytes[frame + 24..frame + 32]);
                    all.extend_from_slice(&table);
                    let chain = crc(&all);
                    bytes[frame + 60..frame + 64].copy_from_slice(&chain.to_be_bytes());
                }
                let c = crc(&bytes[frame + 64..end]) ^ salt;
                bytes[frame + 16..frame + 20].copy_from_slice(&c.to_le_bytes());
                let c = crc(&bytes[frame + 8..frame + 64]) ^ salt;
                bytes[frame + 4..frame + 8].copy_from_slice(&c.to_le_bytes());
                what += &format!("{name}@{frame}+{at}w{width}={value:x} kind {} ", bytes[frame + 8]);
            }
            disk.replace(&name, bytes);
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = verify_storage(Arc::new(disk.fork()), |_| {});
        }));
        if outcome.is_err() { println!("seed {seed} verify: {what}"); }
        let opened = disk.fork();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let Ok(rig) = Rig::open(&opened, Options { tail_bytes: 0, ..small_options() }) else { return };
            for info in rig.log.topics().into_iter().take(10) {
                let mut chunk = Chunk::default();
                let mut seq = 1;
                for _ in 0..1000 {
                    if rig.log.read(info.id, seq, ReadLimit { events: 7, bytes: 3000 }, &mut chunk).is_err() { break }
                    if chunk.next_seq() == seq { break }
                    seq = chunk.next_seq();
                }
                let _ = rig.log.find_id(info.id, EventId::from_u128(31));
                let _ = rig.log.find_key(info.id, b"k3");
                let _ = rig.log.first_at_or_after(info.id, 1);
                let _ = rig.log.last_at_or_before(info.id, 1);
                let _ = rig.log.first_seq(info.id);
                let append = Append { events: &[NewEvent { id: Some(EventId::from_u128(seed as u128)), ..event(info.id, b"x") }], ..Append::default() };
                let _ = rig.log.try_append(&append, &mut Outcomes::default());
                rig.settle();
            }
            struct L;
            impl Liveness for L { fn is_live(&self, r: &RecordInfo<'_>) -> bool { r.seq % 6 == 0 } }
            let _ = rig.log.clean(&L);
            rig.settle();
            let _ = rig.log.close();
        }));
        if outcome.is_err() { println!("seed {seed} open: {what}"); }
    }
}

fn crc(bytes: &[u8]) -> u32 { crc32c::crc32c(bytes) }

/// 11. An unreadable sector of an index, which is only a cache, keeps the log from opening.
#[test]
fn an_unreadable_index_does_not_keep_the_log_from_opening() {
    let rig = Rig::new(11);
    rig.fill("t", 300);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let bad = disk.names().into_iter().find(|name| name.ends_with(".idx")).unwrap();
    let hook: Hook = Arc::default();
    *hook.lock() = Some(Box::new(move |name, _| if name == bad { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }));
    let opened = Log::open_storage(Arc::new(Hooked { disk, hook }), small_options(), Box::new(Remembered::default()));
    assert!(opened.is_ok(), "{:?}", opened.err());
}

/// 12. One unreadable sector of a segment: a reader never gets past it.
#[test]
fn an_unreadable_sector_costs_its_events_only() {
    let options = Options { tail_bytes: 0, ..small_options() };
    let (rig, hook) = hooked(&Disk::new(12), options);
    let topic = rig.fill("t", 300);
    let bad = rig.disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    *hook.lock() = Some(Box::new(move |name, range| {
        let hit = name == bad && range.start < 8192 + 512 && range.end > 8192;
        if hit { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }));
    let (mut from, mut seen, mut errors) = (1, 0, 0);
    let mut chunk = Chunk::default();
    while errors < 1000 && from <= 300 {
        match rig.log.read(topic, from, ReadLimit { events: 1, bytes: 1 }, &mut chunk) {
            Ok(()) => { seen += chunk.len(); from = chunk.next_seq(); }
            Err(_) => errors += 1,
        }
    }
    assert!(seen > 290, "{seen} of 300 events seen, stuck at seq {from} after {errors} errors");
}

/// 13. An id that the log made and told, republished before its commit, is taken twice.
#[test]
fn an_own_id_in_flight_is_a_duplicate() {
    let rig = Rig::new(13);
    let topic = rig.fill("t", 1);
    let mut outcomes = Outcomes::default();
    rig.log.try_append(&Append { events: &[event(topic, b"x")], ..Append::default() }, &mut outcomes).unwrap();
    let again = [NewEvent { id: Some(outcomes[0].id), ..event(topic, b"x") }];
    rig.log.try_append(&Append { events: &again, ..Append::default() }, &mut outcomes).unwrap();
    assert!(outcomes[0].duplicate, "{:?}", outcomes[0]);
}

/// 14. The tail counts lengths, its buffers are larger. Run alone.
#[test]
fn review_tail_memory() {
    let rss = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find(|l| l.starts_with("VmRSS")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let folder = std::env::temp_dir().join(format!("review-tail-{}", std::process::id()));
    let options = Options { threads: false, tail_bytes: 16 << 20, ..Options::default() };
    let log = Log::open(&folder, options).unwrap();
    let topic = loop { if let Ok(t) = log.ensure_topic("t") { break t } log.step_commit(); log.step_housekeeping(); };
    let mut outcomes = Outcomes::default();
    let mut put = |bytes: usize| {
        let body = vec![b'x'; bytes];
        while log.try_append(&Append { events: &[event(topic, &body)], ..Append::default() }, &mut outcomes).is_err() { log.step_commit(); while log.step_housekeeping() == Step::Worked {} }
        log.step_commit();
    };
    let before = rss();
    for cycle in 0..60 {
        put(4_000_000);
        for _ in 0..8 { put(66_000); }
        if cycle % 10 == 9 { println!("cycle {cycle}: {} MiB more than at the start", rss() - before); }
    }
    let more = rss() - before;
    drop(log);
    let _ = std::fs::remove_dir_all(&folder);
    println!("tail_bytes 16 MiB, pools 32 MiB: {more} MiB");
}

/// 2b. A batch with a damaged COMMIT in a log that was closed cleanly, opened from the older checkpoint: the first open serves
/// it, a crash later the second open cuts it as a torn tail.
#[test]
fn what_an_open_served_the_next_one_serves_too() {
    let options = || Options { checkpoint_bytes: 1 << 30, ..small_options() };
    let rig = Rig::open(&Disk::new(20), options()).unwrap();
    let topic = rig.fill("t", 6);
    let disk = rig.disk.clone();
    rig.log.close().unwrap();
    let newest = disk.names().into_iter().filter(|name| name.ends_with(".ckpt")).last().unwrap();
    disk.flip_bit(&newest, 30, 1);
    let name = disk.names().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    disk.flip_bit(&name, last_commit(&disk, &name) + 30, 1);
    let rig = Rig::open(&disk, options()).unwrap();
    assert_eq!(read_all(&rig.log, topic).len(), 6);
    let disk = rig.disk.fork();
    rig.disk.cut_after(0);
    drop(rig);
    let rig = Rig::open(&disk, options()).unwrap();
    println!("{:?}", rig.listener.notices());
    assert_eq!(read_all(&rig.log, topic).len(), 6);
}
