//! Encodes and decodes frames. A frame is a 64-byte header with its own checksum, then the key and the body, which share a
//! second checksum.
//!
//! Each use of a file has its own random number, the salt, and both checksums are salted with it. So frames from an
//! earlier use of a recycled file, and payloads that imitate frames, are never valid. A batch is a sequence of runs
//! (records of one topic) that ends with a COMMIT frame. The COMMIT's body lists the runs, each with a digest of its
//! header checksums. A header checksum covers the body checksum, so the digests cover every byte of the batch. There is
//! no further checksum over the whole batch: with the same polynomial it would find nothing that the record checksums
//! do not find.

use crate::event_id::EventId;
use crate::fields::{Fields, u32_at, u64_at};
use crate::layout::FRAME_MAGIC;
use bytes::BufMut as _;

pub(crate) const HEADER_BYTES: usize = 64;
pub(crate) const RUN_BYTES: usize = 24;
/// Marks the run of topic records. No topic has this internal id.
pub(crate) const TOPIC_RECORDS: u32 = 0;
/// Marks the run of state records. No topic has this internal id.
pub(crate) const STATE_RECORDS: u32 = u32::MAX;
/// The highest internal id of a topic. It limits the memory that a corrupt id on disk can cause to be allocated.
pub(crate) const TOPIC_MAX: u32 = 1 << 24;
/// The highest seq and batch number.
pub(crate) const SEQ_MAX: u64 = 1 << 62;

/// The kind of record in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Event = 1,
    State = 2,
    Topic = 3,
    Commit = 4,
}

/// The publisher chose the id.
pub(crate) const FLAG_CLIENT_ID: u8 = 1;
/// The event has a key (which may be empty).
pub(crate) const FLAG_KEY: u8 = 2;
/// The event deletes its key in a compacted topic.
pub(crate) const FLAG_TOMBSTONE: u8 = 4;
/// On a topic record: the topic is deleted.
pub(crate) const FLAG_DELETED: u8 = 8;

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) key_length: u16,
    pub(crate) body_length: u32,
    /// The checksum of key and body, without the salt.
    pub(crate) body_crc: u32,
    /// Events: the topic. State records: the caller's tag.
    pub(crate) topic: u32,
    /// Events: the seq. Commits: the batch number.
    pub(crate) seq: u64,
    pub(crate) commit_ms: i64,
    /// Events: the publisher's time. Commits: the length of the batch with its COMMIT.
    pub(crate) ts: i64,
    pub(crate) id: EventId,
}

impl Header {
    #[inline]
    pub(crate) fn frame_length(&self) -> usize {
        HEADER_BYTES + self.key_length as usize + self.body_length as usize
    }

    /// Writes the header and returns its salted checksum, which goes into the run's digest.
    pub(crate) fn put(&self, salt: u32, into: &mut Vec<u8>) -> u32 {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&FRAME_MAGIC);
        bytes[8] = self.kind as u8;
        bytes[9] = self.flags;
        bytes[10..12].copy_from_slice(&self.key_length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_length.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.body_crc ^ salt).to_le_bytes());
        bytes[20..24].copy_from_slice(&self.topic.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.seq.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.commit_ms.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.ts.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.id.to_bytes());
        let crc = crc32c::crc32c(&bytes[8..]) ^ salt;
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        into.extend_from_slice(&bytes);
        crc
    }

    /// Reads a header and checks it; `None` if these bytes are not a frame of this use of the file.
    pub(crate) fn checked(bytes: &[u8], salt: u32) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        if bytes[0..4] != FRAME_MAGIC || crc32c::crc32c(&bytes[8..]) ^ salt != header_crc(bytes) {
            return None;
        }
        Self::trusted(bytes, salt)
    }

    /// Reads a header that was checked before, or was never on disk. `None` if its kind, topic or seq is impossible.
    pub(crate) fn trusted(bytes: &[u8], salt: u32) -> Option<Self> {
        let kind = match bytes[8] {
            1 => Kind::Event,
            2 => Kind::State,
            3 => Kind::Topic,
            4 => Kind::Commit,
            _ => return None,
        };
        let (topic, seq) = (u32_at(bytes, 20), u64_at(bytes, 24));
        let is_topic = (1..=TOPIC_MAX).contains(&topic);
        let is_sound = match kind {
            Kind::Event => is_topic && (1..=SEQ_MAX).contains(&seq),
            Kind::Topic => is_topic,
            Kind::Commit => (1..=SEQ_MAX).contains(&seq),
            Kind::State => true,
        };
        if !is_sound {
            return None;
        }
        Some(Self {
            kind,
            flags: bytes[9],
            key_length: u16::from_le_bytes([bytes[10], bytes[11]]),
            body_length: u32_at(bytes, 12),
            body_crc: u32_at(bytes, 16) ^ salt,
            topic,
            seq,
            commit_ms: u64_at(bytes, 32) as i64,
            ts: u64_at(bytes, 40) as i64,
            id: EventId::from_bytes(bytes[48..64].try_into().expect("sixteen bytes")),
        })
    }
}

/// The salted checksum in a header.
pub(crate) fn header_crc(header: &[u8]) -> u32 {
    u32_at(header, 4)
}

/// The length of the frame at the start of `bytes`. The frame must be whole and already checked.
#[inline]
pub(crate) fn trusted_frame_length(bytes: &[u8]) -> usize {
    HEADER_BYTES + u16::from_le_bytes([bytes[10], bytes[11]]) as usize + u32_at(bytes, 12) as usize
}

/// The checksum of a key and a body.
pub(crate) fn body_crc(key: &[u8], body: &[u8]) -> u32 {
    let of_key = if key.is_empty() { 0 } else { crc32c::crc32c(key) };
    crc32c::crc32c_append(of_key, body)
}

/// Whether the checksum of key and body matches, for the frame at the start of `bytes`.
pub(crate) fn is_body_valid(header: &Header, bytes: &[u8]) -> bool {
    match bytes.get(HEADER_BYTES..header.frame_length()) {
        Some(content) => crc32c::crc32c(content) == header.body_crc,
        None => false,
    }
}

/// Adds a header to a run's digest.
#[inline]
pub(crate) fn digest_add(digest: u32, header_crc: u32) -> u32 {
    crc32c::crc32c_append(digest, &header_crc.to_le_bytes())
}

/// The entry of a run in the COMMIT's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunEntry {
    /// The topic, or [`TOPIC_RECORDS`] or [`STATE_RECORDS`].
    pub(crate) topic: u32,
    /// The number of frames.
    pub(crate) count: u32,
    pub(crate) first_seq: u64,
    /// The size of the frames in bytes.
    pub(crate) length: u32,
    /// The checksum over the header checksums of the frames.
    pub(crate) digest: u32,
}

impl RunEntry {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        into.put_u32_le(self.topic);
        into.put_u32_le(self.count);
        into.put_u64_le(self.first_seq);
        into.put_u32_le(self.length);
        into.put_u32_le(self.digest);
    }

    /// The topic, the first seq and the last seq; `None` for a run without events.
    pub(crate) fn seqs(&self) -> Option<(u32, u64, u64)> {
        let is_events = self.count > 0 && self.topic != TOPIC_RECORDS && self.topic != STATE_RECORDS;
        is_events.then(|| (self.topic, self.first_seq, self.first_seq + u64::from(self.count) - 1))
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        Some(Self {
            topic: fields.u32()?,
            count: fields.u32()?,
            first_seq: fields.u64()?,
            length: fields.u32()?,
            digest: fields.u32()?,
        })
    }
}

/// The content of a COMMIT frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) batch: u64,
    pub(crate) commit_ms: i64,
    /// The length of the batch, from its first frame to the end of the COMMIT.
    pub(crate) length: u64,
    /// The chain value of the previous COMMIT.
    pub(crate) previous: u32,
    /// The chain value of this COMMIT: a checksum of the previous chain value, the batch number and the run table.
    pub(crate) chain: u32,
    pub(crate) runs: Vec<RunEntry>,
}

/// Appends the COMMIT of a batch of `content_length` bytes with the run table `table`. Returns the COMMIT's chain value.
pub(crate) fn put_commit(
    into: &mut Vec<u8>,
    salt: u32,
    batch: u64,
    commit_ms: i64,
    content_length: usize,
    previous: u32,
    table: &[u8],
) -> u32 {
    let chain = chain_value(previous, batch, table);
    let length = content_length + HEADER_BYTES + table.len();
    let header = Header {
        kind: Kind::Commit,
        flags: 0,
        key_length: 0,
        body_length: u32::try_from(table.len()).expect("a batch has far fewer than 2^27 runs"),
        body_crc: body_crc(&[], table),
        topic: 0,
        seq: batch,
        commit_ms,
        ts: length as i64,
        id: EventId::from_u128(u128::from(previous) << 32 | u128::from(chain)),
    };
    header.put(salt, into);
    into.extend_from_slice(table);
    chain
}

pub(crate) fn chain_value(previous: u32, batch: u64, table: &[u8]) -> u32 {
    let mut chain = crc32c::crc32c(&previous.to_le_bytes());
    chain = crc32c::crc32c_append(chain, &batch.to_le_bytes());
    crc32c::crc32c_append(chain, table)
}

/// Reads a COMMIT whose header was checked; `None` if its run table is invalid.
pub(crate) fn read_commit(header: &Header, frame: &[u8]) -> Option<Commit> {
    if !is_body_valid(header, frame) {
        return None;
    }
    let table = &frame[HEADER_BYTES..header.frame_length()];
    let previous = (header.id.as_u128() >> 32) as u32;
    let chain = header.id.as_u128() as u32;
    if table.len() % RUN_BYTES != 0 || chain_value(previous, header.seq, table) != chain {
        return None;
    }
    let mut fields = Fields::new(table);
    let mut runs = Vec::with_capacity(table.len() / RUN_BYTES);
    let mut content: u64 = 0;
    while let Some(run) = RunEntry::read(&mut fields) {
        if u64::from(run.count) * HEADER_BYTES as u64 > u64::from(run.length) || run.first_seq > SEQ_MAX {
            return None;
        }
        content += u64::from(run.length);
        runs.push(run);
    }
    if header.ts != (content + header.frame_length() as u64) as i64 {
        return None;
    }
    Some(Commit {
        batch: header.seq,
        commit_ms: header.commit_ms,
        length: u64::try_from(header.ts).ok()?,
        previous,
        chain,
        runs,
    })
}

/// An event of the log, borrowed from the bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its position in the topic.
    pub seq: u64,
    /// The id, generated by the log or chosen by the publisher.
    pub id: EventId,
    /// The publisher's time.
    pub ts: i64,
    /// When the log accepted the event, in milliseconds since 1970. Commit times never decrease.
    pub commit_ms: i64,
    /// The key, if the event has one.
    pub key: Option<&'a [u8]>,
    /// The body, as it was appended.
    pub body: &'a [u8],
    /// Whether the event deletes its key in a compacted topic.
    pub tombstone: bool,
    /// Whether the publisher chose the id.
    pub client_id: bool,
}

/// Reads the event at the start of `frame`. The frame must be whole and already checked.
pub(crate) fn trusted_event(frame: &[u8]) -> Event<'_> {
    let flags = frame[9];
    let key_length = u16::from_le_bytes([frame[10], frame[11]]) as usize;
    let body_length = u32_at(frame, 12) as usize;
    let body_start = HEADER_BYTES + key_length;
    Event {
        seq: u64_at(frame, 24),
        id: EventId::from_bytes(frame[48..64].try_into().expect("sixteen bytes")),
        ts: u64_at(frame, 40) as i64,
        commit_ms: u64_at(frame, 32) as i64,
        key: (flags & FLAG_KEY != 0).then(|| &frame[HEADER_BYTES..body_start]),
        body: &frame[body_start..body_start + body_length],
        tombstone: flags & FLAG_TOMBSTONE != 0,
        client_id: flags & FLAG_CLIENT_ID != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Event,
            flags: FLAG_KEY,
            key_length: 3,
            body_length: 5,
            body_crc: body_crc(b"key", b"hello"),
            topic: 9,
            seq: 77,
            commit_ms: 1_700_000_000_000,
            ts: -5,
            id: EventId::from_u128(0xabcdef),
        }
    }

    fn frame(salt: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        header().put(salt, &mut bytes);
        bytes.extend_from_slice(b"keyhello");
        bytes
    }

    #[test]
    fn a_frame_is_read_back_as_it_was_written() {
        let bytes = frame(42);
        let read = Header::checked(&bytes, 42).unwrap();
        assert_eq!(read, header());
        assert!(is_body_valid(&read, &bytes));
        let event = trusted_event(&bytes);
        assert_eq!((event.key, event.body, event.ts), (Some(&b"key"[..]), &b"hello"[..], -5));
    }

    #[test]
    fn a_frame_of_an_earlier_use_of_the_file_is_invalid() {
        assert_eq!(Header::checked(&frame(42), 43), None);
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_found() {
        let bytes = frame(42);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let fine = Header::checked(&damaged, 42).is_some_and(|header| is_body_valid(&header, &damaged));
            assert!(!fine, "bit {bit} was not found");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_commit_is_found() {
        let mut table = Vec::new();
        RunEntry { topic: 1, count: 2, first_seq: 3, length: 128, digest: 5 }.put(&mut table);
        let mut bytes = Vec::new();
        put_commit(&mut bytes, 7, 99, 1, 128, 0x1234, &table);
        let read = |bytes: &[u8]| Header::checked(bytes, 7).and_then(|header| read_commit(&header, bytes));
        let commit = read(&bytes).unwrap();
        assert_eq!((commit.batch, commit.length, commit.runs.len()), (99, 128 + 64 + 24, 1));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&damaged), None, "bit {bit} was not found");
        }
    }
}
