//! Where lines come from, and how they become chunks. Never more than a few chunks are in memory.

use super::line;
use anyhow::Context;
use prombus_client::Record;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::Path;
use tokio::sync::mpsc;

/// Lines and bytes of a chunk.
const CHUNK_LINES: usize = 1_000;
const CHUNK_BYTES: usize = 2 << 20;
/// A server takes payloads of 16 MiB at most; with room for what stands around one, in JSON that escapes everything.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Lines that are to be read.
pub struct Source {
    reader: Box<dyn BufRead + Send>,
    /// How much there is, if that is known.
    pub byte_count: Option<u64>,
}

/// What was found, in the order of lines.
pub enum Found {
    /// Good lines.
    Chunk(Chunk),
    /// A line that is no event.
    Bad { line: u64, why: String },
    /// It cannot be read.
    Broken(anyhow::Error),
}

/// Good lines.
#[derive(Default)]
pub struct Chunk {
    /// Their numbers.
    pub lines: Vec<u64>,
    pub records: Vec<Record>,
    /// Where the last one ends.
    pub end_bytes: u64,
    /// Some had no id.
    pub has_made_ids: bool,
    byte_count: usize,
}

impl Source {
    /// A file, or standard input.
    pub fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else {
            return Ok(Self { reader: Box::new(BufReader::new(stdin())), byte_count: None });
        };
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let byte_count = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|it| it.len());
        Ok(Self { reader: Box::new(BufReader::with_capacity(256 * 1024, file)), byte_count })
    }

    /// Reads all lines. Ends early when nobody takes them any more.
    pub fn read(
        mut self,
        topic: Option<String>,
        is_payloads: bool,
        from_line: u64,
        found: &mpsc::Sender<Found>,
    ) {
        let mut chunk = Chunk::default();
        let (mut number, mut position, mut text) = (0, 0, Vec::new());
        loop {
            text.clear();
            let read = self.reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut text);
            number += 1;
            match read {
                Ok(0) => break,
                Ok(count) => position += count as u64,
                Err(error) => {
                    let _ = send(found, &mut chunk);
                    let error = anyhow::Error::from(error).context(format!("line {number}"));
                    let _ = found.blocking_send(Found::Broken(error));
                    return;
                }
            }
            if number < from_line || text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let parsed = if text.len() as u64 > LINE_BYTES_MAX {
                // What follows is in the middle of a line: nothing can be made of it.
                Err(format!("longer than {LINE_BYTES_MAX} bytes"))
            } else {
                line::record(text.strip_suffix(b"\n").unwrap_or(&text), topic.as_deref(), is_payloads)
            };
            let is_sent = match parsed {
                Ok(record) => {
                    chunk.push(number, record, position);
                    !chunk.is_full() || send(found, &mut chunk)
                }
                Err(why) => {
                    send(found, &mut chunk)
                        && found.blocking_send(Found::Bad { line: number, why }).is_ok()
                        && (text.ends_with(b"\n") || self.skip_line(&mut position))
                }
            };
            if !is_sent {
                return;
            }
        }
        send(found, &mut chunk);
    }

    /// Goes to the end of a line that is too long.
    fn skip_line(&mut self, position: &mut u64) -> bool {
        let mut rest = Vec::new();
        loop {
            rest.clear();
            match self.reader.by_ref().take(CHUNK_BYTES as u64).read_until(b'\n', &mut rest) {
                Ok(0) => return true,
                Ok(count) => *position += count as u64,
                Err(_) => return false,
            }
            if rest.ends_with(b"\n") {
                return true;
            }
        }
    }
}

impl Chunk {
    fn push(&mut self, line: u64, mut record: Record, end_bytes: u64) {
        self.has_made_ids |= record.options.id.is_none();
        // Now, so that it is the same when it is sent again.
        record.ensure_id();
        self.lines.push(line);
        self.byte_count += record.byte_count();
        self.records.push(record);
        self.end_bytes = end_bytes;
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= CHUNK_LINES || self.byte_count >= CHUNK_BYTES
    }
}

/// False when nobody takes it any more.
fn send(found: &mpsc::Sender<Found>, chunk: &mut Chunk) -> bool {
    let chunk = std::mem::take(chunk);
    chunk.lines.is_empty() || found.blocking_send(Found::Chunk(chunk)).is_ok()
}
