//! The index of one segment in memory. It maps seq, time, id and key to a position. The committer extends it with each
//! batch.
//!
//! Each entry covers the events of one topic in about 16 KiB of the segment. When the segment is sealed, the index is
//! written to an index file (`index_file.rs`). A missing or damaged index file is rebuilt from the segment.

use crate::event_id::EventId;
use crate::keyed_hash::KeyedHash;
use crate::number_map::NumberMap;
use crate::record::{FLAG_CLIENT_ID, FLAG_KEY, HEADER_BYTES, Header, Kind};

/// A record is added to the last entry of its topic if it starts less than this far after the start of the entry. When
/// a run is committed, its entries are merged in the same way with those of earlier runs. So the last record of an
/// entry may start up to twice as far after the start of the entry.
pub(crate) const ENTRY_SPAN_BYTES: u32 = 16 * 1024;

/// Records of one topic that are close together. Records of other topics may be between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) min_ts: i64,
    pub(crate) max_ts: i64,
    /// The first server id in the entry; zero if there is none.
    pub(crate) first_server_id: EventId,
    /// Where the first record starts in the segment.
    pub(crate) position: u32,
    /// Where the last record ends in the segment.
    pub(crate) end: u32,
    /// The number of records.
    pub(crate) count: u32,
    /// The size of the records, without the records of other topics between them; zero if unknown.
    pub(crate) bytes: u32,
}

impl Entry {
    /// The size of the records, or an upper bound of it.
    pub(crate) fn frame_bytes(&self) -> u64 {
        match self.bytes {
            0 => u64::from(self.end.saturating_sub(self.position)),
            bytes => u64::from(bytes),
        }
    }
}

/// The events of one topic in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicSpan {
    pub(crate) topic: u32,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    pub(crate) events: u64,
    /// The size of the records; zero if unknown.
    pub(crate) bytes: u32,
}

impl TopicSpan {
    pub(crate) fn of(topic: u32, entries: &[Entry]) -> Option<Self> {
        let (first, last) = (entries.first()?, entries.last()?);
        let is_known = entries.iter().all(|entry| entry.bytes > 0);
        let bytes = entries.iter().fold(0_u32, |sum, entry| sum.saturating_add(entry.bytes));
        Some(Self {
            topic,
            first_seq: first.first_seq,
            last_seq: last.last_seq,
            events: entries.iter().map(|entry| u64::from(entry.count)).sum(),
            bytes: if is_known { bytes } else { 0 },
        })
    }
}

/// An id that a publisher chose, and its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdEntry {
    pub(crate) id: EventId,
    pub(crate) seq: u64,
    pub(crate) topic: u32,
    /// Where the record starts in the segment.
    pub(crate) position: u32,
}

/// The newest record of a key in this segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    /// The hash of topic and key.
    pub(crate) hash: u64,
    pub(crate) topic: u32,
    /// Where the record starts in the segment.
    pub(crate) position: u32,
}

/// Totals and ranges over a whole segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) events: u64,
    pub(crate) first_commit_ms: i64,
    pub(crate) last_commit_ms: i64,
    /// The lowest server id; higher than `last_server_id` if there is none.
    pub(crate) first_server_id: EventId,
    /// The highest server id.
    pub(crate) last_server_id: EventId,
    /// The lowest time-ordered id (UUIDv7) that a publisher chose; higher than `last_client_id` if there is none.
    pub(crate) first_client_id: EventId,
    /// The highest time-ordered id that a publisher chose.
    pub(crate) last_client_id: EventId,
    /// The number of ids chosen by publishers that are not time-ordered.
    pub(crate) unordered_ids: u64,
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            events: 0,
            first_commit_ms: i64::MAX,
            last_commit_ms: i64::MIN,
            first_server_id: EventId::from_u128(u128::MAX),
            last_server_id: EventId::default(),
            first_client_id: EventId::from_u128(u128::MAX),
            last_client_id: EventId::default(),
            unordered_ids: 0,
        }
    }
}

impl Summary {
    fn add(&mut self, header: &Header) {
        self.events += 1;
        self.first_commit_ms = self.first_commit_ms.min(header.commit_ms);
        self.last_commit_ms = self.last_commit_ms.max(header.commit_ms);
        if header.flags & FLAG_CLIENT_ID == 0 {
            self.first_server_id = self.first_server_id.min(header.id);
            self.last_server_id = self.last_server_id.max(header.id);
        } else {
            self.add_client_id(header.id);
        }
    }

    /// Adds an id that a publisher chose, without counting its event.
    pub(crate) fn add_client_id(&mut self, id: EventId) {
        if id.is_time_ordered() {
            self.first_client_id = self.first_client_id.min(id);
            self.last_client_id = self.last_client_id.max(id);
        } else {
            self.unordered_ids += 1;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.events += other.events;
        self.first_commit_ms = self.first_commit_ms.min(other.first_commit_ms);
        self.last_commit_ms = self.last_commit_ms.max(other.last_commit_ms);
        self.first_server_id = self.first_server_id.min(other.first_server_id);
        self.last_server_id = self.last_server_id.max(other.last_server_id);
        self.first_client_id = self.first_client_id.min(other.first_client_id);
        self.last_client_id = self.last_client_id.max(other.last_client_id);
        self.unordered_ids += other.unordered_ids;
    }

    /// Whether the segment may contain this server id.
    pub(crate) fn may_have_server_id(&self, id: EventId) -> bool {
        self.first_server_id <= id && id <= self.last_server_id
    }
}

/// The part of the index for one run of a batch. Positions are relative to the start of the run, because the position of
/// the batch is not known yet.
#[derive(Debug, Default)]
pub(crate) struct RunIndex {
    pub(crate) entries: Vec<Entry>,
    pub(crate) ids: Vec<IdEntry>,
    pub(crate) keys: Vec<KeyEntry>,
    pub(crate) summary: Summary,
}

impl RunIndex {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.ids.clear();
        self.keys.clear();
        self.summary = Summary::default();
    }

    /// Adds an event frame at `position` of the run. `key` is empty if the event has none.
    pub(crate) fn add(&mut self, header: &Header, position: u32, key: &[u8], hash: KeyedHash) {
        self.summary.add(header);
        add_to_entries(&mut self.entries, entry_of(header, position));
        if header.flags & FLAG_CLIENT_ID != 0 {
            self.ids.push(IdEntry { id: header.id, seq: header.seq, topic: header.topic, position });
        }
        if header.flags & FLAG_KEY != 0 {
            self.keys.push(KeyEntry { hash: hash.of_key(header.topic, key), topic: header.topic, position });
        }
    }
}

/// The entry of a single event.
fn entry_of(header: &Header, position: u32) -> Entry {
    debug_assert_eq!(header.kind, Kind::Event);
    let server_id = if header.flags & FLAG_CLIENT_ID == 0 { header.id } else { EventId::default() };
    Entry {
        first_seq: header.seq,
        last_seq: header.seq,
        min_ts: header.ts,
        max_ts: header.ts,
        first_server_id: server_id,
        position,
        end: position + header.frame_length() as u32,
        count: 1,
        bytes: header.frame_length() as u32,
    }
}

/// Appends an entry, or merges it into the last one if it starts within the span of the last one.
fn add_to_entries(entries: &mut Vec<Entry>, entry: Entry) {
    match entries.last_mut() {
        Some(last) if entry.position - last.position < ENTRY_SPAN_BYTES => {
            last.last_seq = entry.last_seq;
            last.min_ts = last.min_ts.min(entry.min_ts);
            last.max_ts = last.max_ts.max(entry.max_ts);
            last.end = entry.end;
            last.count += entry.count;
            last.bytes =
                if last.bytes == 0 || entry.bytes == 0 { 0 } else { last.bytes.saturating_add(entry.bytes) };
            if last.first_server_id == EventId::default() {
                last.first_server_id = entry.first_server_id;
            }
        }
        _ => entries.push(entry),
    }
}

/// An event frame found by a scan of a segment.
pub(crate) struct FoundEvent {
    pub(crate) header: Header,
    pub(crate) position: u32,
    pub(crate) key_hash: Option<u64>,
}

impl FoundEvent {
    pub(crate) fn new(header: Header, frame: &[u8], position: u64, hash: KeyedHash) -> Self {
        let key = &frame[HEADER_BYTES..HEADER_BYTES + header.key_length as usize];
        let key_hash = (header.flags & FLAG_KEY != 0).then(|| hash.of_key(header.topic, key));
        Self { header, position: position as u32, key_hash }
    }
}

/// A run that contains damaged records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoveredRun {
    pub(crate) topic: u32,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// Where the run starts in the segment.
    pub(crate) start: u64,
    /// Where the run ends in the segment.
    pub(crate) end: u64,
}

/// The index of one segment, in memory. It can be extended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// The entries of each topic, in seq order.
    pub(crate) topics: NumberMap<u32, Vec<Entry>>,
    pub(crate) ids: Vec<IdEntry>,
    /// The keys, by hash.
    pub(crate) keys: NumberMap<u64, KeyEntry>,
    pub(crate) summary: Summary,
    /// Damaged parts of the segment, found while the index was rebuilt from it. Not stored in the index file.
    pub(crate) damage: Vec<std::ops::Range<u64>>,
}

impl Index {
    /// Adds a run that was committed at position `start` of the segment.
    pub(crate) fn add_run(&mut self, topic: u32, run: &RunIndex, start: u32) {
        let entries = self.topics.entry(topic).or_default();
        for entry in &run.entries {
            let placed = Entry { position: entry.position + start, end: entry.end + start, ..*entry };
            add_to_entries(entries, placed);
        }
        self.ids.extend(run.ids.iter().map(|id| IdEntry { position: id.position + start, ..*id }));
        for key in &run.keys {
            self.keys.insert(key.hash, KeyEntry { position: key.position + start, ..*key });
        }
        self.summary.merge(&run.summary);
    }

    /// Adds an event found in the segment. `with_entry` is false if one entry covers the event's whole run
    /// ([`cover_run`](Self::cover_run)), or if the index is only for ids.
    pub(crate) fn add_event(&mut self, event: &FoundEvent, with_entry: bool) {
        let header = &event.header;
        self.summary.add(header);
        let position = event.position;
        if with_entry {
            add_to_entries(self.topics.entry(header.topic).or_default(), entry_of(header, position));
        }
        if header.flags & FLAG_CLIENT_ID != 0 {
            self.ids.push(IdEntry { id: header.id, seq: header.seq, topic: header.topic, position });
        }
        if let Some(hash) = event.key_hash {
            self.keys.insert(hash, KeyEntry { hash, topic: header.topic, position });
        }
    }

    /// Adds an entry for a whole run although some of its records are damaged. A reader then finds and reports the damage,
    /// instead of taking the seqs for cleaned.
    pub(crate) fn cover_run(&mut self, run: &CoveredRun, first_server_id: EventId) {
        let covered = Entry {
            first_seq: run.first_seq,
            last_seq: run.last_seq,
            min_ts: i64::MIN,
            max_ts: i64::MAX,
            first_server_id,
            position: run.start as u32,
            end: run.end as u32,
            count: u32::try_from(run.last_seq - run.first_seq + 1).unwrap_or(u32::MAX),
            bytes: (run.end - run.start) as u32,
        };
        add_to_entries(self.topics.entry(run.topic).or_default(), covered);
    }

    pub(crate) fn entries(&self, topic: u32) -> &[Entry] {
        self.topics.get(&topic).map_or(&[], Vec::as_slice)
    }

    /// The span of each topic, in no particular order.
    pub(crate) fn spans(&self) -> Vec<TopicSpan> {
        self.topics.iter().filter_map(|(&topic, entries)| TopicSpan::of(topic, entries)).collect()
    }
}

/// Searches in the entries of one topic, which are in seq order.
pub(crate) trait EntrySearch {
    /// The first entry that ends at `seq` or later; `None` if there is none.
    fn reaching(&self, seq: u64) -> Option<Entry>;
    /// The only entry that can contain this server id (an id that the log generated); `None` if no entry can.
    fn for_server_id(&self, id: EventId) -> Option<Entry>;
}

impl EntrySearch for [Entry] {
    fn reaching(&self, seq: u64) -> Option<Entry> {
        self.get(self.partition_point(|entry| entry.last_seq < seq)).copied()
    }

    fn for_server_id(&self, id: EventId) -> Option<Entry> {
        // Server ids increase with the seq. An entry whose ids were all chosen by publishers has no server id: use an
        // earlier entry instead.
        let mut low = 0;
        let mut high = self.len();
        let mut best = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(probe) = (low..=middle).rev().find(|&at| self[at].first_server_id != EventId::default())
            else {
                low = middle + 1;
                continue;
            };
            if self[probe].first_server_id <= id {
                best = Some(self[probe]);
                low = middle + 1;
            } else {
                high = probe;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(first_seq: u64, own: u128) -> Entry {
        Entry {
            first_seq,
            last_seq: first_seq + 9,
            min_ts: 0,
            max_ts: 0,
            first_server_id: EventId::from_u128(own),
            position: 0,
            end: 0,
            count: 10,
            bytes: 0,
        }
    }

    #[test]
    fn a_seq_is_found_in_its_entry_or_the_next() {
        let entries = [entry(1, 0), entry(11, 0), entry(31, 0)];
        let first = |seq| entries.reaching(seq).map(|entry| entry.first_seq);
        assert_eq!(
            [first(1), first(10), first(11), first(25), first(40), first(41)],
            [Some(1), Some(1), Some(11), Some(31), Some(31), None]
        );
    }

    #[test]
    fn a_server_id_is_found_between_entries_without_any() {
        let entries = [entry(1, 0), entry(11, 100), entry(21, 0), entry(31, 0), entry(41, 300), entry(51, 0)];
        let first = |id| entries.for_server_id(EventId::from_u128(id)).map(|entry| entry.first_seq);
        assert_eq!(
            [first(50), first(100), first(299), first(300), first(999)],
            [None, Some(11), Some(11), Some(41), Some(41)]
        );
        let none: [Entry; 3] = [entry(1, 0), entry(11, 0), entry(21, 0)];
        assert_eq!(none.for_server_id(EventId::from_u128(5)), None);
    }

    #[test]
    fn small_runs_of_a_topic_share_an_entry_until_its_span_is_full() {
        let hash = KeyedHash::new([1, 2]);
        let mut index = Index::default();
        let mut header = Header {
            kind: Kind::Event,
            flags: 0,
            key_length: 0,
            body_length: 936,
            body_crc: 0,
            topic: 3,
            seq: 0,
            commit_ms: 5,
            ts: 0,
            id: EventId::from_u128(1),
        };
        let frame = vec![0; 1000];
        for seq in 1..=40 {
            header.seq = seq;
            header.ts = -(seq as i64);
            index.add_event(&FoundEvent::new(header, &frame, 4096 + 1000 * (seq - 1), hash), true);
        }
        let entries = index.entries(3);
        assert_eq!(entries.iter().map(|entry| entry.count).collect::<Vec<_>>(), [17, 17, 6]);
        assert_eq!((entries[1].first_seq, entries[1].last_seq), (18, 34));
        assert_eq!((entries[1].min_ts, entries[1].max_ts), (-34, -18));
        assert_eq!(entries[1].end, 4096 + 34_000);
        assert_eq!(entries[1].bytes, 17_000);
    }
}
