//! Writes index files. The thread yields between pieces of the work, because one long piece would delay commits on a
//! machine with few cores.

use crate::bloom_filter::Filter;
use crate::index::{IdEntry, Index, KeyEntry};
use crate::index_file::IndexFile;
use crate::index_file_format::{
    DIRECTORY, DIRECTORY_ROW_BYTES, ENTRIES, HEAD_BYTES, ID_ROW_BYTES, IDS, IDS_FILTER, IndexHead,
    KEY_ROW_BYTES, KEYS, KEYS_FILTER, PAGE_BYTES, PAGE_HEAD_BYTES, SECTIONS, Section, encode_head,
    put_directory_row, put_entry,
};
use crate::keyed_hash::KeyedHash;
use crate::layout::{index_name, index_new_name};
use crate::storage::{OpenMode, Storage, StorageFile, SyncPoint, remove_if_there};
use bytes::BufMut as _;
use std::io;
use std::sync::Arc;

/// The bytes of an index file.
fn encode(index: &Index, segment: u64, salt: u32, covered: u64, hash: KeyedHash) -> Vec<u8> {
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
    let body = pages(&ids, ID_ROW_BYTES, |page, &(_, at)| {
        let id = &index.ids[at as usize];
        page.put_u128_le(id.id.as_u128());
        page.put_u64_le(id.seq);
        page.put_u32_le(id.topic);
        page.put_u32_le(id.position);
    });
    section(&mut file, IDS, ids.len(), body);
    let body = pages(&keys, KEY_ROW_BYTES, |page, key| {
        page.put_u64_le(key.hash);
        page.put_u32_le(key.topic);
        page.put_u32_le(key.position);
    });
    section(&mut file, KEYS, keys.len(), body);

    let head = encode_head(&IndexHead { segment, salt, covered, summary: index.summary, sections });
    file[..HEAD_BYTES].copy_from_slice(&head);
    file
}

/// The hashes of ids with their places in `ids`, sorted by hash. Hashes are uniformly distributed, so they are first split
/// into buckets by their upper bits. The thread yields between buckets.
fn sorted_by_hash(ids: &[IdEntry], hash: KeyedHash) -> Vec<(u64, u32)> {
    const BUCKETS: usize = 256;
    let bucket_of = |hash: u64| (hash >> 56) as usize;
    let hashes: Vec<u64> = ids.iter().map(|id| hash.of_id(id.topic, id.id)).collect();
    let mut ends = [0; BUCKETS + 1];
    hashes.iter().for_each(|&hash| ends[bucket_of(hash) + 1] += 1);
    for bucket in 0..BUCKETS {
        ends[bucket + 1] += ends[bucket];
    }
    let starts = ends;
    let mut sorted = vec![(0, 0); ids.len()];
    for (at, &hash) in hashes.iter().enumerate() {
        let place = &mut ends[bucket_of(hash)];
        sorted[*place] = (hash, at as u32);
        *place += 1;
        yield_sometimes(at);
    }
    for bucket in 0..BUCKETS {
        sorted[starts[bucket]..starts[bucket + 1]].sort_unstable();
        std::thread::yield_now();
    }
    sorted
}

/// Yields the thread every few thousand items.
fn yield_sometimes(at: usize) {
    if at % 4096 == 0 {
        std::thread::yield_now();
    }
}

/// Writes sorted items into pages. Each page has its own checksum, so that a lookup can check every page that it reads.
fn pages<T>(items: &[T], item_bytes: usize, put: impl Fn(&mut Vec<u8>, &T)) -> Vec<u8> {
    let per_page = (PAGE_BYTES - PAGE_HEAD_BYTES) / item_bytes;
    let mut all = Vec::with_capacity(items.len().div_ceil(per_page) * PAGE_BYTES);
    for chunk in items.chunks(per_page) {
        let start = all.len();
        all.put_u32_le(0);
        all.put_u32_le(chunk.len() as u32);
        all.put_u64_le(0);
        chunk.iter().for_each(|item| put(&mut all, item));
        all.resize(start + PAGE_BYTES, 0);
        let crc = crc32c::crc32c(&all[start + 4..]);
        all[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        yield_sometimes(start / PAGE_BYTES * 64);
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
pub(crate) fn write_index_file(
    storage: &Arc<dyn Storage>,
    index: &Index,
    segment: u64,
    salt: u32,
    covered: u64,
    hash: KeyedHash,
) -> io::Result<IndexFile> {
    write_synced(storage, index, segment, salt, covered, hash, SyncPoint::Index)
}

/// Writes the index of ids whose events were cleaned away. The file's name becomes durable only when the caller syncs
/// the folder.
pub(crate) fn write_kept_index(
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
    remove_if_there(&**storage, &new_name)?;
    let file = storage.open(&new_name, OpenMode::Create)?;
    // Synced before the rename, so that a bad index under the final name is always damage and never a power cut's leftover.
    let written = write_in_pieces(&*file, &bytes).and_then(|()| file.sync(point));
    if let Err(error) = written {
        drop(file);
        let _ = storage.remove(&new_name);
        return Err(error);
    }
    storage.rename(&new_name, &name)?;
    // Opened from memory: a read error here must not count as a failed write.
    let opened = IndexFile::from_file(storage, &EncodedFile(&bytes), segment, salt, covered);
    Ok(opened.unwrap_or_else(|error| unreachable!("an index that was just encoded is intact: {error:?}")))
}

/// An index file that is read from its encoded bytes in memory.
struct EncodedFile<'a>(&'a [u8]);

impl StorageFile for EncodedFile<'_> {
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
