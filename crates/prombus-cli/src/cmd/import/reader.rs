//! Reads lines from a file or standard input and gathers them into chunks. Only a few chunks are in memory at a time.

use super::line;
use anyhow::Context;
use prombus_client::Record;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::Path;
use tokio::sync::mpsc;

/// Maximum number of lines in a chunk.
const CHUNK_LINES: usize = 1_000;
/// A chunk is full when it has this many bytes.
const CHUNK_BYTES: usize = 2 << 20;
/// The maximum length of a line. Payloads have at most 16 MiB; the rest is room for the other fields, and for JSON that escapes
/// every character.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// The byte order mark, U+FEFF, in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads lines.
pub struct LineReader {
    reader: Box<dyn BufRead + Send>,
    /// The size of the input, if known.
    pub byte_count: Option<u64>,
}

/// Parsed lines, in the order of the input.
pub enum LineBatch {
    /// Good lines.
    Chunk(Chunk),
    /// A line that is not a valid event, or is too long.
    Bad { line: u64, why: String },
    /// The input cannot be read.
    Broken(anyhow::Error),
}

/// Consecutive good lines.
#[derive(Default)]
pub struct Chunk {
    /// The line numbers of `records`.
    pub lines: Vec<u64>,
    pub records: Vec<Record>,
    /// The position in the input at which the last line ends.
    pub end_bytes: u64,
    /// Whether some lines had no id and got a new one.
    pub has_made_ids: bool,
    /// The approximate size of `records`.
    byte_count: usize,
}

impl LineReader {
    /// Opens the file, or standard input if there is none.
    pub fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else {
            return Ok(Self { reader: Box::new(BufReader::new(stdin())), byte_count: None });
        };
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let byte_count = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|it| it.len());
        Ok(Self { reader: Box::new(BufReader::with_capacity(256 * 1024, file)), byte_count })
    }

    /// Reads all lines and sends them to `found`. Returns early when the receiver is dropped.
    pub fn read(
        mut self,
        topic: Option<String>,
        is_payloads: bool,
        from_line: u64,
        found: &mpsc::Sender<LineBatch>,
    ) {
        let mut chunk = Chunk::default();
        let (mut number, mut position, mut text) = (0, 0, Vec::new());
        loop {
            number += 1;
            match self.read_line(&mut text) {
                Ok(0) => break,
                Ok(count) => position += count,
                Err(error) => {
                    let _ = send(found, &mut chunk);
                    let error = anyhow::Error::from(error).context(format!("line {number}"));
                    let _ = found.blocking_send(LineBatch::Broken(error));
                    return;
                }
            }
            // Some editors begin a file with a byte order mark.
            let line =
                if number == 1 { text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text) } else { &text[..] };
            if number < from_line || line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let parsed = if text.len() as u64 > LINE_BYTES_MAX {
                Err(format!("longer than {LINE_BYTES_MAX} bytes"))
            } else {
                line::record(line.strip_suffix(b"\n").unwrap_or(line), topic.as_deref(), is_payloads)
            };
            let is_sent = match parsed {
                Ok(record) => {
                    chunk.push(number, record, position);
                    !chunk.is_full() || send(found, &mut chunk)
                }
                Err(why) => {
                    send(found, &mut chunk)
                        && found.blocking_send(LineBatch::Bad { line: number, why }).is_ok()
                }
            };
            if !is_sent {
                return;
            }
        }
        send(found, &mut chunk);
    }

    /// Reads a line and returns its length in bytes; 0 at the end of the input. Only the beginning of a line that is too long is
    /// kept: the rest is skipped.
    fn read_line(&mut self, text: &mut Vec<u8>) -> std::io::Result<u64> {
        text.clear();
        let mut count = self.reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', text)?;
        let mut is_over = text.len() as u64 <= LINE_BYTES_MAX || text.ends_with(b"\n");
        let mut rest = Vec::new();
        while !is_over {
            rest.clear();
            let read = self.reader.by_ref().take(CHUNK_BYTES as u64).read_until(b'\n', &mut rest)?;
            count += read;
            is_over = read == 0 || rest.ends_with(b"\n");
        }
        Ok(count as u64)
    }
}

impl Chunk {
    fn push(&mut self, line: u64, mut record: Record, end_bytes: u64) {
        self.has_made_ids |= record.options.id.is_none();
        // The id is assigned before sending, so that a retry sends the same one.
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

/// Sends the chunk, unless it is empty, and leaves an empty chunk. Returns false if the receiver was dropped.
fn send(found: &mpsc::Sender<LineBatch>, chunk: &mut Chunk) -> bool {
    let chunk = std::mem::take(chunk);
    chunk.lines.is_empty() || found.blocking_send(LineBatch::Chunk(chunk)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of good lines, the numbers of bad lines, and whether reading failed.
    fn read(bytes: impl Read + Send + 'static, from_line: u64) -> (Vec<u64>, Vec<u64>, bool) {
        let source = LineReader { reader: Box::new(BufReader::new(bytes)), byte_count: None };
        let (sender, mut found) = mpsc::channel(100);
        source.read(Some("a".to_owned()), true, from_line, &sender);
        drop(sender);
        let (mut good, mut bad, mut is_broken) = (Vec::new(), Vec::new(), false);
        while let Ok(found) = found.try_recv() {
            match found {
                LineBatch::Chunk(chunk) => good.extend(chunk.lines),
                LineBatch::Bad { line, .. } => bad.push(line),
                LineBatch::Broken(_) => is_broken = true,
            }
        }
        (good, bad, is_broken)
    }

    #[test]
    fn a_line_that_is_too_long_counts_as_one_line_even_before_from_line() {
        let long = || std::io::repeat(b'1').take(LINE_BYTES_MAX + 3 * CHUNK_BYTES as u64);
        let text = || b"1\n".chain(long()).chain(&b"\n3\n4"[..]);
        assert_eq!(read(text(), 1), (vec![1, 3, 4], vec![2], false));
        assert_eq!(read(text(), 3), (vec![3, 4], vec![], false));
    }

    #[test]
    fn a_read_error_in_the_middle_of_a_long_line_is_reported() {
        struct Fails;
        impl Read for Fails {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("the disk is gone"))
            }
        }
        let long = std::io::repeat(b'1').take(LINE_BYTES_MAX + 5);
        assert_eq!(read(b"1\n".chain(long).chain(Fails), 1), (vec![1], vec![], true));
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_first_line() {
        assert_eq!(read(&b"\xef\xbb\xbf1\n2"[..], 1), (vec![1, 2], vec![], false));
        assert_eq!(read(&b"\xef\xbb\xbf\n\xef\xbb\xbf2"[..], 1), (vec![], vec![2], false));
    }
}
