//! Puts what lives in neighbouring segments into a new one that takes their place, clustered by topic. The new file is as
//! large as its content; it is durable, with its index, before the manifest names it.

use crate::error::{Fault, FaultKind};
use crate::index::{FoundEvent, Index};
use crate::index_file;
use crate::jobs::{PIECE_BYTES, Pace};
use crate::judge::{Group, Judge, JudgedTopic};
use crate::layout::{SEGMENT_BYTES_MIN, SEGMENT_DATA_START, index_name, segment_name};
use crate::log::Shared;
use crate::record::{
    self, FLAG_CLIENT_ID, HEADER_BYTES, Header, Kind, RUN_BYTES, RunEntry, digest_add, trusted_event,
};
use crate::scan::{Found, Scan};
use crate::segment::{self, Segment, SegmentId, SegmentIndex, SegmentKind};
use crate::storage::{OpenMode, StorageFile, SyncPoint};
use std::io;
use std::sync::Arc;

/// A batch of a rewritten segment is about this large.
const BATCH_BYTES: usize = 1 << 20;
/// So much is synced at once: more would hold up the commits that wait for the same disk.
const SYNC_BYTES: u64 = 4 << 20;
/// No rewritten segment is larger, because its content is in memory while it is made.
const REWRITTEN_BYTES_MAX: u64 = 64 << 20;
const PAGE_BYTES: u64 = 4096;

/// Why rewriting did not come to its end.
pub(crate) enum Broken {
    /// The log is closed, or writing stopped.
    Stopped,
    /// This segment is damaged.
    Damaged { segment: u64 },
    /// This segment cannot be read now.
    Unreadable { segment: u64 },
    /// The disk has no room, or refused.
    Io(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What rewriting a group gave. Nothing names the new segments yet.
#[derive(Default)]
pub(crate) struct Rewritten {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) events_removed: u64,
    /// The publishers' ids that are gone, of topics that are there.
    pub(crate) removed_ids: Index,
}

impl Rewritten {
    /// Removes the files that nothing names.
    pub(crate) fn discard(&self, shared: &Shared) {
        for segment in &self.segments {
            let _ = shared.storage.remove(&segment.name());
            let _ = shared.storage.remove(&index_name(segment.id.number));
        }
    }
}

/// Bytes of frames that go into one rewritten segment.
pub(crate) fn rewritten_room(segment_bytes: u64) -> u64 {
    segment_bytes.min(REWRITTEN_BYTES_MAX) - SEGMENT_DATA_START
}

/// Frames that stay, in one buffer.
#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    places: Vec<KeptPlace>,
}

#[derive(Clone, Copy)]
struct KeptPlace {
    topic: u32,
    seq: u64,
    start: u32,
    length: u32,
}

impl Kept {
    fn push(&mut self, header: &Header, frame: &[u8]) {
        let (start, length) = (self.bytes.len() as u32, frame.len() as u32);
        self.places.push(KeptPlace { topic: header.topic, seq: header.seq, start, length });
        self.bytes.extend_from_slice(frame);
    }

    fn frame(&self, place: &KeptPlace) -> &[u8] {
        &self.bytes[place.start as usize..][..place.length as usize]
    }
}

/// Rewrites a group. Holds no lock but for the number of each new file. After an error nothing of it is left on disk.
pub(crate) fn rewrite(judge: &Judge<'_>, group: &Group, pace: &mut Pace<'_>) -> Result<Rewritten, Broken> {
    let mut rewritten = Rewritten::default();
    let written = gather(judge, group, pace, &mut rewritten);
    if written.is_err() {
        rewritten.discard(judge.shared);
    }
    written.map(|()| rewritten)
}

fn gather(
    judge: &Judge<'_>,
    group: &Group,
    pace: &mut Pace<'_>,
    rewritten: &mut Rewritten,
) -> Result<(), Broken> {
    let shared = judge.shared;
    let room = rewritten_room(shared.options.segment_bytes) as usize;
    let mut kept = Kept::default();
    kept.bytes.reserve(room.min(usize::try_from(group.live_bytes).unwrap_or(room)));
    let mut last_topic: Option<JudgedTopic> = None;
    for segment in &group.segments {
        let unreadable = |source: io::Error| {
            shared.note_read_error(&segment.read_error(SEGMENT_DATA_START)(source));
            Broken::Unreadable { segment: segment.id.number }
        };
        let sealed = segment.sealed().unwrap_or(SEGMENT_DATA_START);
        let file = segment.file().map_err(unreadable)?;
        let mut scan = Scan::new(&*file, segment.id.salt, SEGMENT_DATA_START, sealed, true);
        let mut rested_at = SEGMENT_DATA_START;
        while let Some(found) = scan.next().map_err(unreadable)? {
            if scan.position() - rested_at >= PIECE_BYTES {
                rested_at = scan.position();
                if !pace.rest() {
                    return Err(Broken::Stopped);
                }
            }
            let (header, position) = match found {
                Found::Frame { header, body_checks: true, position } => (header, position),
                damaged => {
                    shared.report_fault(fault(shared, segment, &damaged));
                    return Err(Broken::Damaged { segment: segment.id.number });
                }
            };
            if header.kind != Kind::Event {
                continue;
            }
            let topic = match last_topic {
                Some(topic) if topic.id.0 == header.topic => topic,
                _ => *last_topic.insert(judge.topic(header.topic)),
            };
            if judge.is_live(&topic, header.seq) {
                if !kept.places.is_empty() && kept.bytes.len() + scan.frame().len() > room {
                    let full = std::mem::take(&mut kept);
                    rewritten.segments.push(write(shared, full, pace)?);
                }
                kept.push(&header, scan.frame());
            } else {
                rewritten.events_removed += 1;
                let counts = header.flags & FLAG_CLIENT_ID != 0 && topic.is_kept;
                if counts && judge.ids_expire_ms(header.commit_ms).is_some() {
                    let event = FoundEvent { header, position: position as u32, key_hash: None };
                    rewritten.removed_ids.add_event(&event, false);
                }
            }
        }
    }
    if !kept.places.is_empty() {
        rewritten.segments.push(write(shared, kept, pace)?);
    }
    Ok(())
}

/// Names damage that rewriting came across.
fn fault(shared: &Shared, segment: &Segment, damaged: &Found) -> Fault {
    match damaged {
        Found::Frame { header, position, .. } if header.kind == Kind::Event => Fault {
            topic: shared.topic_name(header.topic),
            seq: Some(header.seq),
            ..Fault::new(segment.name(), *position, FaultKind::Event)
        },
        Found::Frame { position, .. } | Found::Gap { position, .. } => {
            Fault::new(segment.name(), *position, FaultKind::Frame)
        }
    }
}

/// Writes one segment and its index.
fn write(shared: &Shared, mut kept: Kept, pace: &mut Pace<'_>) -> Result<Arc<Segment>, Broken> {
    kept.places.sort_unstable_by_key(|place| (place.topic, place.seq));
    // More than that is never needed; on a disk without it the room is worth more to whoever writes the manifest.
    let needed = SEGMENT_DATA_START + kept.bytes.len() as u64 * 2;
    let (number, salt) = {
        let mut housekeeper = shared.housekeeper.lock();
        if housekeeper.is_finished {
            return Err(Broken::Stopped);
        }
        housekeeper.make_room(shared, needed)?;
        (housekeeper.next_number(), shared.storage.random() as u32)
    };
    let name = segment_name(number);
    let file = shared.storage.open(&name, OpenMode::Create)?;
    let mut writer = Writer {
        shared,
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
        let _ = shared.storage.remove(&name);
        let _ = shared.storage.remove(&index_name(number));
    }
    written
}

/// How many frames make up the next batch.
fn batch_length(places: &[KeptPlace]) -> usize {
    let mut bytes = 0;
    let is_over = |place: &KeptPlace| {
        bytes += place.length as usize;
        bytes >= BATCH_BYTES
    };
    places.iter().position(is_over).map_or(places.len(), |last| last + 1)
}

struct Writer<'a> {
    shared: &'a Shared,
    file: &'a dyn StorageFile,
    salt: u32,
    chain: u32,
    batch: u64,
    position: u64,
    unsynced: u64,
    index: Index,
}

impl Writer<'_> {
    fn fill(&mut self, kept: &Kept, pace: &mut Pace<'_>) -> Result<(), Broken> {
        let mut rest = &kept.places[..];
        while !rest.is_empty() {
            let (batch, behind) = rest.split_at(batch_length(rest));
            rest = behind;
            let block = self.batch(kept, batch);
            for piece in block.chunks(PIECE_BYTES as usize) {
                self.file.write_at(piece, self.position)?;
                self.position += piece.len() as u64;
                self.unsynced += piece.len() as u64;
                if self.unsynced >= SYNC_BYTES {
                    self.unsynced = 0;
                    self.file.sync(SyncPoint::Rewritten)?;
                }
                if !pace.rest() {
                    return Err(Broken::Stopped);
                }
            }
        }
        Ok(())
    }

    /// The bytes of a batch; the salt is the new file's, so every checksum is made again.
    fn batch(&mut self, kept: &Kept, places: &[KeptPlace]) -> Vec<u8> {
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
            let found = FoundEvent::new(header, &bytes[start..], position, self.shared.hash);
            self.index.add_event(&found, true);
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

    /// Gives the file its header and makes all of it durable.
    fn finish(&mut self, number: u64) -> io::Result<Arc<Segment>> {
        let sealed = self.position;
        let capacity = sealed.next_multiple_of(PAGE_BYTES).max(SEGMENT_BYTES_MIN);
        let id = SegmentId { number, salt: self.salt, kind: SegmentKind::Rewritten, capacity, life: 0 };
        self.file.write_at(&vec![0; (capacity - sealed) as usize], sealed)?;
        segment::write_header(self.file, &id, self.shared.log_id)?;
        // Before the manifest names it in place of the originals: they are recycled right after.
        self.file.sync(SyncPoint::Rewritten)?;
        self.shared.storage.sync_folder(SyncPoint::RewrittenFolder)?;
        let storage = &self.shared.storage;
        let index = index_file::write(storage, &self.index, number, self.salt, sealed, self.shared.hash)?;
        let index = SegmentIndex::File(Arc::new(index));
        Ok(Arc::new(Segment::new(Arc::clone(storage), id, Some(sealed), index)))
    }
}
