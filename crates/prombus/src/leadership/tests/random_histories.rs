//! Random histories of several processes that share one lease record, with delays, lost requests, lost responses, requests
//! that arrive long after their sender has given up, pauses, kills, stops, and clocks that run at different speeds. Checks
//! that at every instant at most one process has an open leasing gate (that is, may lease events to members), and that no term
//! has two leaders.
//!
//! `PROMBUS_SEED` is the seed of the first history, `PROMBUS_HISTORIES` the number of histories.

use crate::engine::{LeaseError, LeaseRecord};
use crate::leadership::{Candidate, LeaseMachine, LeasePosition, LeaseStep, LeaseTiming};
use std::collections::BTreeMap;

/// After this time without a response a process gives up on a request.
const CALL_TIMEOUT_MS: u64 = 2_000;
/// The time with faults at the start of a history.
const FAULTY_MS: u64 = 180_000;
/// The time without faults at the end of a history. It is long enough for a takeover, so one process must lead at its end.
const CALM_MS: u64 = 30_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn one_in(&mut self, chance: u64) -> bool {
        self.next() % chance == 0
    }
}

struct Process {
    id: String,
    machine: LeaseMachine,
    /// The offset of the process's steady clock.
    clock_start_ms: u64,
    /// The speed of the process's steady clock, in thousandths of the normal speed.
    clock_speed: u64,
    /// The number of the call that the process waits for.
    call: Option<u64>,
    /// When the process runs next.
    wakes_at: u64,
    /// The response that the process gets when it runs next.
    answer: Option<Answer>,
    /// The process is paused until this time.
    paused_until: u64,
}

enum Answer {
    Read(Result<Option<LeaseRecord>, LeaseError>),
    Set(Result<bool, LeaseError>),
}

/// A request on its way to the store.
struct Request {
    arrives_at: u64,
    call: u64,
    process: usize,
    step: LeaseStep,
    /// How long the response travels; `None` if it is lost.
    answer_takes_ms: Option<u64>,
}

struct History {
    random: Random,
    now: u64,
    /// The number of calls so far.
    calls: u64,
    /// The number of processes that were ever started.
    made: u64,
    processes: Vec<Process>,
    requests: Vec<Request>,
    stored: Option<LeaseRecord>,
    /// The leader of each term.
    terms: BTreeMap<u64, String>,
    faults: u64,
}

impl Process {
    fn new(number: u64, random: &mut Random, now: u64) -> Self {
        let id = format!("process {number}");
        let candidate =
            Candidate { leader_id: id.clone(), address: format!("host-{number}:7070"), cert_hash: None };
        let mut secrets = 0u8;
        let make_secret = move || {
            secrets = secrets.wrapping_add(1);
            [secrets; 32]
        };
        Self {
            id,
            machine: LeaseMachine::new(LeaseTiming::default(), candidate, make_secret),
            clock_start_ms: random.between(0, 1_000_000_000),
            clock_speed: random.between(960, 1_040),
            call: None,
            wakes_at: now,
            answer: None,
            paused_until: now,
        }
    }

    fn local_ms(&self, now: u64) -> u64 {
        self.clock_start_ms + now * self.clock_speed / 1_000
    }

    /// Converts a time of the process's clock to the time of the history.
    fn global_ms(&self, local_ms: u64, now: u64) -> u64 {
        if local_ms == u64::MAX {
            return u64::MAX;
        }
        let since_start = local_ms.saturating_sub(self.clock_start_ms);
        (since_start * 1_000).div_ceil(self.clock_speed).max(now)
    }

    fn may_lease(&self, now: u64) -> bool {
        self.machine.gate_deadline().is_some_and(|deadline| self.local_ms(now) < deadline)
    }

    fn acts_at(&self) -> u64 {
        self.wakes_at.max(self.paused_until)
    }
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5851_f42d_4c95_7f2d);
        let count = random.between(2, 4);
        let processes = (0..count).map(|number| Process::new(number, &mut random, 0)).collect();
        Self {
            random,
            now: 0,
            calls: 0,
            made: count,
            processes,
            requests: Vec::new(),
            stored: None,
            terms: BTreeMap::new(),
            faults: 0,
        }
    }

    fn is_calm(&self) -> bool {
        self.now >= FAULTY_MS
    }

    fn run(&mut self) {
        while self.now < FAULTY_MS + CALM_MS {
            let request = self.requests.iter().map(|it| it.arrives_at).min().unwrap_or(u64::MAX);
            let process = self.processes.iter().map(Process::acts_at).min().unwrap_or(u64::MAX);
            self.now = request.min(process);
            match self.requests.iter().position(|it| it.arrives_at == self.now) {
                Some(at) => self.apply_request(at),
                None => self.act(),
            }
            self.check_gates();
        }
        let leading: Vec<_> = self.processes.iter().filter(|it| it.may_lease(self.now)).collect();
        assert_eq!(leading.len(), 1, "after {CALM_MS} ms without faults one process leads");
    }

    fn check_gates(&self) {
        let open: Vec<_> =
            self.processes.iter().filter(|it| it.may_lease(self.now)).map(|it| &it.id).collect();
        assert!(open.len() <= 1, "at {} {open:?} may lease events", self.now);
    }

    /// Makes the store handle a request that has arrived.
    fn apply_request(&mut self, at: usize) {
        let Request { call, process, step, answer_takes_ms, .. } = self.requests.swap_remove(at);
        let answer = match step {
            LeaseStep::Read => Answer::Read(Ok(self.stored.clone())),
            LeaseStep::CompareAndSet { expected, record } => {
                Answer::Set(Ok(self.compare_and_set(expected, record)))
            }
            other => panic!("{other:?} is not a request"),
        };
        let process = &mut self.processes[process];
        // The sender may have given up on the request, or have been killed.
        if process.call == Some(call)
            && let Some(answer_at) = answer_takes_ms.map(|takes_ms| self.now + takes_ms)
            && answer_at < process.wakes_at
        {
            process.wakes_at = answer_at;
            process.answer = Some(answer);
        }
    }

    fn compare_and_set(&mut self, expected: Option<u64>, record: LeaseRecord) -> bool {
        let stored = self.stored.as_ref();
        if stored.map(|it| it.revision) != expected {
            return false;
        }
        assert!(record.revision > stored.map_or(0, |it| it.revision), "revisions rise");
        assert!(record.term >= stored.map_or(0, |it| it.term), "terms never decrease");
        if !record.is_released() {
            let leader = self.terms.entry(record.term).or_insert_with(|| record.leader_id.clone());
            assert_eq!(*leader, record.leader_id, "two processes lead in term {}", record.term);
        }
        self.stored = Some(record);
        true
    }

    /// Runs the process that is due.
    fn act(&mut self) {
        let Some(at) = self.processes.iter().position(|it| it.acts_at() == self.now) else { return };
        if !self.is_calm() && self.random.one_in(40) {
            return self.disturb(at);
        }
        let (now, process) = (self.now, &mut self.processes[at]);
        let local = process.local_ms(now);
        if now >= FAULTY_MS {
            process.machine.set_standby(false);
        }
        if process.call.take().is_some() {
            match process.answer.take() {
                Some(Answer::Read(read)) => process.machine.was_read(read, local),
                Some(Answer::Set(set)) => process.machine.was_set(set, local),
                None => {}
            }
        }
        match process.machine.next(local) {
            LeaseStep::WaitUntil(until) => process.wakes_at = process.global_ms(until, now).max(now + 1),
            LeaseStep::Stopped => self.replace(at),
            step => self.send(at, step),
        }
    }

    fn send(&mut self, at: usize, step: LeaseStep) {
        self.calls += 1;
        let is_calm = self.is_calm();
        let random = &mut self.random;
        let mut delay = || match random.between(0, if is_calm { 8 } else { 11 }) {
            0..=6 => random.between(0, 20),
            7..=8 => random.between(0, 300),
            9..=10 => random.between(0, 4_000),
            _ => random.between(0, 20_000),
        };
        let (request_takes_ms, answer_takes_ms) = (delay(), delay());
        let (is_lost, is_answer_lost) = (!is_calm && random.one_in(15), !is_calm && random.one_in(15));
        self.faults += u64::from(is_lost) + u64::from(is_answer_lost);
        let process = &mut self.processes[at];
        process.call = Some(self.calls);
        process.wakes_at = self.now + CALL_TIMEOUT_MS;
        let nothing = LeaseError("no response".to_owned());
        process.answer = Some(match step {
            LeaseStep::Read => Answer::Read(Err(nothing)),
            _ => Answer::Set(Err(nothing)),
        });
        if !is_lost {
            self.requests.push(Request {
                arrives_at: self.now + request_takes_ms,
                call: self.calls,
                process: at,
                step,
                answer_takes_ms: (!is_answer_lost).then_some(answer_takes_ms),
            });
        }
    }

    fn disturb(&mut self, at: usize) {
        let now = self.now;
        let newest_term = self.terms.keys().last().copied().unwrap_or(0);
        let process = &mut self.processes[at];
        let local = process.local_ms(now);
        match self.random.between(0, 20) {
            0 => self.replace(at),
            1..=3 => process.paused_until = now + self.random.between(20, 20_000),
            4 => process.machine.stop(local),
            5 => process.machine.give_up(self.random.between(0, 3_000), local),
            6 => process.machine.set_standby(self.random.one_in(3)),
            _ => {
                // Simulates that the engine of a process that holds an old term finds a newer term in the store.
                if let LeasePosition::Holding { record, .. } = process.machine.position()
                    && record.term < newest_term
                {
                    process.machine.deposed(local);
                }
            }
        }
    }

    /// Kills a process. Another one starts in its place.
    fn replace(&mut self, at: usize) {
        self.processes[at] = Process::new(self.made, &mut self.random, self.now + 1);
        self.made += 1;
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn at_most_one_process_may_lease_events_at_any_instant_and_terms_never_repeat() {
    let (first_seed, histories) = (setting("PROMBUS_SEED", 1), setting("PROMBUS_HISTORIES", 300));
    let (mut terms, mut faults) = (0, 0);
    for number in 0..histories {
        let seed = first_seed.wrapping_add(number);
        println!("PROMBUS_SEED={seed} PROMBUS_HISTORIES=1");
        let mut history = History::new(seed);
        history.run();
        terms += history.terms.len();
        faults += history.faults;
    }
    assert!(terms as u64 > 3 * histories && faults > 10 * histories, "{terms} terms, {faults} faults");
}
