//! The report over all rounds: the tables, the targets, and every round as JSON.

use crate::append_rows::{AppendRow, Segments};
use crate::appends::AppendRound;
use crate::arguments::Arguments;
use crate::ids::IdKind;
use crate::json::Json;
use crate::machine::Machine;
use crate::publisher::BODY_BYTES;
use crate::reads::{ReadRound, ReadRow, Source};
use crate::recorder::Percentiles;
use crate::table::{Table, grouped, micros, percent};
use std::fmt;
use std::time::Duration;

const RATIO_TARGET: f64 = 0.6;
const CLIENT_IDS_TARGET: f64 = 0.85;
const ALLOCATIONS_TARGET: f64 = 0.05;
const SCAN_TARGET: f64 = 3_000_000.0;

/// All rows with their rounds.
pub struct Report {
    appends: Vec<(AppendRow, Vec<AppendRound>)>,
    reads: Vec<(ReadRow, Vec<ReadRound>)>,
}

impl Report {
    pub fn new(appends: &[AppendRow], reads: &[ReadRow]) -> Self {
        Self {
            appends: appends.iter().map(|row| (*row, Vec::new())).collect(),
            reads: reads.iter().map(|row| (*row, Vec::new())).collect(),
        }
    }

    pub fn add_append(&mut self, row: usize, round: AppendRound) {
        self.appends[row].1.push(round);
    }

    pub fn add_read(&mut self, row: usize, round: ReadRound) {
        self.reads[row].1.push(round);
    }

    /// Rows that ran.
    fn appends(&self) -> impl Iterator<Item = (&AppendRow, &[AppendRound])> {
        self.appends.iter().map(|(row, rounds)| (row, &rounds[..])).filter(|(_, rounds)| !rounds.is_empty())
    }

    fn reads(&self) -> impl Iterator<Item = (&ReadRow, &[ReadRound])> {
        self.reads.iter().map(|(row, rounds)| (row, &rounds[..])).filter(|(_, rounds)| !rounds.is_empty())
    }

    fn append_table(&self) -> Table {
        let mut table = Table::new(&[
            "durable appends",
            "events/s",
            "raw/s",
            "ratio",
            "MB/s",
            "events/commit",
            "commit p50 µs",
            "p99",
            "raw p50",
            "p99",
            "durable p50 µs",
            "p99",
            "allocs/event",
        ]);
        for (row, rounds) in self.appends() {
            let of = |value: fn(&AppendRound) -> f64| median(rounds, value);
            let latency = |value: fn(&AppendRound) -> Duration| {
                micros(Duration::from_secs_f64(median(rounds, |round| value(round).as_secs_f64())))
            };
            table.add(vec![
                row.name(),
                grouped(of(AppendRound::events_per_second)),
                grouped(of(AppendRound::raw_events_per_second)),
                percent(of(AppendRound::ratio)),
                grouped(of(|round| round.totals.bytes as f64 / round.totals.elapsed.as_secs_f64() / 1e6)),
                grouped(of(|round| round.totals.events as f64 / round.totals.commits as f64)),
                latency(|round| round.commit.p50),
                latency(|round| round.commit.p99),
                latency(|round| round.raw_commit.p50),
                latency(|round| round.raw_commit.p99),
                latency(|round| round.durable.p50),
                latency(|round| round.durable.p99),
                format!("{:.4}", of(AppendRound::allocations_per_event)),
            ]);
        }
        table
    }

    fn read_table(&self) -> Table {
        let mut table = Table::new(&["reads", "events/s", "body MB/s", "allocs/event"]);
        for (row, rounds) in self.reads() {
            let events = median(rounds, ReadRound::events_per_second);
            table.add(vec![
                row.name(),
                grouped(events),
                grouped(events * BODY_BYTES as f64 / 1e6),
                format!("{:.4}", median(rounds, ReadRound::allocations_per_event)),
            ]);
        }
        table
    }

    /// The targets that apply to the rows that ran.
    fn target_table(&self) -> Table {
        let mut table = Table::new(&["target", "wanted", "found", ""]);
        let mut add = |what: String, wanted: String, found: String, is_met: bool| {
            table.add(vec![what, wanted, found, if is_met { "met" } else { "MISSED" }.to_owned()]);
        };
        for (row, rounds) in self.appends().filter(|(row, _)| row.in_flight == 1_024) {
            let ratio = median(rounds, AppendRound::ratio);
            let wanted = format!(">= {}", percent(RATIO_TARGET));
            add(format!("{}: of raw", row.name()), wanted, percent(ratio), ratio >= RATIO_TARGET);
        }
        for (row, rounds) in self.appends().filter(|(row, _)| row.ids == IdKind::ClientV7) {
            let is_twin = |other: &AppendRow| AppendRow { ids: IdKind::Server, ..*row } == *other;
            let Some((_, others)) = self.appends().find(|(other, _)| is_twin(other)) else { continue };
            let of = |rounds| median(rounds, AppendRound::events_per_second);
            let ratio = of(rounds) / of(others);
            let wanted = format!(">= {}", percent(CLIENT_IDS_TARGET));
            let is_met = ratio >= CLIENT_IDS_TARGET;
            add(format!("{}: of server ids", row.name()), wanted, percent(ratio), is_met);
        }
        let is_batched = |row: &AppendRow| row.in_flight == 1_024 && row.segments == Segments::Ready;
        for (row, rounds) in self.appends().filter(|(row, _)| is_batched(row)) {
            let count = median(rounds, AppendRound::allocations_per_event);
            let wanted = format!("< {ALLOCATIONS_TARGET}");
            let is_met = count < ALLOCATIONS_TARGET;
            add(format!("{}: allocations/event", row.name()), wanted, format!("{count:.4}"), is_met);
        }
        let is_scan = |row: &ReadRow| row.source == Source::Warm && row.topics == 1;
        for (row, rounds) in self.reads().filter(|(row, _)| is_scan(row)) {
            let rate = median(rounds, ReadRound::events_per_second);
            let wanted = format!(">= {}", grouped(SCAN_TARGET));
            add(format!("{}: events/s", row.name()), wanted, grouped(rate), rate >= SCAN_TARGET);
        }
        table
    }

    pub fn json(&self, machine: &Machine, arguments: &Arguments) -> Json {
        let appends = self.appends().map(|(row, rounds)| {
            Json::Object(vec![
                ("name", Json::Text(row.name())),
                ("in_flight", row.in_flight.into()),
                ("topics", row.topics.into()),
                ("ids", row.ids.name().into()),
                ("rounds", Json::List(rounds.iter().map(append_json).collect())),
            ])
        });
        let reads = self.reads().map(|(row, rounds)| {
            Json::Object(vec![
                ("name", Json::Text(row.name())),
                ("topics", row.topics.into()),
                ("rounds", Json::List(rounds.iter().map(read_json).collect())),
            ])
        });
        Json::Object(vec![
            ("machine", machine_json(machine)),
            ("body_bytes", BODY_BYTES.into()),
            ("round_seconds", arguments.round.as_secs_f64().into()),
            ("sustained_round_seconds", arguments.sustained_round.as_secs_f64().into()),
            ("appends", Json::List(appends.collect())),
            ("reads", Json::List(reads.collect())),
        ])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "\nEvents with a body of {BODY_BYTES} bytes; medians.")?;
        if self.appends().next().is_some() {
            writeln!(formatter, "\n{}", self.append_table())?;
        }
        for (row, rounds) in self.appends().filter(|(row, _)| row.segments == Segments::Ready) {
            let files: usize = rounds.iter().map(|round| round.totals.new_files).sum();
            if files > 0 {
                let name = row.name();
                writeln!(
                    formatter,
                    "{name}: the prepared segments were not enough; {files} new files were created\n"
                )?;
            }
        }
        if self.reads().next().is_some() {
            writeln!(formatter, "{}", self.read_table())?;
        }
        write!(formatter, "{}", self.target_table())
    }
}

fn median<T>(rounds: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn append_json(round: &AppendRound) -> Json {
    Json::Object(vec![
        ("events", round.totals.events.into()),
        ("bytes", round.totals.bytes.into()),
        ("commits", round.totals.commits.into()),
        ("seconds", round.totals.elapsed.as_secs_f64().into()),
        ("raw_seconds", round.raw_elapsed.as_secs_f64().into()),
        ("ratio", round.ratio().into()),
        ("commit_us", percentiles_json(&round.commit)),
        ("raw_commit_us", percentiles_json(&round.raw_commit)),
        ("durable_us", percentiles_json(&round.durable)),
        ("allocations", round.totals.allocations.into()),
        ("allocated_bytes", round.totals.allocated_bytes.into()),
        ("new_segment_files", round.totals.new_files.into()),
    ])
}

fn read_json(round: &ReadRound) -> Json {
    Json::Object(vec![
        ("events", round.events.into()),
        ("seconds", round.elapsed.as_secs_f64().into()),
        ("allocations", round.allocations.into()),
    ])
}

fn percentiles_json(percentiles: &Percentiles) -> Json {
    let micros = |duration: Duration| Json::Number((duration.as_secs_f64() * 1e7).round() / 10.0);
    Json::Object(vec![
        ("p50", micros(percentiles.p50)),
        ("p99", micros(percentiles.p99)),
        ("max", micros(percentiles.max)),
    ])
}

fn machine_json(machine: &Machine) -> Json {
    Json::Object(vec![
        ("cores", machine.cores.into()),
        ("processor", machine.processor.as_str().into()),
        ("memory_bytes", machine.memory_bytes.into()),
        ("kernel", machine.kernel.as_str().into()),
        ("file_system", machine.file_system.as_str().into()),
        ("free_bytes", machine.free_bytes.into()),
    ])
}
