//! The index of a sealed segment, on disk. At open only the head and the filters are read; the tables are read page by page
//! when somebody asks. Everything is checksummed, and whatever is bad is rebuilt from the segment.

use crate::fields::{Fields, PutFields, u32_at, u64_at};
use crate::filter::Filter;
use crate::id::{EventId, KeyedHash};
use crate::index::{Entry, IdEntry, Index, KeyEntry, Summary, TopicSpan};
use crate::layout::{FORMAT_VERSION, INDEX_MAGIC, index_name, index_new_name};
use crate::record::SEQ_MAX;
use crate::storage::{OpenMode, Storage, StorageFile, SyncPoint};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

const HEAD_BYTES: usize = 512;
const SECTIONS: usize = 6;
const PAGE_BYTES: usize = 4096;
const PAGE_HEAD_BYTES: usize = 16;
const ID_BYTES: usize = 32;
const KEY_BYTES: usize = 16;
const DIRECTORY_ROW_BYTES: usize = 56;
const ENTRY_BYTES: usize = 64;

/// Why an index file could not answer.
#[derive(Debug)]
pub(crate) enum IndexError {
    /// A checksum does not match at this position: rebuild the index.
    Damaged {
        position: u64,
    },
    /// Whole, but of another life or length of the segment: rebuild the index.
    Stale,
    Io(io::Error),
}

impl From<io::Error> for IndexError {
    fn from(error: io::Error) -> Self {
        // Removed with its segment, which a reader still holds.
        if error.kind() == io::ErrorKind::NotFound { Self::Stale } else { Self::Io(error) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Section {
    offset: u64,
    length: u64,
    crc: u32,
    count: u32,
}

/// An index file whose head and filters are in memory.
pub(crate) struct IndexFile {
    /// The file is opened for each use: it is asked rarely, and a log has more of them than a process has descriptors.
    storage: Arc<dyn Storage>,
    segment: u64,
    covered: u64,
    summary: Summary,
    id_filter: Filter,
    key_filter: Filter,
    sections: [Section; SECTIONS],
    /// Topics and entries, once somebody asked.
    directory: Mutex<Option<Arc<Directory>>>,
}

const IDS_FILTER: usize = 0;
const KEYS_FILTER: usize = 1;
const DIRECTORY: usize = 2;
const ENTRIES: usize = 3;
const IDS: usize = 4;
const KEYS: usize = 5;

/// Which topics a segment has, and their entries.
#[derive(Debug)]
pub(crate) struct Directory {
    rows: Vec<DirectoryRow>,
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct DirectoryRow {
    topic: u32,
    first_entry: u32,
    entry_count: u32,
}

impl Directory {
    pub(crate) fn entries(&self, topic: u32) -> &[Entry] {
        match self.rows.binary_search_by_key(&topic, |row| row.topic) {
            Ok(at) => {
                let row = self.rows[at];
                &self.entries[row.first_entry as usize..(row.first_entry + row.entry_count) as usize]
            }
            Err(_) => &[],
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.rows.len() * size_of::<DirectoryRow>() + self.entries.len() * size_of::<Entry>()
    }
}

/// The bytes of an index file.
pub(crate) fn encode(index: &Index, segment: u64, salt: u32, covered: u64, hash: KeyedHash) -> Vec<u8> {
    let mut topics: Vec<_> = index.topics.iter().filter(|(_, entries)| !entries.is_empty()).collect();
    topics.sort_unstable_by_key(|(topic, _)| **topic);
    let ids = sorted_by_hash(&index.ids, hash);
    let mut keys: Vec<&KeyEntry> = index.keys.values().collect();
    keys.sort_unstable_by_key(|key| key.hash);

    let mut sections = [Section::default(); SECTIONS];
    let mut file = vec![0; HEAD_BYTES];
    let mut section = |file: &mut Vec<u8>, at: usize, count: usize, body: Vec<u8>| {
        sections[at] = Section {
            offset: file.len() as u64,
            length: body.len() as u64,
            crc: crc32c::crc32c(&body),
            count: count as u32,
        };
        file.extend_from_slice(&body);
    };

    let mut body = Vec::new();
    Filter::build(ids.iter().map(|&(hash, _)| hash)).put(&mut body);
    section(&mut file, IDS_FILTER, ids.len(), body);
    let mut body = Vec::new();
    Filter::build(keys.iter().map(|key| key.hash)).put(&mut body);
    section(&mut file, KEYS_FILTER, keys.len(), body);

    let mut rows = Vec::with_capacity(topics.len() * DIRECTORY_ROW_BYTES);
    let mut entries = Vec::new();
    let mut entry_count = 0_u32;
    for (topic, of_topic) in &topics {
        put_directory_row(&mut rows, **topic, entry_count, of_topic);
        entry_count += of_topic.len() as u32;
        of_topic.iter().for_each(|entry| put_entry(&mut entries, entry));
    }
    section(&mut file, DIRECTORY, topics.len(), rows);
    section(&mut file, ENTRIES, entry_count as usize, entries);
    let body = pages(&ids, ID_BYTES, |page, &(_, at)| {
        let id = &index.ids[at as usize];
        page.put_u128(id.id.as_u128());
        page.put_u64(id.seq);
        page.put_u32(id.topic);
        page.put_u32(id.position);
    });
    section(&mut file, IDS, ids.len(), body);
    let body = pages(&keys, KEY_BYTES, |page, key| {
        page.put_u64(key.hash);
        page.put_u32(key.topic);
        page.put_u32(key.position);
    });
    section(&mut file, KEYS, keys.len(), body);

    let head = encode_head(&index.summary, &sections, segment, salt, covered);
    file[..HEAD_BYTES].copy_from_slice(&head);
    file
}

fn encode_head(
    summary: &Summary,
    sections: &[Section; SECTIONS],
    segment: u64,
    salt: u32,
    covered: u64,
) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(&INDEX_MAGIC);
    head.put_u32(0);
    head.put_u32(FORMAT_VERSION);
    head.put_u64(segment);
    head.put_u32(salt);
    head.put_u32(0);
    head.put_u64(covered);
    head.put_u64(summary.events);
    head.put_i64(summary.first_commit_ms);
    head.put_i64(summary.last_commit_ms);
    head.put_u128(summary.first_own_id.as_u128());
    head.put_u128(summary.last_own_id.as_u128());
    head.put_u128(summary.first_client_id.as_u128());
    head.put_u128(summary.last_client_id.as_u128());
    head.put_u64(summary.unordered_ids);
    for section in sections {
        head.put_u64(section.offset);
        head.put_u64(section.length);
        head.put_u32(section.crc);
        head.put_u32(section.count);
    }
    head.resize(HEAD_BYTES, 0);
    let crc = crc32c::crc32c(&head[12..]);
    head[8..12].copy_from_slice(&crc.to_le_bytes());
    head
}

fn put_directory_row(into: &mut Vec<u8>, topic: u32, first_entry: u32, entries: &[Entry]) {
    into.put_u32(topic);
    into.put_u32(entries.len() as u32);
    into.put_u32(first_entry);
    into.put_u32(TopicSpan::of(topic, entries).map_or(0, |span| span.bytes));
    into.put_u64(entries.first().map_or(0, |entry| entry.first_seq));
    into.put_u64(entries.last().map_or(0, |entry| entry.last_seq));
    into.put_i64(entries.iter().map(|entry| entry.min_ts).min().unwrap_or(0));
    into.put_i64(entries.iter().map(|entry| entry.max_ts).max().unwrap_or(0));
    into.put_u64(entries.iter().map(|entry| u64::from(entry.count)).sum());
}

fn put_entry(into: &mut Vec<u8>, entry: &Entry) {
    into.put_u64(entry.first_seq);
    into.put_u64(entry.last_seq);
    into.put_i64(entry.min_ts);
    into.put_i64(entry.max_ts);
    into.put_u128(entry.first_own_id.as_u128());
    into.put_u32(entry.position);
    into.put_u32(entry.end);
    into.put_u32(entry.count);
    into.put_u32(entry.bytes);
}

/// The hashes of ids with their places, in order of the hashes. Hashes are spread evenly, so they go into small heaps first;
/// between heaps the processor is given to whoever waits for it. (In one go this would hold up commits on a small machine.)
fn sorted_by_hash(ids: &[IdEntry], hash: KeyedHash) -> Vec<(u64, u32)> {
    const HEAPS: usize = 256;
    let heap_of = |hash: u64| (hash >> 56) as usize;
    let hashes: Vec<u64> = ids.iter().map(|id| hash.of_id(id.topic, id.id)).collect();
    let mut ends = [0; HEAPS + 1];
    hashes.iter().for_each(|&hash| ends[heap_of(hash) + 1] += 1);
    for heap in 0..HEAPS {
        ends[heap + 1] += ends[heap];
    }
    let starts = ends;
    let mut sorted = vec![(0, 0); ids.len()];
    for (at, &hash) in hashes.iter().enumerate() {
        let place = &mut ends[heap_of(hash)];
        sorted[*place] = (hash, at as u32);
        *place += 1;
        breathe(at);
    }
    for heap in 0..HEAPS {
        sorted[starts[heap]..starts[heap + 1]].sort_unstable();
        std::thread::yield_now();
    }
    sorted
}

/// Gives the processor away once in a few thousand items.
fn breathe(at: usize) {
    if at % 4096 == 0 {
        std::thread::yield_now();
    }
}

/// Lays sorted items out in pages that each carry their own checksum, so that a look-up checks what it reads.
fn pages<T>(items: &[T], item_bytes: usize, put: impl Fn(&mut Vec<u8>, &T)) -> Vec<u8> {
    let per_page = (PAGE_BYTES - PAGE_HEAD_BYTES) / item_bytes;
    let mut all = Vec::with_capacity(items.len().div_ceil(per_page) * PAGE_BYTES);
    for chunk in items.chunks(per_page) {
        let start = all.len();
        all.put_u32(0);
        all.put_u32(chunk.len() as u32);
        all.put_u64(0);
        chunk.iter().for_each(|item| put(&mut all, item));
        all.resize(start + PAGE_BYTES, 0);
        let crc = crc32c::crc32c(&all[start + 4..]);
        all[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        breathe(start / PAGE_BYTES * 64);
    }
    all
}

fn write_in_pieces(file: &dyn StorageFile, bytes: &[u8]) -> io::Result<()> {
    const PIECE_BYTES: usize = 256 * 1024;
    for (at, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
        file.write_at(piece, (at * PIECE_BYTES) as u64)?;
        std::thread::yield_now();
    }
    Ok(())
}

/// Writes the index file of a segment and opens it.
pub(crate) fn write(
    storage: &Arc<dyn Storage>,
    index: &Index,
    segment: u64,
    salt: u32,
    covered: u64,
    hash: KeyedHash,
) -> io::Result<IndexFile> {
    write_synced(storage, index, segment, salt, covered, hash, SyncPoint::Index)
}

/// Writes the index of ids whose events are gone. Its name is durable when the folder is synced.
pub(crate) fn write_kept(
    storage: &Arc<dyn Storage>,
    index: &Index,
    number: u64,
    salt: u32,
    hash: KeyedHash,
) -> io::Result<IndexFile> {
    write_synced(storage, index, number, salt, 0, hash, SyncPoint::KeptIndex)
}

fn write_synced(
    storage: &Arc<dyn Storage>,
    index: &Index,
    segment: u64,
    salt: u32,
    covered: u64,
    hash: KeyedHash,
    point: SyncPoint,
) -> io::Result<IndexFile> {
    let bytes = encode(index, segment, salt, covered, hash);
    let name = index_name(segment);
    let new_name = index_new_name(segment);
    match storage.remove(&new_name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = storage.open(&new_name, OpenMode::Create)?;
    // Synced before it gets its name: under that name a bad index is damage, and never the remains of a power cut.
    let written = write_in_pieces(&*file, &bytes).and_then(|()| file.sync(point));
    if let Err(error) = written {
        drop(file);
        let _ = storage.remove(&new_name);
        return Err(error);
    }
    storage.rename(&new_name, &name)?;
    // From memory: a read error here must not be taken for a failed write.
    let opened = IndexFile::from_file(storage, &Encoded(&bytes), segment, salt, covered);
    Ok(opened.unwrap_or_else(|error| unreachable!("an index that was just encoded is whole: {error:?}")))
}

/// The bytes of an index file that are still in memory.
struct Encoded<'a>(&'a [u8]);

impl StorageFile for Encoded<'_> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let start = usize::try_from(position).map_or(self.0.len(), |start| start.min(self.0.len()));
        let read = buffer.len().min(self.0.len() - start);
        buffer[..read].copy_from_slice(&self.0[start..start + read]);
        Ok(read)
    }

    fn write_at(&self, _bytes: &[u8], _position: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self, _point: SyncPoint) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl IndexFile {
    /// Opens the index file of a segment, if it is the right one and whole as far as it is read.
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        segment: u64,
        salt: u32,
        covered: u64,
    ) -> Result<Self, IndexError> {
        let file = storage.open(&index_name(segment), OpenMode::Read)?;
        Self::from_file(storage, &*file, segment, salt, covered)
    }

    /// Opens an index that is kept for its ids only.
    pub(crate) fn open_for_ids(
        storage: &Arc<dyn Storage>,
        number: u64,
        salt: u32,
        covered: u64,
    ) -> Result<Self, IndexError> {
        Ok(Self { key_filter: Filter::default(), ..Self::open(storage, number, salt, covered)? })
    }

    fn file(&self) -> Result<Arc<dyn StorageFile>, IndexError> {
        Ok(self.storage.open(&index_name(self.segment), OpenMode::Read)?)
    }

    fn from_file(
        storage: &Arc<dyn Storage>,
        file: &dyn StorageFile,
        segment: u64,
        salt: u32,
        covered: u64,
    ) -> Result<Self, IndexError> {
        let mut head = [0; HEAD_BYTES];
        let read = file.read_at(&mut head, 0)?;
        let damaged = IndexError::Damaged { position: 0 };
        if read < HEAD_BYTES || head[..8] != INDEX_MAGIC || u32_at(&head, 8) != crc32c::crc32c(&head[12..]) {
            return Err(damaged);
        }
        if u32_at(&head, 12) != FORMAT_VERSION {
            // Of a newer build: made again for this one.
            return Err(IndexError::Stale);
        }
        let mut fields = Fields::new(&head[16..]);
        let Some((owner, summary, sections)) = read_head(&mut fields) else { return Err(damaged) };
        if owner != (segment, salt, covered) {
            return Err(IndexError::Stale);
        }
        let id_filter = read_filter(file, &sections[IDS_FILTER])?;
        let key_filter = read_filter(file, &sections[KEYS_FILTER])?;
        let (storage, directory) = (Arc::clone(storage), Mutex::new(None));
        Ok(Self { storage, segment, covered, summary, id_filter, key_filter, sections, directory })
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.summary
    }

    /// What stays in memory for this segment.
    pub(crate) fn memory_bytes(&self) -> usize {
        let filters = self.id_filter.memory_bytes() + self.key_filter.memory_bytes();
        size_of::<Self>() + filters + self.directory_bytes()
    }

    /// What of it can be read again.
    pub(crate) fn directory_bytes(&self) -> usize {
        self.directory.lock().as_ref().map_or(0, |directory| directory.memory_bytes())
    }

    /// Forgets what can be read again; answers the bytes that became free.
    pub(crate) fn forget_directory(&self) -> usize {
        self.directory.lock().take().map_or(0, |directory| directory.memory_bytes())
    }

    pub(crate) fn directory(&self) -> Result<Arc<Directory>, IndexError> {
        let mut cached = self.directory.lock();
        if let Some(directory) = &*cached {
            return Ok(Arc::clone(directory));
        }
        let directory = Arc::new(self.read_directory()?);
        *cached = Some(Arc::clone(&directory));
        Ok(directory)
    }

    fn read_directory(&self) -> Result<Directory, IndexError> {
        let file = self.file()?;
        let rows = read_section(&*file, &self.sections[DIRECTORY])?;
        let entries = read_section(&*file, &self.sections[ENTRIES])?;
        let damaged = || IndexError::Damaged { position: self.sections[DIRECTORY].offset };
        let entries: Vec<Entry> = entries.chunks_exact(ENTRY_BYTES).map(entry_from).collect();
        let is_sound = |entry: &Entry| {
            let is_inside = entry.position < entry.end && u64::from(entry.end) <= self.covered;
            is_inside && entry.first_seq <= entry.last_seq && entry.last_seq <= SEQ_MAX
        };
        if !entries.iter().all(is_sound) {
            return Err(damaged());
        }
        let mut parsed = Vec::with_capacity(rows.len() / DIRECTORY_ROW_BYTES);
        for row in rows.chunks_exact(DIRECTORY_ROW_BYTES) {
            let row = DirectoryRow {
                topic: u32_at(row, 0),
                entry_count: u32_at(row, 4),
                first_entry: u32_at(row, 8),
            };
            let end = row.first_entry.checked_add(row.entry_count).ok_or_else(damaged)?;
            if end as usize > entries.len() {
                return Err(damaged());
            }
            parsed.push(row);
        }
        Ok(Directory { rows: parsed, entries })
    }

    /// What the segment has of each topic. Reads the topics and not their entries.
    pub(crate) fn topics(&self) -> Result<Vec<TopicSpan>, IndexError> {
        let section = &self.sections[DIRECTORY];
        let rows = read_section(&*self.file()?, section)?;
        let spans: Vec<TopicSpan> = rows.chunks_exact(DIRECTORY_ROW_BYTES).map(span_from).collect();
        if spans.iter().any(|span| span.first_seq > span.last_seq || span.last_seq > SEQ_MAX) {
            return Err(IndexError::Damaged { position: section.offset });
        }
        Ok(spans)
    }

    /// How many publishers' ids it has.
    pub(crate) fn id_count(&self) -> u64 {
        u64::from(self.sections[IDS].count)
    }

    /// Visits the publishers' ids until `visit` answers false.
    pub(crate) fn for_each_id(&self, mut visit: impl FnMut(IdEntry) -> bool) -> Result<(), IndexError> {
        let file = self.file()?;
        let mut page = [0; PAGE_BYTES];
        for number in 0..self.page_count(IDS) {
            for item in self.read_page(&*file, IDS, number, ID_BYTES, &mut page)?.chunks_exact(ID_BYTES) {
                let (seq, topic, position) = (u64_at(item, 16), u32_at(item, 24), u32_at(item, 28));
                if !visit(IdEntry { id: id_from(item), seq, topic, position }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether a publisher's id with this hash may be in here.
    pub(crate) fn may_contain_id(&self, hash: u64) -> bool {
        self.id_filter.may_contain(hash)
    }

    /// Looks up an id that a publisher chose; ask the filter first.
    pub(crate) fn find_id(
        &self,
        topic: u32,
        id: EventId,
        hash: u64,
        hasher: KeyedHash,
    ) -> Result<Option<IdEntry>, IndexError> {
        let hash_of = |item: &[u8]| hasher.of_id(u32_at(item, 24), id_from(item));
        let mut found = None;
        self.search(IDS, ID_BYTES, hash, hash_of, |item| {
            if id_from(item) == id && u32_at(item, 24) == topic {
                let entry = IdEntry { id, seq: u64_at(item, 16), topic, position: u32_at(item, 28) };
                found.get_or_insert(entry);
            }
        })?;
        Ok(found)
    }

    /// Looks up the newest position of a key's hash; the caller compares the key itself.
    pub(crate) fn find_key(&self, hash: u64) -> Result<Option<KeyEntry>, IndexError> {
        if !self.key_filter.may_contain(hash) {
            return Ok(None);
        }
        let mut found = None;
        self.search(
            KEYS,
            KEY_BYTES,
            hash,
            |item| u64_at(item, 0),
            |item| {
                found = Some(KeyEntry { hash, topic: u32_at(item, 8), position: u32_at(item, 12) });
            },
        )?;
        Ok(found)
    }

    /// Checks every page and section; for `verify`.
    pub(crate) fn check(&self) -> Result<(), IndexError> {
        self.read_directory()?;
        let file = self.file()?;
        let mut page = [0; PAGE_BYTES];
        for (section, item_bytes) in [(IDS, ID_BYTES), (KEYS, KEY_BYTES)] {
            for number in 0..self.page_count(section) {
                self.read_page(&*file, section, number, item_bytes, &mut page)?;
            }
        }
        Ok(())
    }

    fn page_count(&self, section: usize) -> u64 {
        self.sections[section].length / PAGE_BYTES as u64
    }

    fn read_page<'a>(
        &self,
        file: &dyn StorageFile,
        section: usize,
        number: u64,
        item_bytes: usize,
        page: &'a mut [u8; PAGE_BYTES],
    ) -> Result<&'a [u8], IndexError> {
        let position = self.sections[section].offset + number * PAGE_BYTES as u64;
        let read = file.read_at(page, position)?;
        let count = u32_at(page, 4) as usize;
        let end = PAGE_HEAD_BYTES + count.min(PAGE_BYTES) * item_bytes;
        if read < PAGE_BYTES || u32_at(page, 0) != crc32c::crc32c(&page[4..]) || end > PAGE_BYTES {
            return Err(IndexError::Damaged { position });
        }
        Ok(&page[PAGE_HEAD_BYTES..end])
    }

    /// Visits the items with a hash. Hashes are spread evenly, so the first guess is a page or two off at most.
    fn search(
        &self,
        section: usize,
        item_bytes: usize,
        hash: u64,
        hash_of: impl Fn(&[u8]) -> u64,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<(), IndexError> {
        let file = self.file()?;
        let pages = self.page_count(section);
        let mut page = [0; PAGE_BYTES];
        let (mut low, mut high) = (0, pages);
        let mut guess = ((u128::from(hash) * u128::from(pages)) >> 64) as u64;
        // Invariant: an item with this hash can only start in pages low..high.
        while low < high {
            guess = guess.clamp(low, high - 1);
            let items = self.read_page(&*file, section, guess, item_bytes, &mut page)?;
            if items.is_empty() {
                return Ok(());
            }
            let first = hash_of(&items[..item_bytes]);
            let last = hash_of(&items[items.len() - item_bytes..]);
            if hash < first || (hash == first && guess > low) {
                if hash == first {
                    items.chunks_exact(item_bytes).filter(|item| hash_of(item) == hash).for_each(&mut visit);
                }
                high = guess;
                guess = guess.saturating_sub(1);
            } else if hash > last {
                low = guess + 1;
                guess += 1;
            } else {
                items.chunks_exact(item_bytes).filter(|item| hash_of(item) == hash).for_each(&mut visit);
                return Ok(());
            }
        }
        Ok(())
    }
}

fn id_from(item: &[u8]) -> EventId {
    EventId::from_u128(u128::from_le_bytes(item[..16].try_into().expect("sixteen bytes")))
}

fn span_from(row: &[u8]) -> TopicSpan {
    TopicSpan {
        topic: u32_at(row, 0),
        first_seq: u64_at(row, 16),
        last_seq: u64_at(row, 24),
        events: u64_at(row, 48),
        bytes: u32_at(row, 12),
    }
}

fn entry_from(row: &[u8]) -> Entry {
    Entry {
        first_seq: u64_at(row, 0),
        last_seq: u64_at(row, 8),
        min_ts: u64_at(row, 16) as i64,
        max_ts: u64_at(row, 24) as i64,
        first_own_id: EventId::from_u128(u128::from_le_bytes(row[32..48].try_into().expect("sixteen bytes"))),
        position: u32_at(row, 48),
        end: u32_at(row, 52),
        count: u32_at(row, 56),
        bytes: u32_at(row, 60),
    }
}

#[allow(clippy::type_complexity, reason = "three things that are only taken apart at the one call")]
fn read_head(fields: &mut Fields<'_>) -> Option<((u64, u32, u64), Summary, [Section; SECTIONS])> {
    let segment = fields.u64()?;
    let salt = fields.u32()?;
    fields.u32()?;
    let covered = fields.u64()?;
    let summary = Summary {
        events: fields.u64()?,
        first_commit_ms: fields.i64()?,
        last_commit_ms: fields.i64()?,
        first_own_id: EventId::from_u128(fields.u128()?),
        last_own_id: EventId::from_u128(fields.u128()?),
        first_client_id: EventId::from_u128(fields.u128()?),
        last_client_id: EventId::from_u128(fields.u128()?),
        unordered_ids: fields.u64()?,
    };
    let mut sections = [Section::default(); SECTIONS];
    for section in &mut sections {
        *section = Section {
            offset: fields.u64()?,
            length: fields.u64()?,
            crc: fields.u32()?,
            count: fields.u32()?,
        };
    }
    Some(((segment, salt, covered), summary, sections))
}

fn read_section(file: &dyn StorageFile, section: &Section) -> Result<Vec<u8>, IndexError> {
    let damaged = || IndexError::Damaged { position: section.offset };
    if section.offset.checked_add(section.length).is_none_or(|end| end > u64::from(u32::MAX)) {
        return Err(damaged());
    }
    let mut bytes = vec![0; section.length as usize];
    let read = file.read_at(&mut bytes, section.offset)?;
    if read < bytes.len() || crc32c::crc32c(&bytes) != section.crc {
        return Err(damaged());
    }
    Ok(bytes)
}

fn read_filter(file: &dyn StorageFile, section: &Section) -> Result<Filter, IndexError> {
    Filter::read(&read_section(file, section)?).ok_or(IndexError::Damaged { position: section.offset })
}

/// What an index file holds, for `inspect`.
pub(crate) fn describe(bytes: &[u8], out: &mut dyn io::Write) -> io::Result<()> {
    let head = bytes.get(..HEAD_BYTES).filter(|head| u32_at(head, 8) == crc32c::crc32c(&head[12..]));
    let Some(((segment, salt, covered), summary, sections)) =
        head.and_then(|head| read_head(&mut Fields::new(&head[16..])))
    else {
        return writeln!(out, "an index whose head does not check");
    };
    writeln!(out, "index of segment {segment:016x}, salt {salt:08x}, up to position {covered}")?;
    writeln!(
        out,
        "{} events, committed {} to {}",
        summary.events, summary.first_commit_ms, summary.last_commit_ms
    )?;
    writeln!(out, "own ids {} to {}", summary.first_own_id, summary.last_own_id)?;
    writeln!(out, "publishers' ids {} to {}", summary.first_client_id, summary.last_client_id)?;
    writeln!(out, "and {} that are not time-ordered", summary.unordered_ids)?;
    let names = ["id filter", "key filter", "topics", "entries", "ids", "keys"];
    for (name, section) in names.iter().zip(&sections) {
        writeln!(out, "{name}: {} in {} bytes at {}", section.count, section.length, section.offset)?;
    }
    Ok(())
}
