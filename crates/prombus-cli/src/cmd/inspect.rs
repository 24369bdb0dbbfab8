//! `prombus inspect`: shows what a file of a data folder contains, line by line.

use crate::args::InspectArgs;
use crate::messages::{io_reason, print_error};
use serde_json::{Map, Value};
use std::io::{self, BufWriter, Write, stdout};
use std::process::ExitCode;

/// The exit code for a file that could not be inspected, as opposed to one with damage.
const COULD_NOT_RUN: u8 = 2;

/// Texts of `prombus_log::inspect` that report damage.
const DAMAGE: [&str; 6] = [
    "BODY DAMAGED",
    "NO FRAME",
    "damaged",
    "segment without a header",
    "cannot check frames",
    "the other copy is used",
];

/// Runs the command.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let name = args.file.display();
    if args.file.is_dir() {
        print_error(&format!("{name} is a folder; `prombus verify --data {name}` checks all its files"));
        return Ok(ExitCode::from(COULD_NOT_RUN));
    }
    let mut lines = Lines::new(BufWriter::new(stdout().lock()), args.limit, args.json.json);
    let inspected = prombus_log::inspect(&args.file, &mut lines);
    let is_cut = lines.is_full;
    if let Some(error) = lines.failed.take() {
        return Err(error.into());
    }
    lines.out.flush()?;
    match inspected {
        Err(error) if !is_cut => {
            let why = match error.kind() {
                io::ErrorKind::InvalidData => {
                    "not a file of a data folder; a copy must keep the name that it has there".to_owned()
                }
                _ => io_reason(&error),
            };
            print_error(&format!("{name}: {why}"));
            Ok(ExitCode::from(COULD_NOT_RUN))
        }
        _ if lines.has_damage => Ok(ExitCode::FAILURE),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Receives the description of a file and prints it line by line.
struct Lines<W> {
    out: W,
    /// How many more lines may be printed.
    left: Option<u64>,
    is_json: bool,
    /// The begin of a line whose end has not arrived.
    begun: Vec<u8>,
    /// Whether the limit has ended the output.
    is_full: bool,
    has_damage: bool,
    /// Why the output failed.
    failed: Option<io::Error>,
}

impl<W: Write> Lines<W> {
    fn new(out: W, limit: Option<u64>, is_json: bool) -> Self {
        Self { out, left: limit, is_json, begun: Vec::new(), is_full: false, has_damage: false, failed: None }
    }

    /// Prints a line. An error ends the inspection.
    fn print(&mut self, line: &[u8]) -> io::Result<()> {
        if self.left == Some(0) {
            self.is_full = true;
            return Err(io::Error::other("the limit is reached"));
        }
        self.left = self.left.map(|left| left - 1);
        let line = String::from_utf8_lossy(line);
        self.has_damage |= DAMAGE.iter().any(|text| outside_quotes(&line).contains(text));
        let printed = match self.is_json {
            true => writeln!(self.out, "{}", Value::Object(as_json(&line))),
            false => writeln!(self.out, "{line}"),
        };
        printed.map_err(|error| {
            let kind = error.kind();
            self.failed = Some(error);
            kind.into()
        })
    }
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.begun.extend_from_slice(end);
                    let line = std::mem::take(&mut self.begun);
                    self.print(&line)?;
                }
                None => self.begun.extend_from_slice(piece),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The text without its quoted parts: keys and names of topics, which may contain anything.
fn outside_quotes(line: &str) -> String {
    let mut text = String::new();
    let (mut is_quoted, mut is_escaped) = (false, false);
    for character in line.chars() {
        match character {
            '"' if !is_escaped => is_quoted = !is_quoted,
            _ if !is_quoted => text.push(character),
            _ => {}
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    text
}

/// A line as an object: the position and the kind of a frame, its numbers by name, the whole text, and whether it reports damage.
fn as_json(line: &str) -> Map<String, Value> {
    let plain = outside_quotes(line);
    let mut object = Map::new();
    let mut words = plain.split_whitespace().peekable();
    if let Some(position) = words.peek().and_then(|word| word.parse::<u64>().ok()) {
        object.insert("position".to_owned(), position.into());
        words.next();
        if let Some(kind @ ("event" | "state" | "topic" | "commit")) = words.peek().copied() {
            object.insert("kind".to_owned(), kind.into());
            words.next();
            let words: Vec<&str> = words.collect();
            for pair in words.windows(2) {
                let name = match pair[0] {
                    name @ ("topic" | "seq" | "ts" | "tag" | "batch" | "length") => name,
                    "committed" | "at" => "commit_ms",
                    "body" => "body_bytes",
                    "id" => {
                        object.entry("id").or_insert_with(|| pair[1].into());
                        continue;
                    }
                    _ => continue,
                };
                if let Ok(number) = pair[1].parse::<i64>() {
                    object.entry(name).or_insert_with(|| number.into());
                }
            }
        }
    }
    object.insert("damaged".to_owned(), DAMAGE.iter().any(|text| plain.contains(text)).into());
    object.insert("text".to_owned(), line.trim().into());
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_becomes_an_object() {
        let line = "      4096  event   topic 1 seq 7 id 0196 ts 5 committed 6 key \"seq 9 NO FRAME\" flags 0x2 body 12 bytes";
        let object = as_json(line);
        assert_eq!((&object["position"], &object["kind"]), (&4096.into(), &"event".into()));
        assert_eq!((&object["seq"], &object["topic"], &object["id"]), (&7.into(), &1.into(), &"0196".into()));
        assert_eq!((&object["body_bytes"], &object["commit_ms"]), (&12.into(), &6.into()));
        assert_eq!(object["damaged"], false, "a key is not a report");
        assert_eq!(as_json("      4096  NO FRAME for 12 bytes")["damaged"], true);
    }

    #[test]
    fn the_limit_ends_the_output_after_whole_lines() {
        let mut lines = Lines::new(Vec::new(), Some(2), false);
        assert!(lines.write_all(b"one\ntw").is_ok());
        assert!(lines.write_all(b"o\nthree\n").is_err());
        assert_eq!((lines.out.as_slice(), lines.is_full), (&b"one\ntwo\n"[..], true));
    }
}
