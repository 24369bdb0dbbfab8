use crate::support::*;
use parking_lot::Mutex;
use prombus_log::storage::simulated::Disk;
use prombus_log::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Sparse(u64);
impl Liveness for Sparse {
    fn is_live(&self, r: &RecordInfo<'_>) -> bool { r.seq % 5 == 0 || r.seq > self.0 }
}

type Content = (BTreeMap<String, (u64, Vec<Read>)>, Vec<u64>);
fn content(rig: &Rig) -> Content {
    let topics = rig.log.topics().into_iter().map(|t| (t.name.to_string(), (t.last_seq, read_all(&rig.log, t.id)))).collect();
    (topics, rig.state.all())
}

fn end(rig: Rig, how: u64) -> Disk {
    let disk = rig.disk.clone();
    match how {
        0 => { rig.log.close().unwrap(); disk }
        1 => { let fork = disk.fork(); disk.cut_after(0); drop(rig); fork }
        _ => { disk.cut_after(0); drop(rig); disk.power_cut(); disk }
    }
}

/// After damage, what an open shows, the next open shows too, and seqs go on.
#[test]
fn review_damage_is_stable() {
    let first = setting("PROMBUS_SEED", 1);
    let count = setting("PROMBUS_HISTORIES", 3000);
    std::panic::set_hook(Box::new(|info| println!("PANIC {}", info.to_string().replace('\n', " "))));
    let mut failed = 0;
    for seed in first..first + count {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut random = Random::new(seed);
            let options = Options { tail_bytes: 0, checkpoint_bytes: 1024 * random.between(1, 6), prepared_segments: random.between(1, 3) as usize, ..small_options() };
            let mut rig = Rig::open(&Disk::new(seed), options.clone()).unwrap();
            let mut log_of = Vec::new();
            for _ in 0..random.between(1, 4) {
                for _ in 0..random.between(1, 60) {
                    let name = ["a", "b", "c"][random.below(3) as usize];
                    let topic = rig.topic(name);
                    let body = vec![b'x'; if random.one_in(10) { random.between(1000, 7_500) } else { random.below(200) } as usize];
                    let n = rig.state.0.lock().len() as u64 + random.below(1000000);
                    let numbers = [n.to_le_bytes()];
                    let states = [NewState { tag: n as u32, body: &numbers[0] }];
                    let append = Append { events: &[event(topic, &body), event(topic, &body[..body.len() / 2])], states: if random.one_in(2) { &states } else { &[] }, use_reserve: false };
                    while rig.log.try_append(&append, &mut Outcomes::default()).is_err() { rig.log.step_commit(); rig.log.step_housekeeping(); }
                    rig.log.step_commit();
                    if random.one_in(3) { rig.log.step_housekeeping(); }
                }
                if random.one_in(3) { rig.log.clean(&Sparse(random.below(60))).unwrap(); }
                let how = random.below(3);
                log_of.push(how);
                let disk = end(rig, how);
                rig = Rig::open(&disk, options.clone()).unwrap();
            }
            let how = random.below(3);
            let disk = end(rig, how);
            let flips = setting("FLIPS", 1);
            let mut what = format!("{log_of:?} {how} ");
            let mut checkpoint_hit = false;
            for _ in 0..flips {
                let names: Vec<String> = disk.names().into_iter().filter(|n| n.ends_with(".seg") || n.ends_with(".idx") || (n.ends_with(".ckpt") && !checkpoint_hit && setting("CKPT", 0) == 1)).collect();
                let name = names[random.below(names.len() as u64) as usize].clone();
                checkpoint_hit |= name.ends_with(".ckpt");
                let bytes = disk.contents(&name).unwrap();
                let used = bytes.iter().rposition(|&b| b != 0).map_or(0, |at| at as u64 + 1);
                let at = if name.ends_with(".seg") && used > 4096 { random.between(4096, used - 1) } else { random.below(bytes.len() as u64) };
                // Often a COMMIT.
                let at = if name.ends_with(".seg") && random.one_in(2) {
                    let commits: Vec<usize> = (4096..bytes.len() - 64).filter(|&p| bytes[p..p + 4] == [0xf5, b'p', b'm', b'b'] && bytes[p + 8] == 4).collect();
                    if commits.is_empty() { at } else { (if random.one_in(2) { commits[commits.len() - 1] } else { commits[random.below(commits.len() as u64) as usize] }) as u64 + random.below(80) }
                } else { at };
                if at >= bytes.len() as u64 { continue }
                disk.flip_bit(&name, at, random.below(8) as u8);
                what += &format!("{name}@{at} ");
            }
            let rig = Rig::open(&disk, options.clone()).unwrap_or_else(|e| panic!("{what} open: {e}"));
            let one = content(&rig);
            for (name, (last, events)) in &one.0 {
                for event in events { assert!(event.seq <= *last, "{what}: {name} {} above {last}", event.seq); }
            }
            let how2 = random.below(3);
            let disk = end(rig, how2);
            let rig = Rig::open(&disk, options.clone()).unwrap_or_else(|e| panic!("{what} {how2} again: {e}"));
            let two = content(&rig);
            for (name, (last, events)) in &one.0 {
                let there = two.0.get(name).unwrap_or_else(|| panic!("{what} {how2}: topic {name} gone; {:?}", rig.log.topics()));
                assert_eq!(there.0, *last, "{what} {how2}: last seq of {name} changed");
                let seqs = |e: &Vec<Read>| e.iter().map(|r| r.seq).collect::<Vec<_>>();
                assert_eq!(seqs(&there.1), seqs(events), "{what} {how2}: {name}");
            }
            assert_eq!(one.1, two.1, "{what} {how2}: state");
            for name in ["a", "b", "c"] {
                let topic = rig.topic(name);
                let last = rig.log.last_seq(topic);
                assert_eq!(rig.put_events(&[event(topic, b"new")])[0].seq, last + 1, "{what}");
            }
            let three = content(&rig);
            let disk = end(rig, random.below(3));
            let rig = Rig::open(&disk, options.clone()).unwrap_or_else(|e| panic!("{what} third: {e}"));
            let four = content(&rig);
            for (name, (last, events)) in &three.0 {
                assert_eq!(four.0[name].0, *last, "{what}: third last seq of {name}");
                assert_eq!(four.0[name].1.len(), events.len(), "{what}: third {name}");
            }
            assert_eq!(three.1, four.1.clone(), "{what}: third state");
        }));
        if done.is_err() { println!("seed {seed} failed"); failed += 1; if failed > 6 { break } }
    }
    assert_eq!(failed, 0);
}

/// Real threads: publishers, live and catch-up readers, a cleaner; no event above the floor is ever missing.
#[test]
fn review_threads() {
    let seconds = setting("SECONDS", 30);
    let folder = std::env::temp_dir().join(format!("review-threads-{}", std::process::id()));
    let options = Options { segment_bytes: 32 * 1024, reserve_bytes: 8192, batch_bytes: 4096, tail_bytes: 6000, checkpoint_bytes: 16 * 1024, index_cache_bytes: 0, ..Options::default() };
    let log = Log::open(&folder, options).unwrap();
    let topics: Vec<TopicId> = (0..3).map(|n| log.ensure_topic(&format!("t{n}")).unwrap()).collect();
    let floors: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let errors: Mutex<Vec<String>> = Mutex::default();
    struct F<'a>(&'a [TopicId], &'a [AtomicU64]);
    impl Liveness for F<'_> {
        fn is_live(&self, r: &RecordInfo<'_>) -> bool {
            let at = self.0.iter().position(|t| *t == r.topic).unwrap();
            r.seq > self.1[at].load(Ordering::SeqCst)
        }
    }
    std::thread::scope(|scope| {
        for p in 0..2u64 {
            let (log, topics, stop, errors) = (&log, &topics, &stop, &errors);
            scope.spawn(move || {
                let mut random = Random::new(p + 77);
                let mut outcomes = Outcomes::default();
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let topic = topics[random.below(3) as usize];
                    let body = vec![b'x'; random.below(400) as usize];
                    let id = random.one_in(2).then(|| EventId::from_u128(u128::from(p + 1) << 64 | u128::from(n)));
                    let e = NewEvent { id, ..event(topic, &body) };
                    let append = Append { events: &[e], ..Append::default() };
                    let ticket = log.append(&append, &mut outcomes).unwrap();
                    let seq = outcomes[0].seq;
                    if outcomes[0].duplicate { errors.lock().push("new is duplicate".into()); }
                    if id.is_some() && random.one_in(3) {
                        log.append(&append, &mut outcomes).unwrap();
                        if !outcomes[0].duplicate || outcomes[0].seq != seq { errors.lock().push(format!("dup {:?} of {seq}", outcomes[0])); }
                    }
                    if random.one_in(4) { log.wait(ticket).unwrap(); }
                    if random.one_in(50) { std::thread::sleep(Duration::from_millis(2)); }
                }
            });
        }
        for r in 0..2usize {
            let (log, topics, floors, stop, errors) = (&log, &topics, &floors, &stop, &errors);
            scope.spawn(move || {
                let mut random = Random::new(r as u64 + 7);
                let mut next = [1u64; 3];
                let mut chunk = Chunk::default();
                while !stop.load(Ordering::Relaxed) {
                    let at = random.below(3) as usize;
                    if r == 1 && random.one_in(2000) { next[at] = 1; }
                    let from = next[at];
                    let last = log.last_seq(topics[at]);
                    log.read(topics[at], from, ReadLimit { events: random.between(0, 20) as usize, bytes: random.below(5000) as usize }, &mut chunk).unwrap();
                    let floor = floors[at].load(Ordering::SeqCst);
                    if chunk.next_seq() == from && last >= from { errors.lock().push(format!("no progress at {from} of {last}")); }
                    let mut expect = from;
                    let mut missing = chunk.missing().iter().peekable();
                    for e in chunk.events() {
                        while let Some(m) = missing.next_if(|m| m.first_seq == expect) {
                            if m.last_seq > floor || m.reason != MissingReason::Cleaned { errors.lock().push(format!("missing {m:?} floor {floor}")); }
                            expect = m.last_seq + 1;
                        }
                        if e.seq != expect { errors.lock().push(format!("seq {} instead of {expect}", e.seq)); }
                        expect = e.seq + 1;
                    }
                    for m in missing { if m.last_seq > floor { errors.lock().push(format!("missing {m:?} floor {floor}")); } expect = m.last_seq + 1; }
                    if expect != chunk.next_seq() { errors.lock().push(format!("next {} instead of {expect}", chunk.next_seq())); }
                    next[at] = chunk.next_seq();
                }
            });
        }
        let (log2, topics2, floors2, stop2) = (&log, &topics, &floors, &stop);
        scope.spawn(move || {
            while !stop2.load(Ordering::Relaxed) {
                for at in 0..3 { let last = log2.last_seq(topics2[at]); floors2[at].store(last, Ordering::SeqCst); }
                log2.clean(&F(topics2, floors2)).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(seconds) && errors.lock().is_empty() { std::thread::sleep(Duration::from_millis(50)); }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = log.stats();
    log.close().unwrap();
    let report = verify(&folder, |_| {}).unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    println!("{stats:?} {:?}", errors.lock().iter().take(5).collect::<Vec<_>>());
    assert!(report.faults.is_empty());
    assert!(errors.lock().is_empty());
}

/// Close while others append: nobody hangs, and what was given a durable ticket is there.
#[test]
fn review_close_races() {
    for round in 0..setting("ROUNDS", 400) {
        let disk = Disk::new(round);
        let options = Options { threads: true, ..small_options() };
        let log = Log::open_storage(Arc::new(disk.clone()), options.clone(), Box::new(NoState)).unwrap();
        let topic = log.ensure_topic("t").unwrap();
        let taken = AtomicU64::new(0);
        let finished = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (log, taken) = (log.clone(), &taken);
                scope.spawn(move || {
                    let mut outcomes = Outcomes::default();
                    loop {
                        let append = Append { events: &[event(topic, &[b'x'; 700])], ..Append::default() };
                        match log.append(&append, &mut outcomes) {
                            Ok(ticket) => { log.wait(ticket).unwrap(); taken.fetch_max(outcomes[0].seq, Ordering::SeqCst); }
                            Err(_) => return,
                        }
                    }
                });
            }
            let finished = &finished;
            scope.spawn(move || {
                let started = Instant::now();
                while !finished.load(Ordering::SeqCst) {
                    if started.elapsed() > Duration::from_secs(20) { println!("HANG in round {round}"); std::process::abort(); }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            std::thread::sleep(Duration::from_micros(300 * (round % 20)));
            log.close().unwrap();
            while taken.load(Ordering::SeqCst) == u64::MAX {}
            finished.store(true, Ordering::SeqCst);
        });
        let log = Log::open_storage(Arc::new(disk), Options { threads: false, ..options }, Box::new(NoState)).unwrap();
        assert!(log.last_seq(topic) >= taken.load(Ordering::SeqCst));
    }
}

/// The last handle goes in a callback.
#[test]
fn review_drop_in_callback() {
    struct Drops(Arc<Mutex<Option<Log>>>);
    impl Observer for Drops {
        fn committed(&self, c: &Committed) { if c.events > 0 { drop(self.0.lock().take()); } }
    }
    let slot: Arc<Mutex<Option<Log>>> = Arc::default();
    let disk = Disk::new(1);
    let options = Options { threads: true, observer: Arc::new(Drops(Arc::clone(&slot))), ..small_options() };
    let log = Log::open_storage(Arc::new(disk.clone()), options, Box::new(NoState)).unwrap();
    let topic = log.ensure_topic("t").unwrap();
    *slot.lock() = Some(log.clone());
    log.append(&Append { events: &[event(topic, b"x")], ..Append::default() }, &mut Outcomes::default()).unwrap();
    drop(log);
    std::thread::sleep(Duration::from_secs(2));
    println!("slot free: {}", slot.try_lock().is_some());
    let again = Log::open_storage(Arc::new(disk), small_options(), Box::new(NoState));
    assert!(again.is_ok(), "{:?}", again.err());
}
