//! Prints events of a state: as a table, as lines of the same columns, or as JSON lines.

use crate::cmd::style::put_line;
use crate::cmd::table::{Side, lines, shortened};
use crate::output::stdout;
use crate::time;
use bytes::Bytes;
use prombus_client::EventRecord;
use std::io::Write;

const KEY_CHARS_MAX: usize = 40;
const PAYLOAD_CHARS_MAX: usize = 80;

/// Prints events.
pub struct Printer {
    is_json: bool,
    /// The widths of the columns KEY and SEQ.
    widths: [usize; 2],
}

impl Printer {
    /// A printer whose lines have the columns of a table with these rows.
    pub fn new(is_json: bool, rows: &[Vec<String>]) -> Self {
        let width = |column: usize, least: usize| {
            rows.iter().map(|row| row[column].chars().count()).chain([least]).max().unwrap_or(least)
        };
        Self { is_json, widths: [width(0, 3), width(1, 3)] }
    }

    /// Prints a table; nothing if there are no rows.
    pub fn table(&self, rows: Vec<Vec<String>>) -> anyhow::Result<()> {
        let columns =
            [("KEY", Side::Left), ("SEQ", Side::Right), ("TIME", Side::Left), ("VALUE", Side::Left)];
        if !rows.is_empty() {
            write!(stdout(), "{}", lines(&columns, &rows))?;
        }
        Ok(())
    }

    /// Prints a changed key.
    pub fn change(&self, json: &Bytes, event: &EventRecord) -> anyhow::Result<()> {
        if self.is_json {
            put_line(json)?;
        } else {
            let [key_width, seq_width] = self.widths;
            if let [key, seq, time, value] = row(event).as_slice() {
                writeln!(stdout(), "{key:<key_width$}  {seq:>seq_width$}  {time}  {value}")?;
            }
        }
        // The output may be a pipe, whose reader waits for each change.
        stdout().flush()?;
        Ok(())
    }
}

/// The columns of an event: key, seq, time, payload.
pub fn row(event: &EventRecord) -> Vec<String> {
    let payload = event.payload.get();
    let value =
        if payload == "null" { "(deleted)".to_owned() } else { shortened(payload, PAYLOAD_CHARS_MAX) };
    vec![
        shortened(event.key.as_deref().unwrap_or("-"), KEY_CHARS_MAX),
        event.seq.to_string(),
        time::text(event.ts),
        value,
    ]
}
