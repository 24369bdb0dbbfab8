//! Loads on the log without a server.

use crate::{BATCH, Failure, SMALL_TAIL_BYTES, WARM_UP_BATCHES, count_instructions_of};
use prombus_log::{Append, Chunk, Log, NewEvent, Options, Outcomes, ReadLimit, Step, TopicId};
use std::hint::black_box;
use std::path::Path;

/// Approximate size of an event's body in the other loads.
const BODY_BYTES: usize = 330;
const READ_BYTES: usize = 1 << 20;

/// Appends batches, each with its commit.
pub fn append(folder: &Path, messages: usize) -> Result<usize, Failure> {
    let log = open(folder)?;
    let topic = log.ensure_topic("orders")?;
    fill(&log, topic, WARM_UP_BATCHES, &mut |work| work())?;
    let rounds = messages.div_ceil(BATCH);
    fill(&log, topic, rounds, &mut count_instructions_of)?;
    Ok(rounds * BATCH)
}

/// A reader that catches up: reads events from files, and verifies every checksum.
pub fn read(folder: &Path, messages: usize) -> Result<usize, Failure> {
    let log = open(folder)?;
    let topic = log.ensure_topic("orders")?;
    let rounds = messages.div_ceil(BATCH);
    fill(&log, topic, rounds, &mut |work| work())?;
    log.close()?;
    // After reopening, no event is in memory.
    let log = open(folder)?;
    let topic = log.ensure_topic("orders")?;
    let limit = ReadLimit { events: usize::MAX, bytes: READ_BYTES };
    let mut chunk = Chunk::default();
    let (mut next_seq, mut count, mut result) = (1, 0, Ok(()));
    while count < rounds * BATCH && result.is_ok() {
        count_instructions_of(&mut || {
            result = log.read(topic, next_seq, limit, &mut chunk);
            for at in 0..chunk.len() {
                black_box(chunk.event(at).body);
            }
        });
        count += chunk.len();
        next_seq = chunk.next_seq();
    }
    result?;
    Ok(count)
}

fn open(folder: &Path) -> Result<Log, Failure> {
    let options = Options::default();
    // Nothing prepares segments during a load, so all of it goes into the first one.
    let first_segment_bytes = options.segment_bytes;
    let options = Options { threads: false, tail_bytes: SMALL_TAIL_BYTES, first_segment_bytes, ..options };
    let log = Log::open(folder, options)?;
    while log.step_housekeeping() == Step::Worked {}
    Ok(log)
}

fn fill(
    log: &Log,
    topic: TopicId,
    rounds: usize,
    run: &mut dyn FnMut(&mut dyn FnMut()),
) -> Result<(), Failure> {
    let body = vec![b'x'; BODY_BYTES];
    let event = NewEvent { topic, id: None, ts: 1_700_000_000_000, key: None, body: &body, tombstone: false };
    let events = vec![event; BATCH];
    let append = Append { events: &events, ..Append::default() };
    let mut outcomes = Outcomes::default();
    for _ in 0..rounds {
        let mut result = Ok(Step::Idle);
        run(&mut || result = log.try_append(&append, &mut outcomes).map(|_| log.step_commit()));
        assert_eq!(result?, Step::Worked, "the append is committed");
    }
    Ok(())
}
