//! Retention, compaction and deletion are one job: the caller says which records live, segments without any are recycled,
//! and neighbours that are mostly dead are rewritten into one, clustered by topic.
//!
//! Only sealed segments that lie before the older of the two kept checkpoints are touched: the state records in them are
//! covered by both checkpoints, so they are dead too. Seqs go on behind what was cleaned, because checkpoints keep each
//! topic's newest one.

use crate::append::TopicId;
use crate::checkpoint::Checkpoint;
use crate::error::Unavailable;
use crate::housekeeping::Housekeeper;
use crate::index::Index;
use crate::index_file;
use crate::layout::SEGMENT_DATA_START;
use crate::log::Shared;
use crate::record::{
    self, HEADER_BYTES, Header, Kind, RUN_BYTES, RunEntry, digest_add, header_crc, trusted_event,
};
use crate::scan::{Found, Scan};
use crate::segment::{Segment, SegmentIndex, SegmentKind};
use crate::storage::{SyncPoint, is_full};
use std::io;
use std::sync::Arc;

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
    /// Whether the record must be kept. Answers may only change from true to false.
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

/// Frames that stay, with where they go.
type Kept = Vec<(u32, u64, Vec<u8>)>;

impl Housekeeper {
    /// Cleans what can be cleaned now.
    pub(crate) fn clean(&mut self, shared: &Shared, liveness: &dyn Liveness) -> CleanReport {
        let mut report = CleanReport::default();
        match self.clean_inner(shared, liveness, &mut report) {
            Ok(()) => {}
            Err(error) if is_full(&error) => report.was_full = true,
            Err(error) => shared.poison(format!("cleaning: {error}")),
        }
        report
    }

    fn clean_inner(
        &mut self,
        shared: &Shared,
        liveness: &dyn Liveness,
        report: &mut CleanReport,
    ) -> io::Result<()> {
        let Ok(older) = Checkpoint::read(&*shared.storage, self.manifest.checkpoints[0])? else {
            return Ok(());
        };
        let segments = Arc::clone(&shared.view.read().segments);
        let covered =
            segments.iter().position(|segment| segment.id.number == older.mark.segment).unwrap_or(0);
        let mut group: Vec<(Arc<Segment>, Census)> = Vec::new();
        for segment in &segments[..covered] {
            let Some(sealed) = segment.sealed() else { break };
            let census = census(shared, segment, sealed, liveness)?;
            let used = sealed - SEGMENT_DATA_START;
            if census.live_events == 0 && !census.is_damaged {
                report.segments_retired += 1;
                report.events_removed += census.dead_events;
                report.bytes_removed += used;
                self.retire(shared, &[Arc::clone(segment)], None)?;
            } else if census.is_damaged || census.live_bytes * 2 > used {
                // A damaged segment stays as it is: what cannot be read cannot be judged.
                self.rewrite(shared, &mut group, liveness, report)?;
            } else {
                let together: u64 = group.iter().map(|(_, census)| census.live_bytes).sum();
                if together + census.live_bytes > shared.options.segment_bytes / 2 {
                    self.rewrite(shared, &mut group, liveness, report)?;
                }
                group.push((Arc::clone(segment), census));
            }
        }
        self.rewrite(shared, &mut group, liveness, report)
    }

    /// Puts what lives in a group of neighbours into one new segment that takes their place.
    fn rewrite(
        &mut self,
        shared: &Shared,
        group: &mut Vec<(Arc<Segment>, Census)>,
        liveness: &dyn Liveness,
        report: &mut CleanReport,
    ) -> io::Result<()> {
        let group = std::mem::take(group);
        if group.is_empty() {
            return Ok(());
        }
        let mut kept: Kept = Vec::new();
        for (segment, _) in &group {
            let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
            for_each_event(segment, sealed, |header, frame| {
                if is_live(shared, liveness, header, frame) {
                    kept.push((header.topic, header.seq, frame.to_vec()));
                }
            })?;
        }
        kept.sort_by_key(|(topic, seq, _)| (*topic, *seq));
        let replacement = self.write_rewritten(shared, &kept)?;
        report.segments_rewritten += group.len();
        report.events_removed += group.iter().map(|(_, census)| census.dead_events).sum::<u64>();
        let before: u64 = group.iter().filter_map(|(segment, _)| segment.sealed()).sum();
        report.bytes_removed += before.saturating_sub(replacement.sealed().unwrap_or(0));
        let gone: Vec<_> = group.into_iter().map(|(segment, _)| segment).collect();
        self.retire(shared, &gone, Some(replacement))
    }

    fn write_rewritten(&mut self, shared: &Shared, kept: &Kept) -> io::Result<Arc<Segment>> {
        let id = self.make_file(shared, shared.options.segment_bytes, SegmentKind::Rewritten)?;
        let segment = Segment::new(Arc::clone(&shared.storage), id, None, SegmentIndex::Growing);
        let file = Arc::clone(segment.file()?);
        let mut writer = RewrittenWriter { salt: id.salt, chain: 0, batch: 0, position: SEGMENT_DATA_START };
        let mut index = Index::default();
        let mut frames = Vec::new();
        for (at, (_, _, frame)) in kept.iter().enumerate() {
            frames.push(&frame[..]);
            let gathered: usize = frames.iter().map(|frame| frame.len()).sum();
            if gathered >= REWRITTEN_BATCH_BYTES || at + 1 == kept.len() {
                let bytes = writer.batch(&frames, &mut index, shared);
                file.write_at(&bytes, writer.position)?;
                writer.position += bytes.len() as u64;
                frames.clear();
            }
        }
        // Before the manifest names it in place of the originals: they are recycled right after.
        file.sync(SyncPoint::Segment)?;
        segment.seal(writer.position);
        let index =
            index_file::write(&*shared.storage, &index, id.number, id.salt, writer.position, shared.hash)?;
        *segment.index.write() = SegmentIndex::File(Arc::new(index));
        Ok(Arc::new(segment))
    }
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
            index.add_event(&header, &bytes[start..], (self.position + start as u64) as u32, shared.hash);
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
    let file = Arc::clone(segment.file()?);
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

impl From<Unavailable> for io::Error {
    fn from(error: Unavailable) -> Self {
        Self::other(error)
    }
}
