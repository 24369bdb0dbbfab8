//! The table that people read.

use super::Row;
use super::place::describe;
use crate::args::BenchArgs;
use prombus_bench::Percentiles;
use prombus_bench::report::grouped;
use std::fmt::Write as _;

/// The results in columns, with what they mean above and below.
pub fn text(args: &BenchArgs, rows: &[Row]) -> String {
    let mut text = format!(
        "{}; {} bytes a payload, {} in flight{}\n\n",
        describe(args),
        args.size,
        args.window,
        if args.client_ids { ", ids made by the client" } else { "" }
    );
    let head = [
        "load",
        "per second",
        "MB/s",
        "OK p50",
        "p90",
        "p99",
        "p99.9",
        "max ms",
        "event p50",
        "p99 ms",
        "client cores",
        "server cores",
        "µs/message",
        "lost",
        "doubled",
        "out of order",
    ];
    let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(cells));
    let widths: Vec<usize> = (0..head.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    for line in &lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // The first column is words, all others are figures.
            let _ =
                if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.push('\n');
    }
    text.push_str(
        "\nOK: from due to answered. event: from due to delivered. µs/message: CPU time of the server.\n",
    );
    if args.url.is_some() {
        text.push_str("The topics bench.… and their groups stay on the server.\n");
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
