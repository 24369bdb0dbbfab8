//! Reads the index file of a sealed segment. Opening it reads only the head and the filters; the tables are read page by
//! page on lookup. Everything is checksummed, and a damaged index is rebuilt from the segment.

use crate::bloom_filter::Filter;
use crate::description::Description;
use crate::event_id::EventId;
use crate::fields::{Fields, u32_at, u64_at};
use crate::index::{Entry, IdEntry, KeyEntry, Summary, TopicSpan};
use crate::index_file_format::{
    DIRECTORY, DIRECTORY_ROW_BYTES, ENTRIES, ENTRY_BYTES, HEAD_BYTES, ID_ROW_BYTES, IDS, IDS_FILTER,
    IndexHead, KEY_ROW_BYTES, KEYS, KEYS_FILTER, PAGE_BYTES, PAGE_HEAD_BYTES, SECTIONS, Section, entry_from,
    id_from, read_head, span_from,
};
use crate::keyed_hash::KeyedHash;
use crate::layout::{FORMAT_VERSION, INDEX_MAGIC, index_name};
use crate::record::SEQ_MAX;
use crate::storage::{OpenMode, Storage, StorageFile};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Why an index file could not be used.
#[derive(Debug)]
pub(crate) enum IndexError {
    /// The file is damaged at this position: rebuild the index.
    Damaged {
        position: u64,
    },
    /// The file is missing, or intact but written for an earlier use of the segment's file, for another length, or by
    /// another version: rebuild the index.
    Stale,
    Io(io::Error),
}

impl From<io::Error> for IndexError {
    fn from(error: io::Error) -> Self {
        // A missing file counts as stale: it was never written, or it was removed with its segment, which a reader
        // still uses.
        if error.kind() == io::ErrorKind::NotFound { Self::Stale } else { Self::Io(error) }
    }
}

/// An index file whose head and filters are in memory.
pub(crate) struct IndexFile {
    /// The file is opened for each use: uses are rare, and a log may have more index files than a process may have open.
    storage: Arc<dyn Storage>,
    /// The number of the segment.
    segment: u64,
    /// The indexed length of the segment.
    covered: u64,
    summary: Summary,
    id_filter: Filter,
    key_filter: Filter,
    sections: [Section; SECTIONS],
    /// Topics and entries, cached after the first use.
    directory: Mutex<Option<Arc<Directory>>>,
}

/// The topics of a segment and their entries.
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

impl IndexFile {
    /// Opens the index file of a segment. Fails if its head or filters are damaged, or if it was written for an earlier
    /// use of the segment's file.
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

    pub(crate) fn from_file(
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
            // Written by a newer build: rebuild it in this version.
            return Err(IndexError::Stale);
        }
        let mut fields = Fields::new(&head[16..]);
        let Some(head) = read_head(&mut fields) else { return Err(damaged) };
        let IndexHead { summary, sections, .. } = head;
        if (head.segment, head.salt, head.covered) != (segment, salt, covered) {
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

    /// The memory that this index uses.
    pub(crate) fn memory_bytes(&self) -> usize {
        let filters = self.id_filter.memory_bytes() + self.key_filter.memory_bytes();
        size_of::<Self>() + filters + self.directory_bytes()
    }

    /// The part of [`memory_bytes`](Self::memory_bytes) that can be freed, because it can be read from the file again.
    pub(crate) fn directory_bytes(&self) -> usize {
        self.directory.lock().as_ref().map_or(0, |directory| directory.memory_bytes())
    }

    /// Drops the cached directory, which can be read again. Returns the freed bytes.
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

    /// The span of each topic in the segment. Reads only the topics, not their entries.
    pub(crate) fn topics(&self) -> Result<Vec<TopicSpan>, IndexError> {
        let section = &self.sections[DIRECTORY];
        let rows = read_section(&*self.file()?, section)?;
        let spans: Vec<TopicSpan> = rows.chunks_exact(DIRECTORY_ROW_BYTES).map(span_from).collect();
        if spans.iter().any(|span| span.first_seq > span.last_seq || span.last_seq > SEQ_MAX) {
            return Err(IndexError::Damaged { position: section.offset });
        }
        Ok(spans)
    }

    /// The length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        let ends = self.sections.iter().map(|section| section.offset + section.length);
        ends.max().unwrap_or(0)
    }

    /// The number of publishers' ids (event ids that publishers chose).
    pub(crate) fn id_count(&self) -> u64 {
        u64::from(self.sections[IDS].count)
    }

    /// Visits the publishers' ids until `visit` returns false.
    pub(crate) fn for_each_id(&self, mut visit: impl FnMut(IdEntry) -> bool) -> Result<(), IndexError> {
        let file = self.file()?;
        let mut page = [0; PAGE_BYTES];
        for number in 0..self.page_count(IDS) {
            for item in
                self.read_page(&*file, IDS, number, ID_ROW_BYTES, &mut page)?.chunks_exact(ID_ROW_BYTES)
            {
                let (seq, topic, position) = (u64_at(item, 16), u32_at(item, 24), u32_at(item, 28));
                if !visit(IdEntry { id: id_from(item), seq, topic, position }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether a publisher's id with this hash may be in the index.
    pub(crate) fn may_contain_id(&self, hash: u64) -> bool {
        self.id_filter.may_contain(hash)
    }

    /// Looks up an id that a publisher chose. Call [`may_contain_id`](Self::may_contain_id) first: it reads no file.
    pub(crate) fn find_id(
        &self,
        topic: u32,
        id: EventId,
        hash: u64,
        hasher: KeyedHash,
    ) -> Result<Option<IdEntry>, IndexError> {
        let hash_of = |item: &[u8]| hasher.of_id(u32_at(item, 24), id_from(item));
        let mut found = None;
        self.search(IDS, ID_ROW_BYTES, hash, hash_of, |item| {
            if id_from(item) == id && u32_at(item, 24) == topic {
                let entry = IdEntry { id, seq: u64_at(item, 16), topic, position: u32_at(item, 28) };
                found.get_or_insert(entry);
            }
        })?;
        Ok(found)
    }

    /// Looks up the newest record of a key by the hash of the key. The caller must compare the key itself.
    pub(crate) fn find_key(&self, hash: u64) -> Result<Option<KeyEntry>, IndexError> {
        if !self.key_filter.may_contain(hash) {
            return Ok(None);
        }
        let mut found = None;
        self.search(
            KEYS,
            KEY_ROW_BYTES,
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
        for (section, item_bytes) in [(IDS, ID_ROW_BYTES), (KEYS, KEY_ROW_BYTES)] {
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
        items_of(&page[..read], item_bytes).ok_or(IndexError::Damaged { position })
    }

    /// Visits the items with this hash. Hashes are uniformly distributed, so the first guess is usually off by a page or
    /// two at most.
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

/// The items of a page; `None` if the page is damaged or incomplete.
fn items_of(page: &[u8], item_bytes: usize) -> Option<&[u8]> {
    if page.len() < PAGE_BYTES || u32_at(page, 0) != crc32c::crc32c(&page[4..]) {
        return None;
    }
    let count = u32_at(page, 4) as usize;
    page.get(PAGE_HEAD_BYTES..PAGE_HEAD_BYTES + count.min(PAGE_BYTES) * item_bytes)
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

/// Describes the content of an index file, for `inspect`.
pub(crate) fn describe(bytes: &[u8], out: &mut Description<'_>) -> io::Result<()> {
    let head = bytes.get(..HEAD_BYTES).filter(|head| u32_at(head, 8) == crc32c::crc32c(&head[12..]));
    let Some(IndexHead { segment, salt, covered, summary, sections }) =
        head.and_then(|head| read_head(&mut Fields::new(&head[16..])))
    else {
        return out.damage("index with a damaged head");
    };
    out.line(format!("index of segment {segment:016x}, salt {salt:08x}, up to position {covered}"))?;
    out.line(format!(
        "{} events, committed {} to {}",
        summary.events, summary.first_commit_ms, summary.last_commit_ms
    ))?;
    out.line(format!("server ids {} to {}", summary.first_server_id, summary.last_server_id))?;
    out.line(format!("publishers' ids {} to {}", summary.first_client_id, summary.last_client_id))?;
    out.line(format!("publishers' ids that are not time-ordered: {}", summary.unordered_ids))?;
    let names = ["id filter", "key filter", "topics", "entries", "ids", "keys"];
    for (number, (name, section)) in names.iter().zip(&sections).enumerate() {
        out.line(format!("{name}: {} in {} bytes at {}", section.count, section.length, section.offset))?;
        for position in damaged_parts(bytes, number, section) {
            out.damage(format!("{position:>10}  damaged {name}"))?;
        }
    }
    Ok(())
}

/// The positions of the parts of a section whose checksum is wrong or that are missing. The ids and keys have a checksum per page. A
/// section that is incomplete counts as damaged once, at its first missing part.
fn damaged_parts(bytes: &[u8], number: usize, section: &Section) -> Vec<u64> {
    let end = section.offset.saturating_add(section.length).min(bytes.len() as u64);
    let content = bytes.get(section.offset as usize..end as usize).unwrap_or_default();
    let is_complete = content.len() as u64 == section.length;
    let item_bytes = match number {
        IDS => ID_ROW_BYTES,
        KEYS => KEY_ROW_BYTES,
        _ if is_complete && crc32c::crc32c(content) == section.crc => return Vec::new(),
        _ => return vec![section.offset],
    };
    let pages = (section.offset..).step_by(PAGE_BYTES).zip(content.chunks(PAGE_BYTES));
    let damaged = pages.filter(|(_, page)| items_of(page, item_bytes).is_none());
    let mut damaged: Vec<u64> = damaged.map(|(position, _)| position).collect();
    if !is_complete && content.len() % PAGE_BYTES == 0 {
        damaged.push(section.offset + content.len() as u64);
    }
    damaged
}
