//! Measures reading topics from the first event to the last: from files, with all checksums checked, and from the tail in
//! memory.

use crate::arguments::Arguments;
use crate::ids::IdKind;
use crate::publisher::{self, BODY_BYTES, Load, Publisher};
use crate::scratch::Scratch;
use crate::table::grouped;
use crate::{ALLOCATOR, Failure};
use prombus_log::{Chunk, Log, Options, ReadLimit, TopicId};
use rustix::fs::Advice;
use stats_alloc::Region;
use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of events in the tail. They take 41 MB of its 64 MiB.
const TAIL_EVENTS: u64 = 100_000;

/// Where the events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Files in the page cache. The log was reopened, so its tail is empty.
    Warm,
    /// Files outside of the page cache: before each pass they are synced and dropped from it with
    /// `posix_fadvise(DONTNEED)`. Caches of a hypervisor or of the disk are not cleared.
    Cold,
    /// The committed batches in memory.
    Tail,
}

/// A row of the table. Topics are read one after another.
#[derive(Clone, Copy, Debug)]
pub struct ReadRow {
    pub source: Source,
    pub topics: usize,
}

/// The result of one round of a row.
#[derive(Clone, Copy, Debug)]
pub struct ReadRound {
    pub events: u64,
    pub elapsed: Duration,
    pub allocations: u64,
}

/// All rows.
pub fn rows() -> Vec<ReadRow> {
    let mut rows = Vec::new();
    for topics in [1, 100] {
        for source in [Source::Warm, Source::Cold, Source::Tail] {
            rows.push(ReadRow { source, topics });
        }
    }
    rows
}

impl ReadRow {
    pub fn name(&self) -> String {
        let source = match self.source {
            Source::Warm => "scan files, warm",
            Source::Cold => "scan files, cold",
            Source::Tail => "read the tail",
        };
        match self.topics {
            1 => format!("{source}, 1 topic"),
            topics => format!("{source}, each of {topics} topics"),
        }
    }
}

/// Fills a log, and reads it for the duration of a round.
pub fn measure(row: &ReadRow, arguments: &Arguments, scratch: &Scratch) -> Result<ReadRound, Failure> {
    scratch.settle()?;
    let folder = scratch.fresh();
    let log = Log::open(folder.path(), Options::default())?;
    let topics = publisher::make_topics(&log, row.topics)?;
    let events = if row.source == Source::Tail { TAIL_EVENTS } else { arguments.scanned_events };
    let body = publisher::body();
    Publisher::new(&log, &topics, &body, IdKind::Server)
        .run(Load::new(1_024), |_, appended| appended >= events)?;
    let log = match row.source {
        Source::Tail => log,
        Source::Warm | Source::Cold => {
            log.close()?;
            Log::open(folder.path(), Options::default())?
        }
    };

    let mut chunk = Chunk::default();
    // A warm-up: opens files, reads index tables, and grows the chunk.
    read_all(&log, &topics, &mut chunk)?;
    let mut round = ReadRound { events: 0, elapsed: Duration::ZERO, allocations: 0 };
    while round.elapsed < arguments.round {
        if row.source == Source::Cold {
            drop_from_page_cache(folder.path())?;
        }
        let region = Region::new(ALLOCATOR);
        let started = Instant::now();
        round.events += read_all(&log, &topics, &mut chunk)?;
        round.elapsed += started.elapsed();
        let allocated = region.change();
        round.allocations += (allocated.allocations + allocated.reallocations) as u64;
    }
    log.close()?;
    Ok(round)
}

/// Reads every event of the topics, and accesses the fields that a consumer would. Returns the number of events.
fn read_all(log: &Log, topics: &[TopicId], chunk: &mut Chunk) -> Result<u64, Failure> {
    let mut events = 0;
    for &topic in topics {
        let last = log.last_seq(topic);
        let mut seq = 1;
        while seq <= last {
            log.read(topic, seq, ReadLimit::default(), chunk)?;
            for event in chunk.events() {
                black_box((event.seq, event.id, event.body[BODY_BYTES - 1]));
                events += 1;
            }
            if !chunk.missing().is_empty() || chunk.next_seq() == seq {
                return Err(format!("topic {} cannot be read at seq {seq}", topic.number()).into());
            }
            seq = chunk.next_seq();
        }
    }
    Ok(events)
}

fn drop_from_page_cache(folder: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(folder)? {
        let file = File::open(entry?.path())?;
        // Only clean pages are dropped.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

impl ReadRound {
    pub fn events_per_second(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64()
    }

    pub fn allocations_per_event(&self) -> f64 {
        self.allocations as f64 / self.events as f64
    }
}

impl fmt::Display for ReadRound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/s", grouped(self.events_per_second()))
    }
}
