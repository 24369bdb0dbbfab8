//! Checkpoints: snapshots of the topics, the newest server id and the caller's state, as of one committed batch. They
//! contain what a replay from the log's first batch would produce. Two are kept, and opening starts from the newest intact
//! one.
//!
//! A checkpoint is written under its final name. It is not read until the manifest lists it, so an incomplete one does
//! no harm: the next open removes it.

use crate::error::{Fault, FaultKind};
use crate::event_id::EventId;
use crate::fields::{Fields, put_string};
use crate::layout::{CHECKPOINT_MAGIC, FORMAT_VERSION, checkpoint_name};
use crate::record::{SEQ_MAX, TOPIC_MAX};
use crate::storage::{OpenMode, Storage, SyncPoint, read_whole};
use crate::topics::TopicView;
use bytes::BufMut as _;
use std::io;

const HEAD_BYTES: usize = 24;

/// The end of a committed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    /// The segment that contains the batch; zero before the first batch.
    pub(crate) segment: u64,
    /// Where the batch ends in the segment.
    pub(crate) position: u64,
    /// The number of the batch.
    pub(crate) batch: u64,
    /// The chain value of its COMMIT.
    pub(crate) chain: u32,
}

/// A topic in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicRow {
    /// The internal id.
    pub(crate) id: u32,
    pub(crate) name: String,
    /// The newest seq. New seqs follow it even if its event was cleaned away.
    pub(crate) last_seq: u64,
}

/// The content of a checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The end of the last batch that the checkpoint covers.
    pub(crate) mark: Mark,
    /// The newest server id.
    pub(crate) last_server_id: EventId,
    /// The newest commit time.
    pub(crate) last_commit_ms: i64,
    /// The internal id of the next topic. Internal ids are never reused, so this only increases.
    pub(crate) next_topic: u32,
    pub(crate) topics: Vec<TopicRow>,
    /// The caller's snapshot.
    pub(crate) state: Vec<u8>,
}

impl Checkpoint {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(256 + self.topics.len() * 40 + self.state.len());
        body.put_u64_le(self.mark.segment);
        body.put_u64_le(self.mark.position);
        body.put_u64_le(self.mark.batch);
        body.put_u32_le(self.mark.chain);
        body.put_u128_le(self.last_server_id.as_u128());
        body.put_i64_le(self.last_commit_ms);
        body.put_u32_le(self.next_topic);
        body.put_u32_le(self.topics.len() as u32);
        for topic in &self.topics {
            body.put_u32_le(topic.id);
            body.put_u64_le(topic.last_seq);
            put_string(&mut body, topic.name.as_bytes());
        }
        put_string(&mut body, &self.state);
        let mut file = Vec::with_capacity(HEAD_BYTES + body.len());
        file.extend_from_slice(&CHECKPOINT_MAGIC);
        file.put_u32_le(0);
        file.put_u32_le(FORMAT_VERSION);
        file.put_u64_le(body.len() as u64);
        file.extend_from_slice(&body);
        let crc = crc32c::crc32c(&file[12..]);
        file[8..12].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// The topics by internal id, in the form that readers use.
    pub(crate) fn topic_views(&self) -> Vec<Option<TopicView>> {
        let mut topics = vec![None; self.next_topic.max(1) as usize];
        for row in &self.topics {
            if topics.len() <= row.id as usize {
                topics.resize(row.id as usize + 1, None);
            }
            let (name, last_seq) = (row.name.as_str().into(), row.last_seq);
            topics[row.id as usize] = Some(TopicView { name, last_seq, is_deleted: false });
        }
        topics
    }

    /// The approximate length of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        let topics: usize = self.topics.iter().map(|topic| topic.name.len() + 16).sum();
        (HEAD_BYTES + 64 + topics + self.state.len()) as u64
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let magic = fields.bytes(8)?;
        let crc = fields.u32()?;
        let version = fields.u32()?;
        let length = usize::try_from(fields.u64()?).ok()?;
        let body = fields.bytes(length)?;
        let whole = HEAD_BYTES + length == bytes.len();
        if magic != CHECKPOINT_MAGIC
            || version != FORMAT_VERSION
            || crc32c::crc32c(&bytes[12..]) != crc
            || !whole
        {
            return None;
        }
        let mut fields = Fields::new(body);
        let mark = Mark {
            segment: fields.u64()?,
            position: fields.u64()?,
            batch: fields.u64()?,
            chain: fields.u32()?,
        };
        let last_server_id = EventId::from_u128(fields.u128()?);
        let last_commit_ms = fields.i64()?;
        let next_topic = fields.u32()?;
        if mark.batch > SEQ_MAX || next_topic > TOPIC_MAX + 1 {
            return None;
        }
        let mut topics = Vec::new();
        for _ in 0..fields.count(16)? {
            let id = fields.u32()?;
            let last_seq = fields.u64()?;
            let name = String::from_utf8(fields.string()?.to_vec()).ok()?;
            if id == 0 || id >= next_topic || last_seq > SEQ_MAX {
                return None;
            }
            topics.push(TopicRow { id, name, last_seq });
        }
        let state = fields.string()?.to_vec();
        Some(Self { mark, last_server_id, last_commit_ms, next_topic, topics, state })
    }

    /// Makes the checkpoint durable. It takes effect when the manifest lists it.
    pub(crate) fn write(&self, storage: &dyn Storage, number: u64) -> io::Result<()> {
        let name = checkpoint_name(number);
        let written = (|| {
            let file = storage.open(&name, OpenMode::Create)?;
            file.write_at(&self.encode(), 0)?;
            file.sync(SyncPoint::Checkpoint)?;
            storage.sync_folder(SyncPoint::CheckpointFolder)
        })();
        if written.is_err() {
            let _ = storage.remove(&name);
        }
        written
    }

    pub(crate) fn read(storage: &dyn Storage, number: u64) -> io::Result<Result<Self, Fault>> {
        let name = checkpoint_name(number);
        let fault = || Fault::new(&name, 0, FaultKind::Checkpoint);
        let file = match storage.open(&name, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Err(fault())),
            opened => opened?,
        };
        Ok(Self::parse(&read_whole(&*file)?).ok_or_else(fault))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_checkpoint_is_found() {
        let checkpoint = Checkpoint {
            mark: Mark { segment: 1, position: 2, batch: 3, chain: 4 },
            last_server_id: EventId::from_u128(5),
            last_commit_ms: 6,
            next_topic: 7,
            topics: vec![TopicRow { id: 1, name: "orders.placed".into(), last_seq: 9 }],
            state: b"groups".to_vec(),
        };
        let bytes = checkpoint.encode();
        assert_eq!(Checkpoint::parse(&bytes), Some(checkpoint));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Checkpoint::parse(&damaged), None, "bit {bit} was not found");
        }
    }
}
