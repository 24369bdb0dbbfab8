//! Replaying batches behind a checkpoint, and telling corruption from a torn tail.
//!
//! Batch k+1 is written only after batch k was synced. So whatever stands behind a batch proves that the batch was durable:
//! if it does not check, it is corruption, and every record in it that still checks is taken. A last batch that does not check,
//! with nothing behind it, was never acknowledged: it is a torn tail.

use crate::checkpoint::{Checkpoint, Mark};
use crate::error::{Fault, FaultKind};
use crate::id::{EventId, KeyedHash};
use crate::index::{CoveredRun, Damage, FoundEvent, Index};
use crate::layout::{SEGMENT_DATA_START, segment_name};
use crate::lost::{LostSeqs, SeqAudit};
use crate::record::{
    self, Commit, FLAG_CLIENT_ID, FLAG_DELETED, HEADER_BYTES, Header, Kind, RunEntry, STATE_RECORDS,
    TOPIC_RECORDS, digest_add,
};
use crate::scan::{Found, Scan, end_of_nonzero};
use crate::segment::Segment;
use crate::state::State;
use crate::view::TopicView;
use std::collections::HashSet;
use std::io;

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
    /// A batch lost its COMMIT: what the next one is chained to is not known.
    lost_commit: bool,
    /// Finds what was lost together with its COMMIT.
    audit: SeqAudit,
    /// What was lost in a segment before the one where it was found to be missing, so that no index covers it yet.
    pub(crate) uncovered: Vec<LostSeqs>,
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
    /// The last batch is damaged. Only what is known now proves that it was durable: seal the segment, so that it stays known.
    pub(crate) is_damaged: bool,
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
        Self {
            topics: checkpoint.topic_views(),
            last_own_id: checkpoint.last_own_id,
            last_commit_ms: checkpoint.last_commit_ms,
            mark: checkpoint.mark,
            state,
            faults: Vec::new(),
            events: 0,
            lost_commit: false,
            audit: SeqAudit::default(),
            uncovered: Vec::new(),
            hash,
        }
    }

    /// Takes the seqs of the checkpoint as accounted for, where replaying starts at its mark.
    pub(crate) fn begin_at_mark(&mut self) {
        for (id, topic) in self.topics.iter().enumerate() {
            if let Some(topic) = topic {
                self.audit.account(id as u32, topic.last_seq);
            }
        }
    }

    /// Names what is missing of each topic before the newest seq that the checkpoint knows, where everything up to its mark was
    /// replayed.
    pub(crate) fn reach_mark(&mut self, checkpoint: &Checkpoint) {
        for row in &checkpoint.topics {
            self.name_lost_before(row.id, row.last_seq + 1);
            self.audit.account(row.id, row.last_seq);
        }
    }

    fn name_lost_before(&mut self, topic: u32, seq: u64) -> Option<LostSeqs> {
        let lost = self.audit.lost_before(topic, seq)?;
        let name = self.topic_name(topic);
        self.faults.push(lost.fault(segment_name(lost.segment), name));
        Some(lost)
    }

    /// Names what was lost of a topic before seqs that were found at `position`. Where the index has nothing of the topic yet, it
    /// is covered here, or left to be covered in the segment where it was lost.
    fn found_seqs(
        &mut self,
        segment: &Segment,
        (topic, first_seq, last_seq): (u32, u64, u64),
        position: u64,
        index: Option<&mut Index>,
    ) {
        if let Some(lost) = self.name_lost_before(topic, first_seq)
            && let Some(index) = index.filter(|index| index.entries(topic).is_empty())
        {
            if lost.segment == segment.id.number {
                index.cover_lost(topic, lost.first_seq, lost.last_seq, lost.position..position);
            } else {
                self.uncovered.push(lost);
            }
        }
        self.audit.account(topic, last_seq);
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
        let file = segment.file()?;
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
            if start > last_end {
                self.take_region(segment, last_end, start, None, index)?;
                self.lost_commit = true;
            }
            let chained =
                self.lost_commit || self.mark.batch + 1 == commit.batch && self.mark.chain == commit.previous;
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
            return Ok(SegmentEnd { end, torn_to: remains_end, is_damaged: false });
        }
        let mut is_damaged = suspect.is_some();
        if let Some(batch) = suspect {
            self.take_suspect(segment, &batch, index)?;
            last_end = batch.end;
        }
        let end = if proof == Proof::Exact { to } else { remains_end.unwrap_or(last_end) };
        if end > last_end {
            self.take_region(segment, last_end, end, None, index)?;
            self.lost_commit = true;
            is_damaged = true;
            if proof == Proof::Later {
                self.faults.push(Fault::new(segment.name(), end, FaultKind::Commit));
            }
            // It had a number: nothing later may have the same, and no checkpoint covers it yet.
            self.mark =
                Mark { segment: segment.id.number, position: end, batch: self.mark.batch + 1, ..self.mark };
        }
        Ok(SegmentEnd { end, torn_to: None, is_damaged })
    }

    fn advance(&mut self, segment: &Segment, end: u64, commit: &Commit) {
        self.lost_commit = false;
        self.mark =
            Mark { segment: segment.id.number, position: end, batch: commit.batch, chain: commit.chain };
        self.last_commit_ms = self.last_commit_ms.max(commit.commit_ms);
    }

    /// Goes on from a mark that is known.
    pub(crate) fn resume_at(&mut self, mark: Mark) {
        self.mark = mark;
        self.lost_commit = false;
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
        let file = segment.file()?;
        let mut scan = Scan::new(&*file, segment.id.salt, from, to, true);
        let mut damage: Vec<Damage> = Vec::new();
        let mut events: Vec<FoundEvent> = Vec::new();
        let mut damaged_events: Vec<CoveredRun> = Vec::new();
        while let Some(found) = scan.next()? {
            if commit.is_none() {
                match found {
                    Found::Gap { position, end } => {
                        index.unattributed.push(Damage { position, end });
                        self.audit.add_damage(segment.id.number, Damage { position, end });
                    }
                    Found::Frame { position, header, .. } if header.kind == Kind::Event => {
                        let is_first = events.iter().all(|event| event.header.topic != header.topic);
                        let index = is_first.then_some(&mut *index);
                        self.found_seqs(segment, (header.topic, header.seq, header.seq), position, index);
                    }
                    Found::Frame { .. } => {}
                }
            }
            match found {
                Found::Gap { position, end } => damage.push(Damage { position, end }),
                Found::Frame { position, header, body_checks: false } => {
                    let end = scan.position();
                    damage.push(Damage { position, end });
                    if header.kind == Kind::Event {
                        let (topic, seq) = (header.topic, header.seq);
                        damaged_events.push(CoveredRun {
                            topic,
                            first_seq: seq,
                            last_seq: seq,
                            start: position,
                            end,
                        });
                        let topic = self.topic(header.topic);
                        topic.last_seq = topic.last_seq.max(header.seq);
                    }
                    if commit.is_none() {
                        self.faults.push(self.named(segment, position, &header));
                    }
                }
                Found::Frame { position, header, body_checks: true } => {
                    self.take_frame(&header, scan.frame());
                    if header.kind == Kind::Event {
                        events.push(FoundEvent::new(header, scan.frame(), position, self.hash));
                    }
                }
            }
        }
        for run in commit.iter().flat_map(|commit| &commit.runs).filter_map(RunEntry::seqs) {
            self.found_seqs(segment, run, from, Some(&mut *index));
        }
        let losses = commit.map_or(Vec::new(), |commit| losses(from, commit, &damage, &events));
        index_batch(index, &events, &losses);
        if commit.is_some() {
            self.name_losses(segment, &losses);
        } else {
            for event in damaged_events {
                // One with others of its topic on both sides lies in their entry.
                if index.entries(event.topic).last().is_none_or(|last| last.last_seq < event.first_seq) {
                    index.cover_run(&event, EventId::default());
                }
            }
            let file = segment.name();
            for place in damage {
                let is_named =
                    self.faults.iter().any(|fault| fault.position == place.position && fault.file == file);
                if !is_named {
                    self.faults.push(Fault::new(segment.name(), place.position, FaultKind::Frame));
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

    fn named(&self, segment: &Segment, position: u64, header: &Header) -> Fault {
        let mut fault = Fault::new(segment.name(), position, fault_kind(header.kind));
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
    fn name_losses(&mut self, segment: &Segment, losses: &[Loss]) {
        for loss in losses {
            let mut fault = Fault::new(segment.name(), loss.position, loss.kind);
            if let Some((first, last)) = loss.seqs {
                let topic = self.topic(loss.run.topic);
                topic.last_seq = topic.last_seq.max(loss.run.last_seq);
                fault.topic = self.topic_name(loss.run.topic);
                fault.seq = Some(first);
                fault.last_seq = (last > first).then_some(last);
            }
            self.faults.push(fault);
        }
    }
}

/// What a damaged place cost.
struct Loss {
    position: u64,
    kind: FaultKind,
    /// First and last lost seq, for events.
    seqs: Option<(u64, u64)>,
    run: CoveredRun,
}

/// Says, by a COMMIT's run table, what each damaged place of its batch cost. `events` are those that check.
fn losses(start: u64, commit: &Commit, damage: &[Damage], events: &[FoundEvent]) -> Vec<Loss> {
    let mut losses = Vec::new();
    if damage.is_empty() {
        return losses;
    }
    let mut run_start = start;
    for entry in &commit.runs {
        let run = CoveredRun {
            topic: entry.topic,
            first_seq: entry.first_seq,
            last_seq: entry.first_seq + u64::from(entry.count).saturating_sub(1),
            start: run_start,
            end: run_start + u64::from(entry.length),
        };
        run_start = run.end;
        let kind = match run.topic {
            TOPIC_RECORDS => FaultKind::Topic,
            STATE_RECORDS => FaultKind::State,
            _ => FaultKind::Event,
        };
        let mut lost: Vec<u64> = Vec::new();
        if kind == FaultKind::Event {
            let there: HashSet<u64> = events
                .iter()
                .filter(|event| event.header.topic == run.topic)
                .map(|event| event.header.seq)
                .collect();
            lost = (run.first_seq..=run.last_seq).filter(|seq| !there.contains(seq)).collect();
        }
        let is_hit = |place: &&Damage| place.position < run.end && place.end > run.start;
        let places: Vec<&Damage> = damage.iter().filter(is_hit).collect();
        for (at, place) in places.iter().enumerate() {
            // Losses and places are both in order; the last place has whatever is left over.
            let share = if at + 1 == places.len() { lost.len() } else { lost.len().min(1) };
            let seqs: Vec<u64> = lost.drain(..share).collect();
            let seqs = seqs.first().copied().zip(seqs.last().copied());
            if kind != FaultKind::Event || seqs.is_some() {
                losses.push(Loss { position: place.position.max(run.start), kind, seqs, run });
            }
        }
    }
    losses
}

/// Adds the events of a batch, in order; runs with losses are covered as a whole.
fn index_batch(index: &mut Index, events: &[FoundEvent], losses: &[Loss]) {
    let mut covered: Vec<CoveredRun> =
        losses.iter().filter(|loss| loss.seqs.is_some()).map(|loss| loss.run).collect();
    covered.dedup();
    let mut next = covered.iter().peekable();
    let own_id_in = |run: &CoveredRun| {
        let own = events.iter().find(|event| {
            let position = u64::from(event.position);
            (run.start..run.end).contains(&position) && event.header.flags & FLAG_CLIENT_ID == 0
        });
        own.map_or(EventId::default(), |event| event.header.id)
    };
    for event in events {
        let position = u64::from(event.position);
        while let Some(run) = next.next_if(|run| run.start <= position) {
            index.cover_lost_before(run.topic, run.first_seq, run.start);
            index.cover_run(run, own_id_in(run));
        }
        let is_covered = covered.iter().any(|run| (run.start..run.end).contains(&position));
        if !is_covered {
            index.cover_lost_before(event.header.topic, event.header.seq, position);
        }
        index.add_event(event, !is_covered);
    }
    for run in next {
        index.cover_lost_before(run.topic, run.first_seq, run.start);
        index.cover_run(run, own_id_in(run));
    }
}

fn fault_kind(kind: Kind) -> FaultKind {
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
    let file = segment.file()?;
    let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, end, false);
    let mut index = Index::default();
    let mut events: Vec<FoundEvent> = Vec::new();
    let mut damage: Vec<Damage> = Vec::new();
    while let Some(found) = scan.next()? {
        match found {
            Found::Gap { position, end } => damage.push(Damage { position, end }),
            Found::Frame { header, position, body_checks: true } => match header.kind {
                Kind::Event => events.push(FoundEvent::new(header, scan.frame(), position, hash)),
                Kind::Commit => {
                    let commit =
                        if damage.is_empty() { None } else { record::read_commit(&header, scan.frame()) };
                    let start = commit.as_ref().and_then(|commit| scan.position().checked_sub(commit.length));
                    let is_outside = |place: &&Damage| start.is_none_or(|start| place.position < start);
                    index.unattributed.extend(damage.iter().filter(is_outside));
                    let losses = commit.zip(start).map(|(commit, start)| {
                        let inside = damage.iter().filter(|place| !is_outside(place)).copied();
                        losses(start, &commit, &inside.collect::<Vec<_>>(), &events)
                    });
                    index_batch(&mut index, &events, &losses.unwrap_or_default());
                    damage.clear();
                    events.clear();
                }
                Kind::State | Kind::Topic => {}
            },
            // Its body is not there, so a gap follows.
            Found::Frame { body_checks: false, .. } => {}
        }
    }
    index.unattributed.append(&mut damage);
    index_batch(&mut index, &events, &[]);
    Ok(index)
}

/// What a segment without a sealed length holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// Nothing: it is ready for use.
    No,
    /// Bytes, but not one whole frame. They prove nothing about other segments.
    Bytes { end: u64 },
    /// Frames of a batch without its COMMIT.
    Frames,
    /// Batches, the first with this number.
    Batches { first: u64 },
}

pub(crate) fn begun(segment: &Segment) -> io::Result<Begun> {
    let file = segment.file()?;
    let end = segment.id.capacity;
    let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, end, false);
    let mut begun = Begun::No;
    while let Some(found) = scan.next()? {
        if let Found::Frame { header, .. } = found {
            if header.kind == Kind::Commit {
                return Ok(Begun::Batches { first: header.seq });
            }
            begun = Begun::Frames;
        }
    }
    if begun == Begun::No
        && segment.id.life == 0
        && let Some(end) = end_of_nonzero(&*file, SEGMENT_DATA_START, end)?
    {
        begun = Begun::Bytes { end };
    }
    Ok(begun)
}

/// A segment that was begun, where it stands in the manifest, and the first batch in it, if that is known.
pub(crate) struct BegunSegment<T> {
    pub(crate) row: usize,
    pub(crate) is_reserve: bool,
    pub(crate) first_batch: Option<u64>,
    pub(crate) segment: T,
}

/// The order in which segments were begun: by batch number. One that lost its COMMITs stands where the manifest has it (segments
/// are taken in that order, but for the reserve), else last.
pub(crate) fn in_log_order<T>(segments: Vec<BegunSegment<T>>) -> Vec<T> {
    let (mut ordered, unknown): (Vec<_>, Vec<_>) =
        segments.into_iter().partition(|begun| begun.first_batch.is_some());
    ordered.sort_by_key(|begun| begun.first_batch);
    for begun in unknown {
        let is_behind =
            |other: &BegunSegment<T>| !begun.is_reserve && !other.is_reserve && other.row > begun.row;
        let at = ordered.iter().position(is_behind).unwrap_or(ordered.len());
        ordered.insert(at, begun);
    }
    ordered.into_iter().map(|begun| begun.segment).collect()
}
