//! Retention, compaction and deletion are one job: the caller says which records live, segments without any are recycled,
//! and neighbours that are mostly dead are rewritten into one, clustered by topic.
//!
//! Only sealed segments that lie before the older of the two kept checkpoints are touched: the state records in them are
//! covered by both checkpoints, so they are dead too. Seqs go on behind what was cleaned, because checkpoints keep each
//! topic's newest one.

use crate::append::TopicId;
use crate::checkpoint::Checkpoint;
use crate::commit::Step;
use crate::housekeeping::Housekeeper;
use crate::index::{FoundEvent, Index};
use crate::index_file;
use crate::layout::{SEGMENT_DATA_START, index_name};
use crate::log::Shared;
use crate::record::{
    self, HEADER_BYTES, Header, Kind, RUN_BYTES, RunEntry, digest_add, header_crc, trusted_event,
};
use crate::scan::{Found, Scan};
use crate::segment::{Segment, SegmentIndex, SegmentKind};
use crate::storage::{SyncPoint, is_full};
use std::io;
use std::sync::Arc;

/// Pieces of other work that are done between two segments.
const STEPS_BETWEEN: usize = 8;
/// A batch of a rewritten segment is about this large.
const REWRITTEN_BATCH_BYTES: usize = 1 << 20;

/// What the caller needs to know of a record to say whether it lives.
#[derive(Clone, Copy, Debug)]
pub struct RecordInfo<'a> {
    /// Its topic.
    pub topic: TopicId,
    /// Its seq.
    pub seq: u64,
    /// When the log took it.
    pub commit_ms: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Whether it deletes its key.
    pub tombstone: bool,
    /// What it takes on disk.
    pub bytes: usize,
}

/// Says which events live. Events of deleted topics are dead without asking.
pub trait Liveness {
    /// Whether the record must be kept. Answers may only change from true to false. It may read the log and append to it, but
    /// not clean or close it: cleaning waits for the answer.
    fn is_live(&self, record: &RecordInfo<'_>) -> bool;
}

/// What cleaning did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Segments that were all dead and are free to be used again.
    pub segments_retired: usize,
    /// Segments that were rewritten.
    pub segments_rewritten: usize,
    /// Events that are gone.
    pub events_removed: u64,
    /// Bytes of log that are gone.
    pub bytes_removed: u64,
    /// There was no room to rewrite; whole segments were still retired.
    pub was_full: bool,
}

/// What is in a segment.
#[derive(Default)]
struct Census {
    live_events: u64,
    live_bytes: u64,
    dead_events: u64,
    is_damaged: bool,
}

/// Neighbours that are rewritten together.
#[derive(Default)]
struct Group {
    segments: Vec<Arc<Segment>>,
    live_bytes: u64,
    dead_events: u64,
}

/// Frames that stay, by topic and seq.
type Kept = Vec<(u32, u64, Vec<u8>)>;

impl Housekeeper {
    /// Cleans what can be cleaned now; `None` when the log is closed.
    pub(crate) fn clean(&mut self, shared: &Shared, liveness: &dyn Liveness) -> Option<CleanReport> {
        if self.is_finished {
            return None;
        }
        let mut report = CleanReport::default();
        let cleaned = self
            .retire_dead(shared, liveness, &mut report)
            .and_then(|sparse| self.rewrite_sparse(shared, sparse, liveness, &mut report));
        match cleaned {
            Ok(()) => {}
            Err(error) if is_full(&error) => report.was_full = true,
            Err(error) => shared.poison(format!("cleaning: {error}")),
        }
        Some(report)
    }

    /// Retires the segments without a live record. Answers the groups of neighbours that are worth rewriting.
    fn retire_dead(
        &mut self,
        shared: &Shared,
        liveness: &dyn Liveness,
        report: &mut CleanReport,
    ) -> io::Result<Vec<Group>> {
        let Ok(older) = Checkpoint::read(&*shared.storage, self.manifest.checkpoints[0])? else {
            return Ok(Vec::new());
        };
        let segments = Arc::clone(&shared.view.read().segments);
        let covered =
            segments.iter().position(|segment| segment.id.number == older.mark.segment).unwrap_or(0);
        let room = rewritten_room(shared.options.segment_bytes);
        let mut groups: Vec<Group> = vec![Group::default()];
        for segment in &segments[..covered] {
            self.keep_house(shared)?;
            let Some(sealed) = segment.sealed() else { break };
            let census = census(shared, segment, sealed, liveness)?;
            if census.live_events == 0 && !census.is_damaged {
                report.segments_retired += 1;
                report.events_removed += census.dead_events;
                report.bytes_removed += sealed - SEGMENT_DATA_START;
                self.retire(shared, &[Arc::clone(segment)], None)?;
                continue;
            }
            // A damaged segment stays as it is: what cannot be read cannot be judged.
            if census.is_damaged || census.live_bytes * 2 > room {
                groups.push(Group::default());
                continue;
            }
            if groups.last().is_none_or(|group| group.live_bytes + census.live_bytes > room) {
                groups.push(Group::default());
            }
            if let Some(group) = groups.last_mut() {
                group.live_bytes += census.live_bytes;
                group.dead_events += census.dead_events;
                group.segments.push(Arc::clone(segment));
            }
        }
        // One alone would only move to another file of the same size.
        groups.retain(|group| group.segments.len() > 1);
        Ok(groups)
    }

    /// Puts what lives in each group of neighbours into one new segment that takes their place.
    fn rewrite_sparse(
        &mut self,
        shared: &Shared,
        groups: Vec<Group>,
        liveness: &dyn Liveness,
        report: &mut CleanReport,
    ) -> io::Result<()> {
        for group in groups {
            let mut kept: Kept = Vec::new();
            for segment in &group.segments {
                self.keep_house(shared)?;
                let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
                for_each_event(segment, sealed, |header, frame| {
                    if is_live(shared, liveness, header, frame) {
                        kept.push((header.topic, header.seq, frame.to_vec()));
                    }
                })?;
            }
            kept.sort_by_key(|(topic, seq, _)| (*topic, *seq));
            let replacement = self.write_rewritten(shared, &kept)?;
            let before: u64 = group.segments.iter().filter_map(|segment| segment.sealed()).sum();
            if let Err(error) = self.retire(shared, &group.segments, Some(&replacement)) {
                if is_full(&error) {
                    // The manifest does not name it, so it would only take room.
                    let _ = shared.storage.remove(&replacement.name());
                    let _ = shared.storage.remove(&index_name(replacement.id.number));
                }
                return Err(error);
            }
            report.segments_rewritten += group.segments.len();
            report.events_removed += group.dead_events;
            report.bytes_removed += before.saturating_sub(replacement.sealed().unwrap_or(0));
        }
        Ok(())
    }

    /// Reading a segment takes a while; publishers must not run out of segments meanwhile, nor the log of checkpoints.
    fn keep_house(&mut self, shared: &Shared) -> io::Result<()> {
        for _ in 0..STEPS_BETWEEN {
            match self.step(shared) {
                Step::Worked => {}
                Step::Idle => break,
                Step::Stopped => return Err(io::Error::other("writing stopped")),
            }
        }
        Ok(())
    }

    /// A sealed segment with these frames; the manifest does not name it yet.
    fn write_rewritten(&mut self, shared: &Shared, kept: &Kept) -> io::Result<Arc<Segment>> {
        let id = self.make_file(shared, shared.options.segment_bytes, SegmentKind::Rewritten)?;
        let segment = Segment::new(Arc::clone(&shared.storage), id, None, SegmentIndex::Growing);
        let written = fill_rewritten(shared, &segment, kept);
        if written.is_err() {
            let _ = shared.storage.remove(&segment.name());
        }
        written?;
        Ok(Arc::new(segment))
    }
}

fn fill_rewritten(shared: &Shared, segment: &Segment, kept: &Kept) -> io::Result<()> {
    let id = segment.id;
    let file = segment.file()?;
    let mut writer = RewrittenWriter { salt: id.salt, chain: 0, batch: 0, position: SEGMENT_DATA_START };
    let mut index = Index::default();
    let mut frames: Vec<&[u8]> = Vec::new();
    let mut gathered = 0;
    for (at, (_, _, frame)) in kept.iter().enumerate() {
        frames.push(frame);
        gathered += frame.len();
        if gathered >= REWRITTEN_BATCH_BYTES || at + 1 == kept.len() {
            let bytes = writer.batch(&frames, &mut index, shared);
            file.write_at(&bytes, writer.position)?;
            writer.position += bytes.len() as u64;
            frames.clear();
            gathered = 0;
        }
    }
    // Before the manifest names it in place of the originals: they are recycled right after.
    file.sync(SyncPoint::Segment)?;
    segment.seal(writer.position);
    let index = index_file::write(&shared.storage, &index, id.number, id.salt, writer.position, shared.hash)?;
    *segment.index.write() = SegmentIndex::File(Arc::new(index));
    Ok(())
}

/// What a rewritten segment takes for sure, whatever the COMMITs need.
fn rewritten_room(segment_bytes: u64) -> u64 {
    let room = segment_bytes - SEGMENT_DATA_START;
    let commits = room / REWRITTEN_BATCH_BYTES as u64 + 2;
    room.saturating_sub(commits * HEADER_BYTES as u64)
}

struct RewrittenWriter {
    salt: u32,
    chain: u32,
    batch: u64,
    position: u64,
}

impl RewrittenWriter {
    /// The bytes of a batch; the salt is the new file's, so every checksum is made again.
    fn batch(&mut self, frames: &[&[u8]], index: &mut Index, shared: &Shared) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut table: Vec<u8> = Vec::new();
        let mut run: Option<RunEntry> = None;
        let mut commit_ms = i64::MIN;
        for frame in frames {
            let event = trusted_event(frame);
            let start = bytes.len();
            let key = event.key.unwrap_or(&[]);
            let mut header = Header::trusted(frame, 0).expect("the frame was checked when it was read");
            header.body_crc = record::body_crc(key, event.body);
            commit_ms = commit_ms.max(header.commit_ms);
            header.put(self.salt, &mut bytes);
            bytes.extend_from_slice(&frame[HEADER_BYTES..]);
            let position = self.position + start as u64;
            index.add_event(&FoundEvent::new(header, &bytes[start..], position, shared.hash), true);
            // A run's seqs follow each other: where cleaning left a gap a new run starts.
            let goes_on = run.is_some_and(|run| {
                run.topic == header.topic && run.first_seq + u64::from(run.count) == header.seq
            });
            if !goes_on {
                run.inspect(|run| run.put(&mut table));
                let first_seq = header.seq;
                run = Some(RunEntry { topic: header.topic, count: 0, first_seq, length: 0, digest: 0 });
            }
            let current = run.as_mut().expect("there is a run by now");
            current.count += 1;
            current.length += header.frame_length() as u32;
            current.digest = digest_add(current.digest, header_crc(&bytes[start..]));
        }
        run.inspect(|run| run.put(&mut table));
        debug_assert_eq!(table.len() % RUN_BYTES, 0);
        self.batch += 1;
        let content = bytes.len();
        self.chain =
            record::put_commit(&mut bytes, self.salt, self.batch, commit_ms, content, self.chain, &table);
        bytes
    }
}

fn census(shared: &Shared, segment: &Segment, sealed: u64, liveness: &dyn Liveness) -> io::Result<Census> {
    let mut census = Census::default();
    let is_whole = for_each_event(segment, sealed, |header, frame| {
        if is_live(shared, liveness, header, frame) {
            census.live_events += 1;
            census.live_bytes += (frame.len() + RUN_BYTES) as u64;
        } else {
            census.dead_events += 1;
        }
    })?;
    census.is_damaged = !is_whole;
    Ok(census)
}

/// Visits every event that checks; answers whether all did.
fn for_each_event(segment: &Segment, end: u64, mut visit: impl FnMut(&Header, &[u8])) -> io::Result<bool> {
    let file = segment.file()?;
    let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, end, true);
    let mut is_whole = true;
    while let Some(found) = scan.next()? {
        match found {
            Found::Frame { header, body_checks: true, .. } => {
                if header.kind == Kind::Event {
                    visit(&header, scan.frame());
                }
            }
            _ => is_whole = false,
        }
    }
    Ok(is_whole)
}

fn is_live(shared: &Shared, liveness: &dyn Liveness, header: &Header, frame: &[u8]) -> bool {
    if shared.view.read().last_seq(header.topic).is_none() {
        return false;
    }
    let event = trusted_event(frame);
    liveness.is_live(&RecordInfo {
        topic: TopicId(header.topic),
        seq: header.seq,
        commit_ms: header.commit_ms,
        key: event.key,
        tombstone: event.tombstone,
        bytes: frame.len(),
    })
}

impl CleanReport {
    /// Whether anything was removed.
    pub fn is_empty(&self) -> bool {
        self.segments_retired == 0 && self.segments_rewritten == 0
    }
}
