//! `prombus inspect`: shows what a file of a data folder contains, line by line.

use crate::args::InspectArgs;
use crate::messages::{io_reason, print_error};
use serde_json::{Map, Value};
use std::io::{self, BufWriter, Write, stdout};
use std::process::ExitCode;

/// The exit code for a file that could not be inspected, as opposed to one with damage.
const COULD_NOT_RUN: u8 = 2;

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
    let mut lines = Lines {
        out: BufWriter::new(stdout().lock()),
        left: args.limit,
        is_json: args.json.json,
        has_damage: false,
    };
    let mut failed = None;
    let inspected = prombus_log::inspect(&args.file, &mut |line, is_damage| {
        lines.put(line, is_damage).map_err(|error| {
            let kind = error.kind();
            failed = Some(error);
            kind.into()
        })
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    lines.out.flush()?;
    match inspected {
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::InvalidData => {
                    "not a file of a data folder; a copy must keep the name that it has there".to_owned()
                }
                _ => io_reason(&error),
            };
            print_error(&format!("{name}: {why}"));
            Ok(ExitCode::from(COULD_NOT_RUN))
        }
        Ok(()) if lines.has_damage => Ok(ExitCode::FAILURE),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

/// Prints the lines of a description.
struct Lines<W> {
    out: W,
    /// How many more lines may be printed. Further lines are only checked for damage.
    left: Option<u64>,
    is_json: bool,
    has_damage: bool,
}

impl<W: Write> Lines<W> {
    fn put(&mut self, line: &str, is_damage: bool) -> io::Result<()> {
        self.has_damage |= is_damage;
        if self.left == Some(0) {
            return Ok(());
        }
        self.left = self.left.map(|left| left - 1);
        match self.is_json {
            true => writeln!(self.out, "{}", Value::Object(as_json(line, is_damage))),
            false => writeln!(self.out, "{line}"),
        }
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
fn as_json(line: &str, is_damage: bool) -> Map<String, Value> {
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
    object.insert("damaged".to_owned(), is_damage.into());
    object.insert("text".to_owned(), line.trim().into());
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_becomes_an_object() {
        let line = "      4096  event   topic 1 seq 7 id 0196 ts 5 committed 6 key \"seq 9 NO FRAME\" flags 0x2 body 12 bytes";
        let object = as_json(line, false);
        assert_eq!((&object["position"], &object["kind"]), (&4096.into(), &"event".into()));
        assert_eq!((&object["seq"], &object["topic"], &object["id"]), (&7.into(), &1.into(), &"0196".into()));
        assert_eq!((&object["body_bytes"], &object["commit_ms"]), (&12.into(), &6.into()));
        assert_eq!(object["damaged"], false);
        assert_eq!(as_json("      4096  NO FRAME for 12 bytes", true)["damaged"], true);
    }

    #[test]
    fn damage_after_the_limit_is_reported_too() {
        let mut lines = Lines { out: Vec::new(), left: Some(2), is_json: false, has_damage: false };
        for (line, is_damage) in [("one", false), ("two", false), ("three", true), ("four", false)] {
            lines.put(line, is_damage).unwrap();
        }
        assert_eq!((lines.out.as_slice(), lines.has_damage), (&b"one\ntwo\n"[..], true));
    }
}
