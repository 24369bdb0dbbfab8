//! Rebuilds the index of a segment from its frames. Also determines, from the run table of a COMMIT, which records of its
//! batch were lost to damage.

use crate::error::FaultKind;
use crate::event_id::EventId;
use crate::frame_scan::{Found, Scan};
use crate::index::{CoveredRun, FoundEvent, Index};
use crate::keyed_hash::KeyedHash;
use crate::layout::SEGMENT_DATA_START;
use crate::record::{self, Commit, FLAG_CLIENT_ID, Kind, STATE_RECORDS, TOPIC_RECORDS};
use crate::segment::Segment;
use crate::unreadable_ranges::{UnreadableAt, UnreadableRanges};
use std::collections::HashSet;

/// A damaged range inside a batch.
pub(crate) struct DamagedRange {
    /// Where the range starts in the segment.
    pub(crate) position: u64,
    /// Where the range ends in the segment.
    pub(crate) end: u64,
    /// Whether some of its bytes cannot be read.
    pub(crate) is_unreadable: bool,
}

impl DamagedRange {
    pub(crate) fn new(position: u64, end: u64, holes: &UnreadableRanges) -> Self {
        Self { position, end, is_unreadable: holes.overlapping(position..end).is_some() }
    }
}

/// The records that were lost in a damaged range.
pub(crate) struct LostRecords {
    /// Where the damaged range starts in the segment.
    pub(crate) position: u64,
    pub(crate) kind: FaultKind,
    /// The first and the last lost seq; `None` for records other than events.
    pub(crate) seqs: Option<(u64, u64)>,
    /// The run of the lost records.
    pub(crate) run: CoveredRun,
    pub(crate) is_unreadable: bool,
}

/// Determines, from a COMMIT's run table, which records were lost in each damaged range of its batch. `events` are the
/// intact ones.
pub(crate) fn losses_of_batch(
    start: u64,
    commit: &Commit,
    damage: &[DamagedRange],
    events: &[FoundEvent],
) -> Vec<LostRecords> {
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
            let intact: HashSet<u64> = events
                .iter()
                .filter(|event| event.header.topic == run.topic)
                .map(|event| event.header.seq)
                .collect();
            lost = (run.first_seq..=run.last_seq).filter(|seq| !intact.contains(seq)).collect();
        }
        let is_hit = |place: &&DamagedRange| place.position < run.end && place.end > run.start;
        let places: Vec<&DamagedRange> = damage.iter().filter(is_hit).collect();
        for (at, place) in places.iter().enumerate() {
            // It is unknown which seq was lost in which range. Both are in order, so each range gets one seq, and the
            // last range all remaining ones.
            let share = if at + 1 == places.len() { lost.len() } else { lost.len().min(1) };
            let seqs: Vec<u64> = lost.drain(..share).collect();
            let seqs = seqs.first().copied().zip(seqs.last().copied());
            if kind != FaultKind::Event || seqs.is_some() {
                let (position, is_unreadable) = (place.position.max(run.start), place.is_unreadable);
                losses.push(LostRecords { position, kind, seqs, run, is_unreadable });
            }
        }
    }
    losses
}

/// Adds the events of a batch to the index, in order. A run with losses gets one entry that covers the whole run.
pub(crate) fn index_batch(index: &mut Index, events: &[FoundEvent], losses: &[LostRecords]) {
    let mut covered: Vec<CoveredRun> =
        losses.iter().filter(|loss| loss.seqs.is_some()).map(|loss| loss.run).collect();
    covered.dedup();
    let mut next = covered.iter().peekable();
    let server_id_in = |run: &CoveredRun| {
        let own = events.iter().find(|event| {
            let position = u64::from(event.position);
            (run.start..run.end).contains(&position) && event.header.flags & FLAG_CLIENT_ID == 0
        });
        own.map_or(EventId::default(), |event| event.header.id)
    };
    for event in events {
        let position = u64::from(event.position);
        while let Some(run) = next.next_if(|run| run.start <= position) {
            index.cover_run(run, server_id_in(run));
        }
        let is_covered = covered.iter().any(|run| (run.start..run.end).contains(&position));
        index.add_event(event, !is_covered);
    }
    for run in next {
        index.cover_run(run, server_id_in(run));
    }
}

/// Indexes the events of a segment up to `end` by their headers. Bodies are checked when they are read. Runs with damaged
/// records get an entry that covers them, so that readers find the damage.
///
/// # Errors
/// A part of the segment cannot be read. Without that part, its events would seem to be cleaned.
pub(crate) fn index_segment(segment: &Segment, end: u64, hash: KeyedHash) -> Result<Index, UnreadableAt> {
    let file = segment.file()?;
    let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, end, false).around_holes();
    let mut index = Index::default();
    let mut events: Vec<FoundEvent> = Vec::new();
    let mut damage: Vec<DamagedRange> = Vec::new();
    while let Some(found) = scan.next()? {
        match found {
            Found::Gap { position, end } => {
                index.damage.push(position..end);
                damage.push(DamagedRange { position, end, is_unreadable: false });
            }
            Found::Frame { header, position, is_body_valid: true } => match header.kind {
                Kind::Event => events.push(FoundEvent::new(header, scan.frame(), position, hash)),
                Kind::Commit => {
                    let commit =
                        if damage.is_empty() { None } else { record::read_commit(&header, scan.frame()) };
                    let losses = commit.and_then(|commit| {
                        let start = scan.position().checked_sub(commit.length)?;
                        Some(losses_of_batch(start, &commit, &damage, &events))
                    });
                    index_batch(&mut index, &events, &losses.unwrap_or_default());
                    damage.clear();
                    events.clear();
                }
                Kind::State | Kind::Topic => {}
            },
            Found::Frame { is_body_valid: false, .. } => {}
        }
    }
    scan.holes().check()?;
    index_batch(&mut index, &events, &[]);
    Ok(index)
}
