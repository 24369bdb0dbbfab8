//! Replaying batches behind a checkpoint, and telling corruption from a torn tail.
//!
//! Batch k+1 is written only after batch k was synced. So whatever stands behind a batch proves that the batch was durable:
//! if it does not check, it is corruption, and every record in it that still checks is taken. A last batch that does not check,
//! with nothing behind it, was never acknowledged: it is a torn tail.

use crate::checkpoint::{Checkpoint, Mark};
use crate::error::{Fault, FaultKind};
use crate::id::{EventId, KeyedHash};
use crate::index::Index;
use crate::record::{
    self, Commit, FLAG_CLIENT_ID, FLAG_DELETED, HEADER_BYTES, Header, Kind, STATE_RECORDS, TOPIC_RECORDS,
    digest_add,
};
use crate::scan::{Found, Scan};
use crate::segment::Segment;
use crate::state::State;
use crate::view::TopicView;
use std::io;
use std::sync::Arc;

/// What replaying gathers.
pub(crate) struct Replay {
    pub(crate) topics: Vec<Option<TopicView>>,
    pub(crate) last_own_id: EventId,
    pub(crate) last_commit_ms: i64,
    pub(crate) mark: Mark,
    pub(crate) state: Box<dyn State>,
    pub(crate) faults: Vec<Fault>,
    /// How many events were replayed.
    pub(crate) events: u64,
    hash: KeyedHash,
}

/// What is known of the end of a part that is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing: a last batch that does not check may never have been acknowledged.
    None,
    /// Something stands behind the segment, so all batches in it were synced.
    Later,
    /// All of it was synced, up to exactly where it ends: sealed, checkpointed, or closed cleanly.
    Exact,
}

/// How a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEnd {
    /// The end of the last batch that counts.
    pub(crate) end: u64,
    /// Where the remains of an unfinished batch end, if there are any.
    pub(crate) torn_to: Option<u64>,
}

struct SeenFrame {
    position: u64,
    end: u64,
    header_crc: u32,
    checks: bool,
}

/// A batch that does not check, until it is known whether anything stands behind it.
struct Suspect {
    start: u64,
    end: u64,
    commit: Commit,
}

impl Replay {
    pub(crate) fn new(checkpoint: &Checkpoint, state: Box<dyn State>, hash: KeyedHash) -> Self {
        let mut topics = vec![None; checkpoint.next_topic.max(1) as usize];
        for row in &checkpoint.topics {
            if topics.len() <= row.id as usize {
                topics.resize(row.id as usize + 1, None);
            }
            topics[row.id as usize] =
                Some(TopicView { name: row.name.as_str().into(), last_seq: row.last_seq, is_deleted: false });
        }
        Self {
            topics,
            last_own_id: checkpoint.last_own_id,
            last_commit_ms: checkpoint.last_commit_ms,
            mark: checkpoint.mark,
            state,
            faults: Vec::new(),
            events: 0,
            hash,
        }
    }

    /// Replays `from..to` of a segment into this and into `index`.
    pub(crate) fn segment(
        &mut self,
        segment: &Segment,
        from: u64,
        to: u64,
        proof: Proof,
        index: &mut Index,
    ) -> io::Result<SegmentEnd> {
        let file = Arc::clone(segment.file()?);
        let mut scan = Scan::new(&*file, segment.id.salt, from, to, true);
        let mut last_end = from;
        let mut seen: Vec<SeenFrame> = Vec::new();
        let mut suspect: Option<Suspect> = None;
        while let Some(found) = scan.next()? {
            let Found::Frame { position, header, body_checks } = found else { continue };
            if let Some(batch) = suspect.take() {
                // Something stands behind it, so it was durable once.
                self.take_suspect(segment, &batch, index)?;
                last_end = batch.end;
            }
            let commit = (header.kind == Kind::Commit && body_checks)
                .then(|| record::read_commit(&header, scan.frame()))
                .flatten()
                .filter(|commit| commit.batch > self.mark.batch);
            let end = scan.position();
            let start = commit.as_ref().and_then(|commit| end.checked_sub(commit.length));
            let (Some(commit), Some(start)) = (commit, start.filter(|&start| start >= last_end)) else {
                let crc = if body_checks { record::header_crc(scan.frame()) } else { 0 };
                seen.push(SeenFrame { position, end, header_crc: crc, checks: body_checks });
                continue;
            };
            let follows = start == last_end;
            if !follows {
                // A batch before this one lost its COMMIT.
                self.take_region(segment, last_end, start, None, index)?;
            }
            let chained =
                !follows || self.mark.batch + 1 == commit.batch && self.mark.chain == commit.previous;
            if chained && batch_checks(&seen, start, position, &commit) {
                self.take_region(segment, start, end, Some(&commit), index)?;
                self.advance(segment, end, &commit);
            } else {
                suspect = Some(Suspect { start, end, commit });
            }
            last_end = end;
            seen.clear();
        }
        let remains_end = seen.last().map(|frame| frame.end).or(suspect.as_ref().map(|batch| batch.end));
        if proof == Proof::None {
            let end = suspect.map_or(last_end, |batch| batch.start);
            return Ok(SegmentEnd { end, torn_to: remains_end });
        }
        if let Some(batch) = suspect {
            self.take_suspect(segment, &batch, index)?;
            last_end = batch.end;
        }
        let end = if proof == Proof::Exact { to } else { remains_end.unwrap_or(last_end) };
        if end > last_end {
            // The last batch lost its COMMIT.
            self.take_region(segment, last_end, end, None, index)?;
            if proof == Proof::Later {
                self.faults.push(Fault::new(segment.name(), end, FaultKind::Commit));
            }
            (self.mark.segment, self.mark.position) = (segment.id.number, end);
        }
        Ok(SegmentEnd { end, torn_to: None })
    }

    fn advance(&mut self, segment: &Segment, end: u64, commit: &Commit) {
        self.mark =
            Mark { segment: segment.id.number, position: end, batch: commit.batch, chain: commit.chain };
        self.last_commit_ms = self.last_commit_ms.max(commit.commit_ms);
    }

    fn take_suspect(&mut self, segment: &Segment, batch: &Suspect, index: &mut Index) -> io::Result<()> {
        self.take_region(segment, batch.start, batch.end, Some(&batch.commit), index)?;
        self.advance(segment, batch.end, &batch.commit);
        Ok(())
    }

    /// Takes every record of a durable region that checks, and names what does not.
    fn take_region(
        &mut self,
        segment: &Segment,
        from: u64,
        to: u64,
        commit: Option<&Commit>,
        index: &mut Index,
    ) -> io::Result<()> {
        let file = Arc::clone(segment.file()?);
        let mut scan = Scan::new(&*file, segment.id.salt, from, to, true);
        let mut damage: Vec<Damage> = Vec::new();
        let mut events: Vec<(u32, u64)> = Vec::new();
        while let Some(found) = scan.next()? {
            match found {
                Found::Gap { position, end } => damage.push(Damage { position, end, kind: FaultKind::Frame }),
                Found::Frame { position, header, body_checks: false } => {
                    let kind = fault_kind(header.kind);
                    damage.push(Damage { position, end: scan.position(), kind });
                    if header.kind == Kind::Event {
                        self.topic(header.topic).last_seq = self.topic(header.topic).last_seq.max(header.seq);
                    }
                    if commit.is_none() || header.kind != Kind::Event {
                        self.faults.push(self.named(segment, position, kind, &header));
                    }
                }
                Found::Frame { position, header, body_checks: true } => {
                    self.take_frame(&header, scan.frame());
                    if header.kind == Kind::Event {
                        index.add_event(&header, scan.frame(), position as u32, self.hash);
                        events.push((header.topic, header.seq));
                    }
                }
            }
        }
        match commit {
            _ if damage.is_empty() => {}
            Some(commit) => self.name_losses(segment, from, commit, &damage, &events, index),
            None => {
                for place in damage.iter().filter(|place| place.kind == FaultKind::Frame) {
                    self.faults.push(Fault::new(segment.name(), place.position, place.kind));
                }
            }
        }
        Ok(())
    }

    fn take_frame(&mut self, header: &Header, frame: &[u8]) {
        self.last_commit_ms = self.last_commit_ms.max(header.commit_ms);
        let body = &frame[HEADER_BYTES + header.key_length as usize..];
        match header.kind {
            Kind::Event => {
                self.events += 1;
                let topic = self.topic(header.topic);
                topic.last_seq = topic.last_seq.max(header.seq);
                if header.flags & FLAG_CLIENT_ID == 0 {
                    self.last_own_id = self.last_own_id.max(header.id);
                }
            }
            Kind::State => self.state.apply(header.topic, body),
            Kind::Topic => {
                let name = String::from_utf8_lossy(body);
                let topic = self.topic(header.topic);
                topic.name = name.as_ref().into();
                topic.is_deleted = header.flags & FLAG_DELETED != 0;
            }
            Kind::Commit => {}
        }
    }

    /// The topic with an internal id. One whose record was lost to damage gets a name that says so.
    fn topic(&mut self, id: u32) -> &mut TopicView {
        let at = id as usize;
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        self.topics[at].get_or_insert_with(|| TopicView {
            name: format!("recovered.topic-{id}").into(),
            last_seq: 0,
            is_deleted: false,
        })
    }

    fn named(&self, segment: &Segment, position: u64, kind: FaultKind, header: &Header) -> Fault {
        let mut fault = Fault::new(segment.name(), position, kind);
        if header.kind == Kind::Event {
            fault.topic = self.topic_name(header.topic);
            fault.seq = Some(header.seq);
        }
        fault
    }

    fn topic_name(&self, topic: u32) -> Option<String> {
        Some(self.topics.get(topic as usize)?.as_ref()?.name.to_string())
    }

    /// With the run table of the COMMIT every lost seq has a name, also when its header is gone.
    fn name_losses(
        &mut self,
        segment: &Segment,
        start: u64,
        commit: &Commit,
        damage: &[Damage],
        events: &[(u32, u64)],
        index: &mut Index,
    ) {
        let losses = losses(start, commit, damage, events);
        for loss in &losses {
            let mut fault = Fault::new(segment.name(), loss.position, loss.kind);
            if let Some((first, last)) = loss.seqs {
                let topic = self.topic(loss.topic);
                topic.last_seq = topic.last_seq.max(loss.run_last_seq);
                fault.topic = self.topic_name(loss.topic);
                fault.seq = Some(first);
                fault.last_seq = (last > first).then_some(last);
                index.cover_run(
                    loss.topic,
                    loss.run_first_seq,
                    loss.run_last_seq,
                    loss.run_start as u32,
                    loss.run_end as u32,
                );
            }
            self.faults.push(fault);
        }
    }
}

/// A damaged place inside a batch.
pub(crate) struct Damage {
    pub(crate) position: u64,
    pub(crate) end: u64,
    pub(crate) kind: FaultKind,
}

/// What a damaged place cost.
pub(crate) struct Loss {
    pub(crate) position: u64,
    pub(crate) kind: FaultKind,
    pub(crate) topic: u32,
    /// First and last lost seq, for events.
    pub(crate) seqs: Option<(u64, u64)>,
    pub(crate) run_first_seq: u64,
    pub(crate) run_last_seq: u64,
    pub(crate) run_start: u64,
    pub(crate) run_end: u64,
}

/// Says, by a COMMIT's run table, what each damaged place of its batch cost. `events` are the topic and seq of those that check.
pub(crate) fn losses(start: u64, commit: &Commit, damage: &[Damage], events: &[(u32, u64)]) -> Vec<Loss> {
    let mut losses = Vec::new();
    let mut run_start = start;
    for run in &commit.runs {
        let run_end = run_start + u64::from(run.length);
        let run_last_seq = run.first_seq + u64::from(run.count).saturating_sub(1);
        let mut lost: Vec<u64> = Vec::new();
        let is_events = run.topic != TOPIC_RECORDS && run.topic != STATE_RECORDS;
        if is_events {
            let there: std::collections::HashSet<u64> =
                events.iter().filter(|(topic, _)| *topic == run.topic).map(|&(_, seq)| seq).collect();
            lost = (run.first_seq..=run_last_seq).filter(|seq| !there.contains(seq)).collect();
        }
        let places: Vec<&Damage> =
            damage.iter().filter(|place| place.position < run_end && place.end > run_start).collect();
        for (at, place) in places.iter().enumerate() {
            // Losses and places are both in order; the last place has whatever is left over.
            let share = if at + 1 == places.len() { lost.len() } else { lost.len().min(1) };
            let seqs: Vec<u64> = lost.drain(..share).collect();
            let kind = match run.topic {
                TOPIC_RECORDS => FaultKind::Topic,
                STATE_RECORDS => FaultKind::State,
                _ => FaultKind::Event,
            };
            if is_events && seqs.is_empty() {
                continue;
            }
            losses.push(Loss {
                position: place.position.max(run_start),
                kind,
                topic: run.topic,
                seqs: seqs.first().copied().zip(seqs.last().copied()),
                run_first_seq: run.first_seq,
                run_last_seq,
                run_start,
                run_end,
            });
        }
        run_start = run_end;
    }
    losses
}

pub(crate) fn fault_kind(kind: Kind) -> FaultKind {
    match kind {
        Kind::Event => FaultKind::Event,
        Kind::State => FaultKind::State,
        Kind::Topic => FaultKind::Topic,
        Kind::Commit => FaultKind::Commit,
    }
}

/// Whether the frames seen are exactly what the COMMIT at `commit_position` says.
fn batch_checks(seen: &[SeenFrame], start: u64, commit_position: u64, commit: &Commit) -> bool {
    let mut frames = seen.iter().filter(|frame| frame.position >= start);
    let mut position = start;
    for run in &commit.runs {
        let mut digest = 0;
        for _ in 0..run.count {
            match frames.next() {
                Some(frame) if frame.checks && frame.position == position => {
                    digest = digest_add(digest, frame.header_crc);
                    position = frame.end;
                }
                _ => return false,
            }
        }
        if digest != run.digest {
            return false;
        }
    }
    position == commit_position && frames.next().is_none()
}

/// Indexes the events of a segment up to `end` by their headers; bodies are checked when they are read. Also covers runs with
/// damaged records, so that readers come across the damage.
pub(crate) fn index_segment(segment: &Segment, end: u64, hash: KeyedHash) -> io::Result<Index> {
    let file = Arc::clone(segment.file()?);
    let from = crate::layout::SEGMENT_DATA_START;
    let mut scan = Scan::new(&*file, segment.id.salt, from, end, false);
    let mut index = Index::default();
    let mut is_damaged = false;
    let mut events: Vec<(u32, u64)> = Vec::new();
    let mut damage: Vec<Damage> = Vec::new();
    while let Some(found) = scan.next()? {
        match found {
            Found::Gap { position, end } => {
                is_damaged = true;
                damage.push(Damage { position, end, kind: FaultKind::Frame });
            }
            Found::Frame { header, position, body_checks: true } => match header.kind {
                Kind::Event => {
                    index.add_event(&header, scan.frame(), position as u32, hash);
                    events.push((header.topic, header.seq));
                }
                Kind::Commit => {
                    if is_damaged {
                        cover_losses(&header, &scan, &damage, &events, &mut index);
                    }
                    is_damaged = false;
                    damage.clear();
                    events.clear();
                }
                Kind::State | Kind::Topic => {}
            },
            Found::Frame { body_checks: false, .. } => {}
        }
    }
    Ok(index)
}

fn cover_losses(
    header: &Header,
    scan: &Scan<'_>,
    damage: &[Damage],
    events: &[(u32, u64)],
    index: &mut Index,
) {
    let Some(commit) = record::read_commit(header, scan.frame()) else { return };
    let Some(start) = scan.position().checked_sub(commit.length) else { return };
    for loss in losses(start, &commit, damage, events).iter().filter(|loss| loss.seqs.is_some()) {
        let (from, to) = (loss.run_start as u32, loss.run_end as u32);
        index.cover_run(loss.topic, loss.run_first_seq, loss.run_last_seq, from, to);
    }
}
