//! Reads payloads from standard input, one per line.

use crate::cmd::import::line;
use prombus_client::{PublishOptions, Record};
use std::io::{BufRead, BufReader, Read};
use tokio::sync::mpsc;

/// Maximum number of lines in a chunk.
const CHUNK_LINES: usize = 1_000;
/// A chunk is full when it has this many bytes.
const CHUNK_BYTES: usize = 2 << 20;
/// The size of the read buffer, and so of one read.
const BUFFER_BYTES: usize = 256 << 10;
/// The maximum length of a line. Payloads have at most 16 MiB; the rest is room for JSON that escapes every character.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Turns lines into events.
pub struct Payloads {
    pub topic: String,
    /// Lines are text, not JSON.
    pub is_text: bool,
    /// The options of every event.
    pub options: PublishOptions,
}

/// A part of the input, in order.
pub enum Input {
    Chunk(Chunk),
    /// A line that is not a payload.
    Bad {
        line: u64,
        why: String,
    },
    /// The input cannot be read.
    Broken(anyhow::Error),
}

/// Events with the numbers of their lines.
#[derive(Default)]
pub struct Chunk {
    pub lines: Vec<(u64, Record)>,
    byte_count: usize,
}

impl Payloads {
    /// The event of a payload.
    ///
    /// # Errors
    /// Says what is wrong with the text, as the end of a sentence: "the payload is …".
    pub fn record(&self, text: &[u8]) -> Result<Record, String> {
        let mut record = if self.is_text {
            let text = std::str::from_utf8(text);
            let text = text.map_err(|error| format!("not UTF-8 at byte {}", error.valid_up_to()))?;
            Record::new(self.topic.as_str(), text).map_err(|error| error.to_string())?
        } else {
            line::record(text, Some(&self.topic), true)?
        };
        record.options.clone_from(&self.options);
        Ok(record)
    }
}

/// Reads all lines and sends them to `found`. Lines are passed on before a read that may have to wait for more input. Returns early
/// at a bad line, or when the receiver is dropped.
pub fn read(input: impl Read, payloads: &Payloads, found: &mpsc::Sender<Input>) {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, input);
    let mut chunk = Chunk::default();
    let mut text = Vec::new();
    for number in 1.. {
        if !reader.buffer().contains(&b'\n') && !send(found, &mut chunk) {
            return;
        }
        text.clear();
        match reader.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut text) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                send(found, &mut chunk);
                let error = anyhow::Error::from(error).context(format!("line {number}"));
                let _ = found.blocking_send(Input::Broken(error));
                return;
            }
        }
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let parsed = match text.len() as u64 > LINE_BYTES_MAX {
            true => Err(format!("longer than {LINE_BYTES_MAX} bytes")),
            false => payloads.record(line),
        };
        match parsed {
            Ok(record) => chunk.push(number, record),
            Err(why) => {
                if send(found, &mut chunk) {
                    let _ = found.blocking_send(Input::Bad { line: number, why });
                }
                return;
            }
        }
        if chunk.is_full() && !send(found, &mut chunk) {
            return;
        }
    }
    send(found, &mut chunk);
}

impl Chunk {
    fn push(&mut self, line: u64, mut record: Record) {
        // The id is assigned before sending, so that a retry sends the same one.
        record.ensure_id();
        self.byte_count += record.byte_count();
        self.lines.push((line, record));
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= CHUNK_LINES || self.byte_count >= CHUNK_BYTES
    }
}

/// Sends the chunk, unless it is empty, and leaves an empty chunk. Returns false if the receiver was dropped.
fn send(found: &mpsc::Sender<Input>, chunk: &mut Chunk) -> bool {
    let chunk = std::mem::take(chunk);
    chunk.lines.is_empty() || found.blocking_send(Input::Chunk(chunk)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payloads(is_text: bool) -> Payloads {
        Payloads { topic: "a".to_owned(), is_text, options: PublishOptions::default() }
    }

    /// The payloads of all chunks, with line numbers, and the number of a bad line.
    fn parse(input: &'static [u8], is_text: bool) -> (Vec<(u64, String)>, Option<u64>) {
        let (sender, mut found) = mpsc::channel(100);
        read(input, &payloads(is_text), &sender);
        drop(sender);
        let (mut good, mut bad) = (Vec::new(), None);
        while let Ok(input) = found.try_recv() {
            match input {
                Input::Chunk(chunk) => {
                    good.extend(chunk.lines.iter().map(|(line, it)| (*line, it.payload.get().to_owned())));
                }
                Input::Bad { line, .. } => bad = Some(line),
                Input::Broken(error) => panic!("{error}"),
            }
        }
        (good, bad)
    }

    #[test]
    fn reading_stops_at_a_bad_line_and_keeps_the_lines_before_it() {
        let (good, bad) = parse(b"1\n\n {\"a\": 2} \r\nnot json\n5\n", false);
        assert_eq!((good, bad), (vec![(1, "1".to_owned()), (3, "{\"a\": 2}".to_owned())], Some(4)));
        assert_eq!(parse(b"1\n\"\xff\"\n", false).1, Some(2));
    }

    #[test]
    fn lines_of_text_become_json_strings() {
        let (good, bad) = parse(b"a \"b\"\r\n\n{\n", true);
        assert_eq!((good, bad), (vec![(1, r#""a \"b\"""#.to_owned()), (3, r#""{""#.to_owned())], None));
    }

    #[test]
    fn a_line_is_passed_on_before_a_read_that_waits() {
        /// Returns a line; then waits until the test has received it.
        struct Slow(std::sync::mpsc::Receiver<()>, bool);
        impl Read for Slow {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                if std::mem::replace(&mut self.1, true) {
                    self.0.recv().unwrap();
                    return Ok(0);
                }
                into[..4].copy_from_slice(b"1\n2\n");
                Ok(4)
            }
        }
        let (received, wait) = std::sync::mpsc::channel();
        let (sender, mut found) = mpsc::channel(100);
        let reader = std::thread::spawn(move || read(Slow(wait, false), &payloads(false), &sender));
        let Some(Input::Chunk(chunk)) = found.blocking_recv() else { panic!("a chunk was expected") };
        assert_eq!(chunk.lines.len(), 2);
        received.send(()).unwrap();
        assert!(found.blocking_recv().is_none());
        reader.join().unwrap();
    }
}
