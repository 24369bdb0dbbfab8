//! Rewrites neighbouring segments: copies their live events, grouped by topic, to new segments (usually one) that
//! replace them. A new file is as large as its content. The file and its index are durable before the manifest lists
//! the segment.

use crate::clean::clean_plan::RewriteGroup;
use crate::clean::clean_stop::CleanStop;
use crate::clean::segment_liveness::{SegmentLiveness, TopicLiveness};
use crate::error::{Fault, FaultKind};
use crate::frame_scan::{Found, Scan};
use crate::index::{FoundEvent, Index};
use crate::index_file_write::write_index_file;
use crate::layout::{SEGMENT_BYTES_MIN, SEGMENT_DATA_START, index_name, segment_name};
use crate::maintain::long_jobs::{JOB_PIECE_BYTES, Pace};
use crate::maintain::maintenance::Maintenance;
use crate::record::{
    self, FLAG_CLIENT_ID, HEADER_BYTES, Header, Kind, RUN_BYTES, RunEntry, digest_add, trusted_event,
};
use crate::segment::{self, Segment, SegmentId, SegmentIndex, SegmentKind};
use crate::storage::{OpenMode, Storage, StorageFile, SyncPoint};
use std::io;
use std::sync::Arc;

/// The approximate size of a batch in a rewritten segment.
const BATCH_BYTES: usize = 1 << 20;
/// How many bytes of a file are written between two syncs. A larger sync would delay commits, which use the same disk.
const SYNC_BYTES: u64 = 4 << 20;
/// The maximum size of a rewritten segment. It limits memory, because the whole content is in memory while it is
/// written.
const REWRITTEN_BYTES_MAX: u64 = 64 << 20;
const PAGE_BYTES: u64 = 4096;

/// The result of rewriting a group. The manifest does not list the new segments yet.
#[derive(Default)]
pub(crate) struct Rewritten {
    /// The new segments.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// The number of events that were not copied.
    pub(crate) events_removed: u64,
    /// The publishers' ids (event ids that publishers chose) of removed events, except for deleted topics.
    pub(crate) removed_ids: Index,
}

impl Rewritten {
    /// Keeps the id of a removed event, because a later publish with this id must still count as a duplicate.
    fn keep_id(&mut self, header: Header, position: u64) {
        let event = FoundEvent { header, position: position as u32, key_hash: None };
        self.removed_ids.add_event(&event, false);
    }

    /// Removes the new files, which the manifest does not list.
    pub(crate) fn discard(&self, storage: &dyn Storage) {
        for segment in &self.segments {
            let _ = storage.remove(&segment.name());
            let _ = storage.remove(&index_name(segment.id.number));
        }
    }
}

/// The maximum size of the frames in one rewritten segment.
pub(crate) fn rewritten_room(segment_bytes: u64) -> u64 {
    segment_bytes.min(REWRITTEN_BYTES_MAX) - SEGMENT_DATA_START
}

/// The frames of live events, in one buffer.
#[derive(Default)]
struct KeptFrames {
    /// The frames, one after the other.
    bytes: Vec<u8>,
    /// Where each frame is in `bytes`.
    places: Vec<KeptPlace>,
}

#[derive(Clone, Copy)]
struct KeptPlace {
    topic: u32,
    seq: u64,
    /// Where the frame starts in the buffer.
    start: u32,
    /// The length of the frame.
    length: u32,
}

impl KeptFrames {
    fn push(&mut self, header: &Header, frame: &[u8]) {
        let (start, length) = (self.bytes.len() as u32, frame.len() as u32);
        self.places.push(KeptPlace { topic: header.topic, seq: header.seq, start, length });
        self.bytes.extend_from_slice(frame);
    }

    fn frame(&self, place: &KeptPlace) -> &[u8] {
        &self.bytes[place.start as usize..][..place.length as usize]
    }
}

/// Rewrites a group. Holds a lock only to make room for each new file and to get its number. After an error no new file
/// is left on disk.
pub(crate) fn rewrite(
    live: &SegmentLiveness<'_>,
    group: &RewriteGroup,
    pace: &mut Pace<'_>,
) -> Result<Rewritten, CleanStop> {
    let mut rewritten = Rewritten::default();
    let written = gather(live, group, pace, &mut rewritten);
    if written.is_err() {
        rewritten.discard(&*live.maintenance.context.storage);
    }
    written.map(|()| rewritten)
}

/// Reads a group, collects its live events, and writes a new segment whenever one is full.
fn gather(
    live: &SegmentLiveness<'_>,
    group: &RewriteGroup,
    pace: &mut Pace<'_>,
    rewritten: &mut Rewritten,
) -> Result<(), CleanStop> {
    let maintenance = live.maintenance;
    let room = rewritten_room(maintenance.context.options.segment_bytes) as usize;
    let mut kept = KeptFrames::default();
    kept.bytes.reserve(room.min(usize::try_from(group.live_bytes).unwrap_or(room)));
    let mut last_topic: Option<TopicLiveness> = None;
    for segment in &group.segments {
        let unreadable = |source: io::Error| {
            maintenance.committed.read_errors.note_error(&segment.read_error(SEGMENT_DATA_START)(source));
            CleanStop::Unreadable { segment: segment.id.number }
        };
        let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
        let file = segment.file().map_err(unreadable)?;
        let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, sealed, true);
        let mut rested_at = SEGMENT_DATA_START;
        while let Some(found) = scan.next().map_err(unreadable)? {
            if scan.position() - rested_at >= JOB_PIECE_BYTES {
                rested_at = scan.position();
                if !pace.rest() {
                    return Err(CleanStop::Stopped);
                }
            }
            let (header, position) = match found {
                Found::Frame { header, is_body_valid: true, position } => (header, position),
                damaged => {
                    maintenance.committed.damage.report(fault_of(maintenance, segment, &damaged));
                    return Err(CleanStop::Damaged { segment: segment.id.number });
                }
            };
            if header.kind != Kind::Event {
                continue;
            }
            let known = last_topic.filter(|topic| topic.id.0 == header.topic);
            let topic = *last_topic.insert(known.unwrap_or_else(|| live.topic(header.topic)));
            if live.is_live(&topic, header.seq) {
                if !kept.places.is_empty() && kept.bytes.len() + scan.frame().len() > room {
                    let full = std::mem::take(&mut kept);
                    rewritten.segments.push(write_segment(maintenance, full, pace)?);
                }
                kept.push(&header, scan.frame());
            } else {
                rewritten.events_removed += 1;
                let counts = header.flags & FLAG_CLIENT_ID != 0 && topic.is_kept;
                if counts && live.ids_expire_ms().is_some() {
                    rewritten.keep_id(header, position);
                }
            }
        }
    }
    if !kept.places.is_empty() {
        rewritten.segments.push(write_segment(maintenance, kept, pace)?);
    }
    Ok(())
}

/// The fault for damage found while rewriting.
fn fault_of(maintenance: &Maintenance, segment: &Segment, damaged: &Found) -> Fault {
    match damaged {
        Found::Frame { header, position, .. } if header.kind == Kind::Event => Fault {
            topic: maintenance.committed.topic_name(header.topic),
            seq: Some(header.seq),
            ..Fault::new(segment.name(), *position, FaultKind::Event)
        },
        Found::Frame { position, .. } | Found::Gap { position, .. } => {
            Fault::new(segment.name(), *position, FaultKind::Frame)
        }
    }
}

/// Writes one segment and its index.
fn write_segment(
    maintenance: &Maintenance,
    mut kept: KeptFrames,
    pace: &mut Pace<'_>,
) -> Result<Arc<Segment>, CleanStop> {
    kept.places.sort_unstable_by_key(|place| (place.topic, place.seq));
    // An upper bound for the segment and its index. If the disk has less room than this, nothing is written, so that
    // room is left for the manifest.
    let needed = SEGMENT_DATA_START + kept.bytes.len() as u64 * 2;
    let (number, salt) = {
        let mut work = maintenance.work().ok_or(CleanStop::Stopped)?;
        work.make_room(needed)?;
        (work.catalog.next_number(), maintenance.context.storage.random() as u32)
    };
    let name = segment_name(number);
    let file = maintenance.context.storage.open(&name, OpenMode::Create)?;
    let mut writer = SegmentWriter {
        maintenance,
        file: &*file,
        salt,
        chain: 0,
        batch: 0,
        position: SEGMENT_DATA_START,
        unsynced: 0,
        index: Index::default(),
    };
    let written = writer.fill(&kept, pace).and_then(|()| Ok(writer.finish(number)?));
    if written.is_err() {
        let _ = maintenance.context.storage.remove(&name);
        let _ = maintenance.context.storage.remove(&index_name(number));
    }
    written
}

/// The number of frames in the next batch.
fn batch_length(places: &[KeptPlace]) -> usize {
    let mut bytes = 0;
    let is_over = |place: &KeptPlace| {
        bytes += place.length as usize;
        bytes >= BATCH_BYTES
    };
    places.iter().position(is_over).map_or(places.len(), |last| last + 1)
}

/// Writes a rewritten segment.
struct SegmentWriter<'a> {
    maintenance: &'a Maintenance,
    file: &'a dyn StorageFile,
    salt: u32,
    /// The chain value of the last COMMIT.
    chain: u32,
    /// The number of the last batch.
    batch: u64,
    /// Where the next batch starts.
    position: u64,
    /// The number of bytes since the last sync.
    unsynced: u64,
    index: Index,
}

impl SegmentWriter<'_> {
    fn fill(&mut self, kept: &KeptFrames, pace: &mut Pace<'_>) -> Result<(), CleanStop> {
        let mut rest = &kept.places[..];
        while !rest.is_empty() {
            let (batch, remaining) = rest.split_at(batch_length(rest));
            rest = remaining;
            let block = self.batch(kept, batch);
            for piece in block.chunks(JOB_PIECE_BYTES as usize) {
                self.file.write_at(piece, self.position)?;
                self.position += piece.len() as u64;
                self.unsynced += piece.len() as u64;
                if self.unsynced >= SYNC_BYTES {
                    self.unsynced = 0;
                    self.file.sync(SyncPoint::Rewritten)?;
                }
                if !pace.rest() {
                    return Err(CleanStop::Stopped);
                }
            }
        }
        Ok(())
    }

    /// The bytes of a batch. Every checksum is computed again, because the new file has another salt.
    fn batch(&mut self, kept: &KeptFrames, places: &[KeptPlace]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BATCH_BYTES + BATCH_BYTES / 4);
        let mut table: Vec<u8> = Vec::new();
        let mut run: Option<RunEntry> = None;
        let mut commit_ms = i64::MIN;
        for place in places {
            let frame = kept.frame(place);
            let event = trusted_event(frame);
            let start = bytes.len();
            let mut header = Header::trusted(frame, 0).expect("the frame was checked when it was read");
            header.body_crc = record::body_crc(event.key.unwrap_or(&[]), event.body);
            commit_ms = commit_ms.max(header.commit_ms);
            let crc = header.put(self.salt, &mut bytes);
            bytes.extend_from_slice(&frame[HEADER_BYTES..]);
            let position = self.position + start as u64;
            let found = FoundEvent::new(header, &bytes[start..], position, self.maintenance.context.hash);
            self.index.add_event(&found, true);
            // The seqs of a run have no gaps: a new run starts where cleaning removed events.
            let continues_run = run.is_some_and(|run| {
                run.topic == header.topic && run.first_seq + u64::from(run.count) == header.seq
            });
            if !continues_run {
                run.inspect(|run| run.put(&mut table));
                let first_seq = header.seq;
                run = Some(RunEntry { topic: header.topic, count: 0, first_seq, length: 0, digest: 0 });
            }
            let current = run.as_mut().expect("there is a run by now");
            current.count += 1;
            current.length += header.frame_length() as u32;
            current.digest = digest_add(current.digest, crc);
        }
        run.inspect(|run| run.put(&mut table));
        debug_assert_eq!(table.len() % RUN_BYTES, 0);
        self.batch += 1;
        let content = bytes.len();
        self.chain =
            record::put_commit(&mut bytes, self.salt, self.batch, commit_ms, content, self.chain, &table);
        bytes
    }

    /// Writes the header and makes the file durable.
    fn finish(&mut self, number: u64) -> io::Result<Arc<Segment>> {
        let sealed = self.position;
        let capacity = sealed.next_multiple_of(PAGE_BYTES).max(SEGMENT_BYTES_MIN);
        let id = SegmentId { number, salt: self.salt, kind: SegmentKind::Rewritten, capacity, life: 0 };
        self.file.write_at(&vec![0; (capacity - sealed) as usize], sealed)?;
        segment::write_header(self.file, &id, self.maintenance.context.log_id)?;
        // The file is synced before the manifest lists it instead of the original segments, because those are recycled
        // right after that.
        self.file.sync(SyncPoint::Rewritten)?;
        self.maintenance.context.storage.sync_folder(SyncPoint::RewrittenFolder)?;
        let storage = &self.maintenance.context.storage;
        let index =
            write_index_file(storage, &self.index, number, self.salt, sealed, self.maintenance.context.hash)?;
        let index = SegmentIndex::File(Arc::new(index));
        Ok(Arc::new(Segment::new(Arc::clone(storage), id, Some(sealed), index)))
    }
}
