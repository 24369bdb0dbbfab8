//! Formats the results as a table or as JSON.

use crate::args::BenchArgs;
use crate::cmd::table::{Side, lines};
use prombus_bench::report::grouped;
use prombus_bench::{Measurement, Percentiles};
use serde::Serialize;

/// The first column is text, all others are numbers.
const COLUMNS: [(&str, Side); 16] = [
    ("load", Side::Left),
    ("per second", Side::Right),
    ("MB/s", Side::Right),
    ("OK p50", Side::Right),
    ("p90", Side::Right),
    ("p99", Side::Right),
    ("p99.9", Side::Right),
    ("max ms", Side::Right),
    ("event p50", Side::Right),
    ("p99 ms", Side::Right),
    ("client cores", Side::Right),
    ("server cores", Side::Right),
    ("µs/message", Side::Right),
    ("lost", Side::Right),
    ("doubled", Side::Right),
    ("out of order", Side::Right),
];

/// The result of one load.
#[derive(Debug, Serialize)]
pub struct Row {
    pub load: &'static str,
    /// A description of the load.
    pub what: String,
    /// The number of the run, if loads are repeated.
    pub run: u32,
    #[serde(flatten)]
    pub measurement: Measurement,
    /// CPU time of the server per message or delivery, in microseconds.
    pub server_cpu_us: Option<f64>,
}

/// The results as a table, with the settings above it and a legend below.
pub fn text(args: &BenchArgs, rows: &[Row]) -> String {
    let mut text = format!(
        "{}; {} bytes a payload, {} in flight{}\n\n",
        describe(args),
        args.size,
        args.window,
        if args.client_ids { ", ids made by the client" } else { "" }
    );
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    text.push_str(&lines(&COLUMNS, &rows));
    text.push_str(
        "\nOK: time from when a message is due to its OK. event: time from due to delivered. µs/message: CPU time of the \
         server.\n",
    );
    if args.has_server() {
        text.push_str("The topics bench.… and their groups remain on the server.\n");
    }
    text.truncate(text.trim_end().len());
    text
}

fn cells(row: &Row) -> Vec<String> {
    let it = &row.measurement;
    let ms = |percentiles: &Percentiles, value: f64| {
        if percentiles.count == 0 { "-".to_owned() } else { format!("{value:.2}") }
    };
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    vec![
        row.what.clone(),
        grouped(it.per_second),
        format!("{:.0}", it.bytes_per_second / 1e6),
        ms(&it.publish, it.publish.p50_ms),
        ms(&it.publish, it.publish.p90_ms),
        ms(&it.publish, it.publish.p99_ms),
        ms(&it.publish, it.publish.p999_ms),
        ms(&it.publish, it.publish.max_ms),
        ms(&it.deliver, it.deliver.p50_ms),
        ms(&it.deliver, it.deliver.p99_ms),
        format!("{:.2}", it.client_cores()),
        optional(it.server_cores()),
        optional(row.server_cpu_us),
        it.balance.lost.to_string(),
        it.balance.doubled.to_string(),
        it.balance.out_of_order.to_string(),
    ]
}

/// Where the loads run, in words.
fn describe(args: &BenchArgs) -> String {
    match args.server.flags.url.as_ref().or(args.server.flags.context.as_ref()) {
        Some(server) => server.clone(),
        None if args.in_process => "the library in this process, with the log".to_owned(),
        None => "a temporary server, over WebSocket".to_owned(),
    }
}

/// The results as JSON.
///
/// # Errors
/// When the results cannot be serialized.
pub fn json(args: &BenchArgs, rows: &[Row]) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Report<'a> {
        version: &'static str,
        target: String,
        size: usize,
        window: usize,
        client_ids: bool,
        results: &'a [Row],
    }
    Ok(serde_json::to_string(&Report {
        version: env!("CARGO_PKG_VERSION"),
        target: describe(args),
        size: args.size,
        window: args.window,
        client_ids: args.client_ids,
        results: rows,
    })?)
}
