//! The layout of an index file: its head, its sections, and the rows in them.

use crate::event_id::EventId;
use crate::fields::{Fields, u32_at, u64_at};
use crate::index::{Entry, Summary, TopicSpan};
use crate::layout::{FORMAT_VERSION, INDEX_MAGIC};
use bytes::BufMut as _;

// Sizes in bytes.
pub(crate) const HEAD_BYTES: usize = 512;
pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const PAGE_HEAD_BYTES: usize = 16;
pub(crate) const ID_ROW_BYTES: usize = 32;
pub(crate) const KEY_ROW_BYTES: usize = 16;
pub(crate) const DIRECTORY_ROW_BYTES: usize = 56;
pub(crate) const ENTRY_BYTES: usize = 64;

/// The number of sections.
pub(crate) const SECTIONS: usize = 6;

// Numbers of the sections, in the order of the head.
pub(crate) const IDS_FILTER: usize = 0;
pub(crate) const KEYS_FILTER: usize = 1;
pub(crate) const DIRECTORY: usize = 2;
pub(crate) const ENTRIES: usize = 3;
pub(crate) const IDS: usize = 4;
pub(crate) const KEYS: usize = 5;

/// Where a section of an index file is, its checksum, and its number of rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Section {
    /// Where the section starts in the file.
    pub(crate) offset: u64,
    /// Its size in bytes.
    pub(crate) length: u64,
    pub(crate) crc: u32,
    /// Its number of rows.
    pub(crate) count: u32,
}

pub(crate) fn encode_head(index_head: &IndexHead) -> Vec<u8> {
    let IndexHead { segment, salt, covered, summary, sections } = index_head;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(&INDEX_MAGIC);
    head.put_u32_le(0);
    head.put_u32_le(FORMAT_VERSION);
    head.put_u64_le(*segment);
    head.put_u32_le(*salt);
    head.put_u32_le(0);
    head.put_u64_le(*covered);
    head.put_u64_le(summary.events);
    head.put_i64_le(summary.first_commit_ms);
    head.put_i64_le(summary.last_commit_ms);
    head.put_u128_le(summary.first_server_id.as_u128());
    head.put_u128_le(summary.last_server_id.as_u128());
    head.put_u128_le(summary.first_client_id.as_u128());
    head.put_u128_le(summary.last_client_id.as_u128());
    head.put_u64_le(summary.unordered_ids);
    for section in sections {
        head.put_u64_le(section.offset);
        head.put_u64_le(section.length);
        head.put_u32_le(section.crc);
        head.put_u32_le(section.count);
    }
    head.resize(HEAD_BYTES, 0);
    let crc = crc32c::crc32c(&head[12..]);
    head[8..12].copy_from_slice(&crc.to_le_bytes());
    head
}

/// The head of an index file.
pub(crate) struct IndexHead {
    /// The number of the segment.
    pub(crate) segment: u64,
    /// The salt of the segment.
    pub(crate) salt: u32,
    /// The indexed length of the segment.
    pub(crate) covered: u64,
    pub(crate) summary: Summary,
    pub(crate) sections: [Section; SECTIONS],
}

/// Reads the head from the segment number on. The caller has checked magic, crc and version.
pub(crate) fn read_head(fields: &mut Fields<'_>) -> Option<IndexHead> {
    let segment = fields.u64()?;
    let salt = fields.u32()?;
    fields.u32()?;
    let covered = fields.u64()?;
    let summary = Summary {
        events: fields.u64()?,
        first_commit_ms: fields.i64()?,
        last_commit_ms: fields.i64()?,
        first_server_id: EventId::from_u128(fields.u128()?),
        last_server_id: EventId::from_u128(fields.u128()?),
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
    Some(IndexHead { segment, salt, covered, summary, sections })
}

pub(crate) fn put_directory_row(into: &mut Vec<u8>, topic: u32, first_entry: u32, entries: &[Entry]) {
    into.put_u32_le(topic);
    into.put_u32_le(entries.len() as u32);
    into.put_u32_le(first_entry);
    into.put_u32_le(TopicSpan::of(topic, entries).map_or(0, |span| span.bytes));
    into.put_u64_le(entries.first().map_or(0, |entry| entry.first_seq));
    into.put_u64_le(entries.last().map_or(0, |entry| entry.last_seq));
    into.put_i64_le(entries.iter().map(|entry| entry.min_ts).min().unwrap_or(0));
    into.put_i64_le(entries.iter().map(|entry| entry.max_ts).max().unwrap_or(0));
    into.put_u64_le(entries.iter().map(|entry| u64::from(entry.count)).sum());
}

pub(crate) fn span_from(row: &[u8]) -> TopicSpan {
    TopicSpan {
        topic: u32_at(row, 0),
        first_seq: u64_at(row, 16),
        last_seq: u64_at(row, 24),
        events: u64_at(row, 48),
        bytes: u32_at(row, 12),
    }
}

pub(crate) fn put_entry(into: &mut Vec<u8>, entry: &Entry) {
    into.put_u64_le(entry.first_seq);
    into.put_u64_le(entry.last_seq);
    into.put_i64_le(entry.min_ts);
    into.put_i64_le(entry.max_ts);
    into.put_u128_le(entry.first_server_id.as_u128());
    into.put_u32_le(entry.position);
    into.put_u32_le(entry.end);
    into.put_u32_le(entry.count);
    into.put_u32_le(entry.bytes);
}

pub(crate) fn entry_from(row: &[u8]) -> Entry {
    Entry {
        first_seq: u64_at(row, 0),
        last_seq: u64_at(row, 8),
        min_ts: u64_at(row, 16) as i64,
        max_ts: u64_at(row, 24) as i64,
        first_server_id: EventId::from_u128(u128::from_le_bytes(
            row[32..48].try_into().expect("sixteen bytes"),
        )),
        position: u32_at(row, 48),
        end: u32_at(row, 52),
        count: u32_at(row, 56),
        bytes: u32_at(row, 60),
    }
}

pub(crate) fn id_from(item: &[u8]) -> EventId {
    EventId::from_u128(u128::from_le_bytes(item[..16].try_into().expect("sixteen bytes")))
}
