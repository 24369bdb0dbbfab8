//! Prints events: lines for people on a terminal, otherwise complete events as JSON lines.

use super::json_text::put_json;
use super::style::{Painter, Style, escape_controls};
use crate::args::{ColorWhen, FormatArgs};
use crate::output::{Stdout, stdout};
use crate::time;
use prombus_client::EventRecord;
use std::io::{BufWriter, Write};

/// The column of topics is never wider.
const TOPIC_WIDTH_MAX: usize = 40;

/// Writes events to standard output.
pub struct EventPrinter {
    out: BufWriter<Stdout>,
    form: Form,
    /// The widest topic so far, in characters.
    topic_width: usize,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// Complete events as JSON.
    Json { is_terminal: bool },
    /// Lines for people.
    Text(Painter),
}

impl EventPrinter {
    /// A printer for standard output.
    pub fn new(format: FormatArgs) -> Self {
        let is_terminal = stdout().is_terminal();
        let form = match format.json || !is_terminal && format.color != ColorWhen::Always {
            true => Form::Json { is_terminal },
            false => Form::Text(Painter::new(format.color, is_terminal)),
        };
        Self { out: BufWriter::with_capacity(64 * 1024, stdout()), form, topic_width: 0 }
    }

    /// Prints an event. `json` is the event's JSON text, without line breaks. For a redelivery, `attempt` is above 1.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn print(&mut self, event: &EventRecord, json: &[u8], attempt: u32) -> std::io::Result<()> {
        match self.form {
            Form::Json { is_terminal: false } => self.out.write_all(json)?,
            Form::Json { is_terminal: true } => {
                self.out.write_all(escape_controls(&String::from_utf8_lossy(json)).as_bytes())?;
            }
            Form::Text(painter) => {
                self.fit_topic(event.topic.as_str());
                let line = line_of(event, attempt, self.topic_width, painter);
                self.out.write_all(line.as_bytes())?;
            }
        }
        self.out.write_all(b"\n")
    }

    /// Makes the column of topics wide enough for a topic.
    pub fn fit_topic(&mut self, topic: &str) {
        self.topic_width = self.topic_width.max(topic.chars().count().min(TOPIC_WIDTH_MAX));
    }

    /// Writes buffered lines.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }

    /// Whether lines are for people.
    pub fn is_for_people(&self) -> bool {
        matches!(self.form, Form::Text(_))
    }
}

/// The line of an event for people.
fn line_of(event: &EventRecord, attempt: u32, topic_width: usize, painter: Painter) -> String {
    let mut line = String::new();
    painter.put(&mut line, Style::Faint, &time::text(event.ts));
    line.push_str("  ");
    let topic = escape_controls(event.topic.as_str());
    painter.put(&mut line, Style::Topic, &topic);
    line.push_str(&" ".repeat(topic_width.saturating_sub(topic.chars().count()) + 2));
    painter.put(&mut line, Style::Seq, &format!("#{}", event.seq));
    line.push_str("  ");
    if let Some(key) = &event.key {
        painter.put(&mut line, Style::Key, &escape_controls(key));
        line.push_str("  ");
    }
    put_json(&mut line, event.payload.get(), painter);
    if attempt > 1 {
        line.push_str("  ");
        painter.put(&mut line, Style::Warning, &format!("(attempt {attempt})"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_time_topic_seq_key_and_compact_payload() {
        let json = r#"{"id":"0196f1d0-0000-7000-8000-000000000001","seq":17,"ts":1700000000000,"topic":"orders.new",
            "key":"c\u001b[2J7","payload":{"total": 12}}"#;
        let mut event: EventRecord = serde_json::from_str(json).unwrap();
        let plain = Painter::new(ColorWhen::Never, true);
        assert_eq!(
            line_of(&event, 1, 12, plain),
            r#"2023-11-14T22:13:20.000Z  orders.new    #17  c\u001b[2J7  {"total":12}"#
        );
        event.key = None;
        let redelivered = line_of(&event, 2, 0, plain);
        assert_eq!(redelivered, r#"2023-11-14T22:13:20.000Z  orders.new  #17  {"total":12}  (attempt 2)"#);
        let colored = line_of(&event, 1, 0, Painter::new(ColorWhen::Always, false));
        assert!(colored.contains("\x1b[36morders.new\x1b[0m  \x1b[33m#17\x1b[0m"), "{colored:?}");
    }
}
