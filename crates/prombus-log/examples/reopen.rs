//! Measures the time and memory needed to open a log of 10 million events, after a clean close and after `kill -9`.
//!
//! ```text
//! cargo run --release -p prombus-log --example reopen
//! cargo run --release -p prombus-log --example reopen -- --events 1000000 --dir /mnt/disk
//! ```
//!
//! Each step runs in its own process (this program in another role), so that its peak memory can be measured separately:
//!
//! 1. a writer fills the log and closes it;
//! 2. an opener opens it, with the files in the page cache and without;
//! 3. a writer appends under full load until it is killed, and then an opener opens the log. This is repeated several
//!    times, because the result depends on the moment of the kill. The events that the writer had reported as durable must
//!    exist.
//!
//! The program fails above these limits: 1 s after a clean close, 2 s after `kill -9`, 150 MB of memory. The results with
//! cold files are shown too, but have no time limit, because they depend on the disk.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table and the progress are what it is for"
)]

use prombus_log::{Append, Chunk, EventId, Log, NewEvent, Options, Outcomes, ReadLimit, Ticket, TopicId};
use rustix::fs::Advice;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Failure = Box<dyn std::error::Error>;

const CLEAN_LIMIT: Duration = Duration::from_secs(1);
const KILLED_LIMIT: Duration = Duration::from_secs(2);
const MEMORY_LIMIT_BYTES: u64 = 150_000_000;

const TOPICS: usize = 10;
const KEYS: u64 = 10_000;
const BODY_BYTES: usize = 350;
/// The maximum size of an event on disk.
const EVENT_BYTES: u64 = 480;
/// The number of events in one append. `IN_FLIGHT` is the number of events that may wait for their fdatasync.
const PIECE: usize = 64;
const IN_FLIGHT: usize = 1_024;
/// How long the load lasts before each kill. If checkpoints fall behind, this shows only after a while.
const LOADS: [Duration; 4] =
    [Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(10), Duration::from_secs(3)];
/// A writer under load reports the number of durable events at this interval.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// A writer that is not killed ends after this time.
const LOAD_TIME_MAX: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["child-fill", folder, events] => fill(Path::new(folder), events),
        ["child-load", folder] => load(Path::new(folder)),
        ["child-open", folder] => open(Path::new(folder)),
        _ => Settings::parse(&arguments).and_then(|settings| run(&settings)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

struct Settings {
    events: u64,
    folder: PathBuf,
}

impl Settings {
    fn parse(arguments: &[&str]) -> Result<Self, Failure> {
        let mut events = 10_000_000;
        let mut parent = None;
        for pair in arguments.chunks(2) {
            match pair {
                ["--events", count] => events = count.parse().map_err(|_| format!("--events {count}?"))?,
                ["--dir", folder] => parent = Some(PathBuf::from(folder)),
                _ => return Err("usage: reopen [--events N] [--dir DIR]".into()),
            }
        }
        let parent = parent.map_or_else(target_folder, Ok)?;
        Ok(Self { events, folder: parent.join(format!("reopen-{}", std::process::id())) })
    }
}

/// `target/tmp`. It is on a disk, unlike the system's folder for temporary files, which may be in memory.
fn target_folder() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).ok_or("the program is not in a target folder; use --dir")?;
    Ok(target.join("tmp"))
}

/// A folder that is removed with its content when this is dropped.
struct Scratch<'a>(&'a Path);

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(self.0) {
            eprintln!("could not remove {}: {error}", self.0.display());
        }
    }
}

fn run(settings: &Settings) -> Result<(), Failure> {
    let folder = &settings.folder;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let _scratch = Scratch(folder);
    // The load before the kills adds to the events.
    let needed = settings.events * EVENT_BYTES + (16 << 30);
    let stats = rustix::fs::statvfs(folder)?;
    if stats.f_bavail * stats.f_frsize < needed {
        return Err(format!("{} has less than {} MB free", folder.display(), needed >> 20).into());
    }

    eprintln!("filling {} with {} events ...", folder.display(), settings.events);
    let log = folder.join("log");
    let status = child("child-fill", &log).arg(settings.events.to_string()).status()?;
    if !status.success() {
        return Err(format!("the writer failed: {status}").into());
    }
    let mut openings = Vec::new();
    for is_cold in [false, true] {
        let opened = open_in_child(&log, is_cold, After::Close)?;
        opened.expect_events(settings.events)?;
        openings.push(opened);
    }
    let mut events = settings.events;
    for (at, load) in LOADS.into_iter().enumerate() {
        eprintln!("kill -9 after {} s of load ...", load.as_secs());
        events += load_and_kill(&log, load)?;
        // The last open reads from the disk, not from the page cache.
        let is_cold = at + 1 == LOADS.len();
        let opened = open_in_child(&log, is_cold, After::Kill)?;
        opened.expect_events(events)?;
        events = opened.events;
        openings.push(opened);
    }
    report(&openings)
}

/// Starts this program in another role.
fn child(role: &str, log: &Path) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let mut command = Command::new(program);
    command.arg(role).arg(log);
    command
}

/// How the log ended.
#[derive(Clone, Copy)]
enum After {
    Close,
    Kill,
}

/// The result of an opener.
struct Opening {
    after: After,
    is_cold: bool,
    elapsed: Duration,
    /// Peak memory when the log was open. `read_memory_bytes` is measured after the last event of each topic was read.
    open_memory_bytes: u64,
    read_memory_bytes: u64,
    events: u64,
}

impl Opening {
    fn expect_events(&self, durable: u64) -> Result<(), Failure> {
        if self.events < durable {
            return Err(format!("{durable} events were durable, {} were found", self.events).into());
        }
        Ok(())
    }

    fn limit(&self) -> Option<Duration> {
        let limit = match self.after {
            After::Close => CLEAN_LIMIT,
            After::Kill => KILLED_LIMIT,
        };
        (!self.is_cold).then_some(limit)
    }

    fn is_within_limits(&self) -> bool {
        self.limit().is_none_or(|limit| self.elapsed < limit) && self.read_memory_bytes < MEMORY_LIMIT_BYTES
    }
}

fn open_in_child(log: &Path, is_cold: bool, after: After) -> Result<Opening, Failure> {
    if is_cold {
        drop_from_page_cache(log)?;
    }
    let output = child("child-open", log).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("the opener failed: {}", output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [micros, open_memory_bytes, read_memory_bytes, events] = numbers[..] else {
        return Err(format!("the opener said: {text}").into());
    };
    let elapsed = Duration::from_micros(micros);
    Ok(Opening { after, is_cold, elapsed, open_memory_bytes, read_memory_bytes, events })
}

fn drop_from_page_cache(folder: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(folder)? {
        let file = File::open(entry?.path())?;
        // Only clean pages are dropped.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Starts a writer, kills it under load, and returns how many events it had reported as durable.
fn load_and_kill(log: &Path, length: Duration) -> Result<u64, Failure> {
    let mut writer = child("child-load", log).stdout(Stdio::piped()).spawn()?;
    let reported = watch(&mut writer, length);
    // SIGKILL.
    let killed = writer.kill();
    writer.wait()?;
    killed?;
    let (mut durable, mut lines) = reported?;
    // Reports from before the kill count too.
    while let Some(Ok(line)) = lines.next() {
        durable = line.parse().unwrap_or(durable);
    }
    if durable == 0 {
        return Err("the writer had nothing durable when it was killed".into());
    }
    Ok(durable)
}

type Lines = std::io::Lines<BufReader<ChildStdout>>;

/// Reads the reports of a writer for `length`, from the first report on.
fn watch(writer: &mut Child, length: Duration) -> Result<(u64, Lines), Failure> {
    let mut lines = BufReader::new(writer.stdout.take().ok_or("the writer has no output")?).lines();
    let mut durable = 0;
    let mut deadline = None;
    loop {
        let line = lines.next().ok_or("the writer ended before it was killed")??;
        durable = line.parse().unwrap_or(durable);
        if Instant::now() > *deadline.get_or_insert_with(|| Instant::now() + length) {
            return Ok((durable, lines));
        }
    }
}

fn report(openings: &[Opening]) -> Result<(), Failure> {
    println!(
        "{:<11}  {:<5}  {:>10}  {:>7}  {:>8}  {:>12}  {:>12}  {:>8}",
        "after", "files", "events", "open ms", "limit ms", "peak MB open", "peak MB read", "limit MB"
    );
    for opening in openings {
        println!(
            "{:<11}  {:<5}  {:>10}  {:>7.1}  {:>8}  {:>12.1}  {:>12.1}  {:>8}{}",
            match opening.after {
                After::Close => "clean close",
                After::Kill => "kill -9",
            },
            if opening.is_cold { "cold" } else { "warm" },
            opening.events,
            opening.elapsed.as_secs_f64() * 1e3,
            opening.limit().map_or_else(|| "-".to_owned(), |limit| limit.as_millis().to_string()),
            opening.open_memory_bytes as f64 / 1e6,
            opening.read_memory_bytes as f64 / 1e6,
            MEMORY_LIMIT_BYTES / 1_000_000,
            if opening.is_within_limits() { "" } else { "  OVER THE LIMIT" }
        );
    }
    if openings.iter().all(Opening::is_within_limits) {
        return Ok(());
    }
    Err("opening took too long or too much memory".into())
}

/// The opener: opens the log, reads the last event of each topic, and reports.
fn open(folder: &Path) -> Result<(), Failure> {
    let started = Instant::now();
    let log = Log::open(folder, Options::default())?;
    let elapsed = started.elapsed();
    let open_memory_bytes = peak_memory_bytes()?;
    let mut events = 0;
    let mut chunk = Chunk::default();
    for topic in log.topics() {
        log.read(topic.id, topic.last_seq, ReadLimit::default(), &mut chunk)?;
        if chunk.events().last().map(|event| event.seq) != Some(topic.last_seq) {
            return Err(format!("the last event of {} cannot be read", topic.name).into());
        }
        events += topic.last_seq;
    }
    let read_memory_bytes = peak_memory_bytes()?;
    log.close()?;
    println!("{} {open_memory_bytes} {read_memory_bytes} {events}", elapsed.as_micros());
    Ok(())
}

/// The peak memory of this process, as counted by the kernel.
fn peak_memory_bytes() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmHWM in /proc/self/status")?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// The first writer: appends the events and closes the log.
fn fill(folder: &Path, events: &str) -> Result<(), Failure> {
    let events: u64 = events.parse()?;
    let log = Log::open(folder, Options::default())?;
    let mut writer = Writer::new(&log)?;
    while writer.appended < events {
        writer.append(PIECE.min((events - writer.appended) as usize))?;
    }
    writer.wait_for_all()?;
    log.close()?;
    Ok(())
}

/// The writer that is killed: appends as fast as it can and reports the number of durable events.
fn load(folder: &Path) -> Result<(), Failure> {
    let log = Log::open(folder, Options::default())?;
    let mut writer = Writer::new(&log)?;
    let mut output = std::io::stdout().lock();
    let started = Instant::now();
    let mut reported = started;
    while started.elapsed() < LOAD_TIME_MAX {
        writer.append(PIECE)?;
        if reported.elapsed() >= REPORT_INTERVAL {
            reported = Instant::now();
            writeln!(output, "{}", writer.durable)?;
            output.flush()?;
        }
    }
    Err("the writer was not killed".into())
}

/// Keeps a window of events that are not durable yet. Half of them have publishers' ids, and every fourth has a key.
struct Writer<'a> {
    log: &'a Log,
    topics: Vec<TopicId>,
    window: VecDeque<(Ticket, u64)>,
    appended: u64,
    durable: u64,
    random: u64,
    outcomes: Outcomes,
}

impl<'a> Writer<'a> {
    fn new(log: &'a Log) -> Result<Self, Failure> {
        let topics = (0..TOPICS).map(|number| log.ensure_topic(&format!("topic-{number}")));
        let topics = topics.collect::<Result<_, _>>()?;
        let random = now().as_nanos() as u64;
        let (window, outcomes) = (VecDeque::new(), Outcomes::default());
        Ok(Self { log, topics, window, appended: 0, durable: 0, random, outcomes })
    }

    /// Waits for room in the window, and appends this many events.
    fn append(&mut self, count: usize) -> Result<(), Failure> {
        while self.appended - self.durable + count as u64 > IN_FLIGHT as u64 {
            self.wait_for_oldest()?;
        }
        let ms = now().as_millis() as u64;
        let keys: Vec<String> = (0..count).map(|_| format!("key-{}", self.random() % KEYS)).collect();
        let mut events = Vec::with_capacity(count);
        for (at, key) in keys.iter().enumerate() {
            let number = self.appended as usize + at;
            events.push(NewEvent {
                topic: self.topics[number % TOPICS],
                id: (number / TOPICS).is_multiple_of(2).then(|| self.client_id(ms)),
                ts: ms as i64,
                key: number.is_multiple_of(4).then_some(key.as_bytes()),
                body: &[b'x'; BODY_BYTES],
                tombstone: false,
            });
        }
        let append = Append { events: &events, ..Append::default() };
        let ticket = self.log.append(&append, &mut self.outcomes)?;
        self.appended += count as u64;
        self.window.push_back((ticket, self.appended));
        while self.window.front().is_some_and(|(ticket, _)| self.log.is_durable(*ticket)) {
            self.wait_for_oldest()?;
        }
        Ok(())
    }

    fn wait_for_oldest(&mut self) -> Result<(), Failure> {
        if let Some((ticket, appended)) = self.window.pop_front() {
            self.log.wait(ticket)?;
            self.durable = appended;
        }
        Ok(())
    }

    fn wait_for_all(&mut self) -> Result<(), Failure> {
        while !self.window.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok(())
    }

    /// A UUIDv7.
    fn client_id(&mut self, ms: u64) -> EventId {
        let high = ms << 16 | 7 << 12 | self.random() >> 52;
        let low = 0b10 << 62 | self.random() >> 2;
        EventId::from_u128(u128::from(high) << 64 | u128::from(low))
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
