//! Replaying batches behind a checkpoint, and telling corruption from a torn tail.
//!
//! Batch k+1 is written only after batch k was synced. So whatever stands behind a batch proves that the batch was durable:
//! if it does not check, it is corruption, and every record in it that still checks is taken. A last batch that does not check,
//! with nothing behind it, was never acknowledged: it is a torn tail.

use crate::checkpoint::{Checkpoint, Mark};
use crate::error::{Fault, FaultKind};
use crate::holes::{Holes, UnreadableAt};
use crate::id::{EventId, KeyedHash};
use crate::index::{CoveredRun, FoundEvent, Index};
use crate::layout::{SEGMENT_DATA_START, segment_name};
use crate::lost_seqs::SeqAudit;
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
    /// What could not be read: no damage, and nothing may be concluded from it.
    pub(crate) unreadable: Vec<Fault>,
    /// How many events were replayed.
    pub(crate) events: u64,
    /// A batch lost its COMMIT: what the next one is chained to is not known.
    lost_commit: bool,
    /// Names seqs that were lost together with their COMMIT.
    audit: SeqAudit,
    /// The last segment that was replayed, and its bytes after the last batch that was found.
    rest_of_last: Option<(u64, std::ops::Range<u64>)>,
    /// What could not be read of the regions that were taken, in the segment that is replayed.
    taken_holes: Holes,
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
#[derive(Debug)]
pub(crate) struct SegmentEnd {
    /// The end of the last batch that counts.
    pub(crate) end: u64,
    /// Where the remains of an unfinished batch end, if there are any.
    pub(crate) torn_to: Option<u64>,
    /// The last batch is damaged. Only what is known now proves that it was durable: seal the segment, so that it stays known.
    pub(crate) is_damaged: bool,
    /// Places that could not be read.
    pub(crate) holes: Holes,
    /// The first of them that may hold something durable: what was found before and after it cannot be relied on.
    pub(crate) needed_hole: Option<u64>,
}

/// The first place that could not be read and that may hold something durable, in a segment whose last frame ends at `end`.
///
/// Batches follow each other without a gap. So zeros at `end` prove that nothing follows, and a later hole is in bytes that were
/// never used. Other bytes may be a damaged frame whose followers cannot be read; in a recycled file they may also be of an
/// earlier life, and count as unused.
fn needed_hole(segment: &Segment, holes: &Holes, end: u64) -> io::Result<Option<u64>> {
    let near = holes.overlapping(0..end.saturating_add(HEADER_BYTES as u64)).map(|hole| hole.start);
    if near.is_some() || holes.is_empty() || segment.id.life > 0 {
        return Ok(near);
    }
    let mut bytes = [0; HEADER_BYTES];
    let read = segment.file()?.read_at(&mut bytes, end)?;
    let is_used = bytes[..read].iter().any(|&byte| byte != 0);
    Ok(holes.ranges().iter().find(|hole| is_used && hole.start >= end).map(|hole| hole.start))
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
            unreadable: Vec::new(),
            events: 0,
            lost_commit: false,
            audit: SeqAudit::default(),
            rest_of_last: None,
            taken_holes: Holes::default(),
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

    /// Names the seqs that are missing of each topic before the newest one that the checkpoint knows, where everything up to its
    /// mark was replayed.
    pub(crate) fn reach_mark(&mut self, checkpoint: &Checkpoint) {
        for row in &checkpoint.topics {
            self.found_seqs(row.id, row.last_seq + 1, row.last_seq);
        }
    }

    /// Names the seqs of a topic that were lost before `first_seq`; everything up to `last_seq` is accounted for.
    fn found_seqs(&mut self, topic: u32, first_seq: u64, last_seq: u64) {
        if let Some(lost) = self.audit.lost_before(topic, first_seq) {
            self.faults.push(Fault {
                topic: self.topic_name(topic),
                seq: Some(lost.first_seq),
                last_seq: (lost.last_seq > lost.first_seq).then_some(lost.last_seq),
                ..Fault::new(segment_name(lost.segment), lost.position, FaultKind::Event)
            });
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
        self.taken_holes = Holes::default();
        let mut scan = Scan::new(&*file, segment.id.salt, from, to, true).around_holes();
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
            if start == SEGMENT_DATA_START
                && commit.batch > self.mark.batch + 1
                && let Some((number, rest)) = self.rest_of_last.take()
                && batch_checks(&seen, start, position, &commit)
            {
                // A whole batch proves that those before it were durable: they stood at the end of the segment before.
                self.audit.add_damage(number, rest);
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
        let mut holes = scan.into_holes();
        let tail_start = suspect.as_ref().map_or(last_end, |batch| batch.start);
        let tail = tail_start..remains_end.unwrap_or(last_end) + HEADER_BYTES as u64;
        // An operator has given up a part of the last batch: it was lost, and not left unfinished.
        let is_given_up = proof == Proof::None && segment.accepted_loss_in(&tail);
        let proof = if is_given_up { Proof::Later } else { proof };
        if proof == Proof::None {
            let end = suspect.map_or(last_end, |batch| batch.start);
            let needed_hole = self.needed_hole(segment, &mut holes, remains_end.unwrap_or(last_end))?;
            return Ok(SegmentEnd { end, torn_to: remains_end, is_damaged: false, holes, needed_hole });
        }
        let end_found = remains_end.unwrap_or(last_end);
        self.rest_of_last = (proof == Proof::Later)
            .then(|| (segment.id.number, end_found..segment.id.capacity.max(end_found)));
        let mut is_damaged = suspect.is_some() || is_given_up;
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
                let is_unreadable = holes.overlapping(last_end..end + HEADER_BYTES as u64).is_some();
                self.report(Fault::new(segment.name(), end, FaultKind::Commit), is_unreadable);
            }
            // It had a number: nothing later may have the same, and no checkpoint covers it yet.
            self.mark =
                Mark { segment: segment.id.number, position: end, batch: self.mark.batch + 1, ..self.mark };
        }
        let needed_hole = self.needed_hole(segment, &mut holes, end)?;
        Ok(SegmentEnd { end, torn_to: None, is_damaged, holes, needed_hole })
    }

    /// The first place that could not be read and that may hold something durable. Records are read once to find batches, and
    /// once more to take them: a place that failed only the second time counts too, because its records were not taken.
    fn needed_hole(&mut self, segment: &Segment, holes: &mut Holes, end: u64) -> io::Result<Option<u64>> {
        let taken = std::mem::take(&mut self.taken_holes);
        let needed = needed_hole(segment, holes, end)?
            .into_iter()
            .chain(taken.ranges().first().map(|hole| hole.start));
        let needed = needed.min();
        holes.append(taken);
        Ok(needed)
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
        let mut scan = Scan::new(&*file, segment.id.salt, from, to, true).around_holes();
        let mut damage: Vec<Damage> = Vec::new();
        let mut events: Vec<FoundEvent> = Vec::new();
        while let Some(found) = scan.next()? {
            if commit.is_none() {
                match found {
                    Found::Gap { position, end } if scan.holes().overlapping(position..end).is_none() => {
                        self.audit.add_damage(segment.id.number, position..end);
                    }
                    Found::Frame { header, .. } if header.kind == Kind::Event => {
                        self.found_seqs(header.topic, header.seq, header.seq);
                    }
                    Found::Gap { .. } | Found::Frame { .. } => {}
                }
            }
            match found {
                Found::Gap { position, end } => damage.push(Damage::new(position, end, scan.holes())),
                Found::Frame { position, header, body_checks: false } => {
                    let place = Damage::new(position, scan.position(), scan.holes());
                    let is_unreadable = place.is_unreadable;
                    damage.push(place);
                    if header.kind == Kind::Event {
                        let topic = self.topic(header.topic);
                        topic.last_seq = topic.last_seq.max(header.seq);
                    }
                    if commit.is_none() {
                        let fault = self.named(segment, position, &header);
                        self.report(fault, is_unreadable);
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
        self.taken_holes.append(scan.into_holes());
        index.damage.extend(damage.iter().map(|place| place.position..place.end));
        for (topic, first_seq, last_seq) in commit.iter().flat_map(|it| &it.runs).filter_map(RunEntry::seqs) {
            self.found_seqs(topic, first_seq, last_seq);
        }
        let losses = commit.map_or(Vec::new(), |commit| losses(from, commit, &damage, &events));
        index_batch(index, &events, &losses);
        if commit.is_some() {
            self.name_losses(segment, &losses);
        } else {
            let file = segment.name();
            for place in damage {
                let list = if place.is_unreadable { &self.unreadable } else { &self.faults };
                let is_named =
                    list.iter().any(|fault| fault.position == place.position && fault.file == file);
                if !is_named {
                    let fault = Fault::new(segment.name(), place.position, FaultKind::Frame);
                    self.report(fault, place.is_unreadable);
                }
            }
        }
        Ok(())
    }

    /// Puts a fault where it belongs: what cannot be read is not damaged.
    fn report(&mut self, fault: Fault, is_unreadable: bool) {
        if is_unreadable {
            self.unreadable.push(Fault { what: FaultKind::Unreadable, ..fault });
        } else {
            self.faults.push(fault);
        }
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
            self.report(fault, loss.is_unreadable);
        }
    }
}

/// A damaged place inside a batch.
struct Damage {
    position: u64,
    end: u64,
    /// It reaches into a place that cannot be read.
    is_unreadable: bool,
}

impl Damage {
    fn new(position: u64, end: u64, holes: &Holes) -> Self {
        Self { position, end, is_unreadable: holes.overlapping(position..end).is_some() }
    }
}

/// What a damaged place cost.
struct Loss {
    position: u64,
    kind: FaultKind,
    /// First and last lost seq, for events.
    seqs: Option<(u64, u64)>,
    run: CoveredRun,
    is_unreadable: bool,
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
                let (position, is_unreadable) = (place.position.max(run.start), place.is_unreadable);
                losses.push(Loss { position, kind, seqs, run, is_unreadable });
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
            index.cover_run(run, own_id_in(run));
        }
        let is_covered = covered.iter().any(|run| (run.start..run.end).contains(&position));
        index.add_event(event, !is_covered);
    }
    for run in next {
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
///
/// # Errors
/// A part that cannot be read: an index without it would call its events cleaned.
pub(crate) fn index_segment(segment: &Segment, end: u64, hash: KeyedHash) -> Result<Index, UnreadableAt> {
    let file = segment.file()?;
    let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, end, false).around_holes();
    let mut index = Index::default();
    let mut events: Vec<FoundEvent> = Vec::new();
    let mut damage: Vec<Damage> = Vec::new();
    while let Some(found) = scan.next()? {
        match found {
            Found::Gap { position, end } => {
                index.damage.push(position..end);
                damage.push(Damage { position, end, is_unreadable: false });
            }
            Found::Frame { header, position, body_checks: true } => match header.kind {
                Kind::Event => events.push(FoundEvent::new(header, scan.frame(), position, hash)),
                Kind::Commit => {
                    let commit =
                        if damage.is_empty() { None } else { record::read_commit(&header, scan.frame()) };
                    let losses = commit.and_then(|commit| {
                        let start = scan.position().checked_sub(commit.length)?;
                        Some(losses(start, &commit, &damage, &events))
                    });
                    index_batch(&mut index, &events, &losses.unwrap_or_default());
                    damage.clear();
                    events.clear();
                }
                Kind::State | Kind::Topic => {}
            },
            Found::Frame { body_checks: false, .. } => {}
        }
    }
    scan.holes().check()?;
    index_batch(&mut index, &events, &[]);
    Ok(index)
}

/// What a segment without a sealed length holds.
#[derive(Debug)]
pub(crate) enum Begun {
    /// Nothing: it is ready for use.
    No,
    /// Nothing, but some of its unused bytes cannot be read: what would be written there might be lost.
    Unusable,
    /// A place that may hold the first batch cannot be read, so neither that nor its number is known.
    Unknown {
        at: UnreadableAt,
        /// It was begun, as later frames show.
        has_frames: bool,
        /// The number of a later batch in it.
        batch: Option<u64>,
    },
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
    let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, end, false).around_holes();
    let mut frames_end = SEGMENT_DATA_START;
    while let Some(found) = scan.next()? {
        if let Found::Frame { header, position, .. } = found {
            if header.kind == Kind::Commit {
                // The number of a later batch is not that of the first one.
                return Ok(match scan.holes().overlapping(0..position) {
                    None => Begun::Batches { first: header.seq },
                    Some(hole) => {
                        let at = UnreadableAt { position: hole.start, source: scan.holes().error() };
                        Begun::Unknown { at, has_frames: true, batch: Some(header.seq) }
                    }
                });
            }
            frames_end = scan.position();
        }
    }
    let mut holes = scan.into_holes();
    if let Some(position) = needed_hole(segment, &holes, frames_end)? {
        let has_frames = frames_end > SEGMENT_DATA_START;
        let at = UnreadableAt { position, source: holes.error() };
        return Ok(Begun::Unknown { at, has_frames, batch: None });
    }
    if frames_end > SEGMENT_DATA_START {
        return Ok(Begun::Frames);
    }
    if segment.id.life == 0
        && let Some(end) = end_of_nonzero(&*file, SEGMENT_DATA_START, end, &mut holes)?
    {
        return Ok(Begun::Bytes { end });
    }
    Ok(if holes.is_empty() { Begun::No } else { Begun::Unusable })
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
