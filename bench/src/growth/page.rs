//! Writes the results as a page of tables.

use super::dimension::Dimension;
use super::results::{Growth, Measured, Row};
use super::verdicts::{backlog_goal, faults, ratios};
use crate::machine::Machine;
use crate::page::{number, spread};
use crate::results::{Figures, Spread};
use std::fmt::Write;

/// A column: its name, and a function that returns a row's cell.
type Column = (&'static str, fn(&Row, &Figures) -> String);

/// The page. `raw` is the name of the file with the raw results.
#[must_use]
pub fn page(growth: &Growth, raw: &str) -> String {
    let mut page = String::new();
    let Machine { cpu, cores, memory_bytes, kernel, file_system, disk, sync_ms, .. } = &growth.machine;
    let _ = writeln!(
        page,
        "# How costs grow\n\n\
         Written by `bench/growth`; raw results in [{raw}]({raw}), the chart in [growth.svg](growth.svg). prombus alone, with \
         default settings, over WebSocket; every message is accounted for. The figures are medians, with the lowest and highest \
         value in parentheses. Payloads have 256 bytes and 1,000 messages are in flight unless stated otherwise. CPU is the CPU \
         time of the server per message or delivery; memory is its resident memory at the end.\n\n\
         Machine: {cpu}, {cores} cores, {:.1} GB of memory, Linux {kernel}, {file_system} on {disk}; a 4 KiB write with \
         `fdatasync` takes {sync_ms:.2} ms.\n",
        *memory_bytes as f64 / 1e9,
    );
    if let Some((text, _)) = backlog_goal(growth) {
        let _ = writeln!(page, "{text}\n");
    }
    for measured in &growth.dimensions {
        if let Some(dimension) = measured.dimension() {
            put_dimension(&mut page, dimension, measured);
        }
    }
    page
}

fn put_dimension(page: &mut String, dimension: Dimension, measured: &Measured) {
    let Measured { date, revision, runs, seconds, .. } = measured;
    let (title, text) = title_and_text(dimension);
    let times = if *runs == 1 { "1 run".into() } else { format!("{runs} runs") };
    let _ = writeln!(page, "## {title}\n\n{text} {times} of {seconds} s, {date}, revision {revision}.\n");
    let columns = columns(dimension);
    let base = if dimension == Dimension::Backlog { "the empty server" } else { "the first row" };
    let _ = write!(page, "| {} |", dimension.unit());
    for (name, _) in &columns {
        let _ = write!(page, " {name} |");
    }
    let _ = writeln!(page, " rate relative to {base} | cost relative to {base} |");
    let _ = writeln!(page, "|---:|{}", "---:|".repeat(columns.len() + 2));
    for row in &measured.rows {
        put_row(page, dimension, &columns, measured, row);
    }
    page.push('\n');
    for error in measured.rows.iter().flat_map(|row| &row.errors) {
        let _ = writeln!(page, "**FAILED: {}**\n", error.replace('\n', " "));
    }
    let faults = faults(measured);
    for fault in &faults {
        let _ = writeln!(page, "**Grows too much** – {fault}.\n");
    }
    if faults.is_empty() {
        page.push_str("No cost grows too much.\n\n");
    }
}

fn put_row(page: &mut String, dimension: Dimension, columns: &[Column], measured: &Measured, row: &Row) {
    let label = dimension.label(row.point());
    let clean = if row.is_clean() { "" } else { " **not clean**" };
    let _ = write!(page, "| {label}{clean} |");
    let Some((figures, ratios)) = Figures::of(&row.runs).zip(ratios(measured, row)) else {
        let _ = writeln!(page, "{}", " **failed** |".repeat(columns.len() + 2));
        return;
    };
    for (_, cell) in columns {
        let _ = write!(page, " {} |", cell(row, &figures));
    }
    let _ = writeln!(page, " {:.2}x | {:.2}x |", ratios.rate, ratios.cost);
}

fn title_and_text(dimension: Dimension) -> (&'static str, &'static str) {
    match dimension {
        Dimension::Topics => (
            "Topics",
            "One connection publishes to all topics in turn; the topics are created beforehand. The cost per message must not grow.",
        ),
        Dimension::Groups => (
            "Groups",
            "One connection publishes, and each group receives every message over its own connection. The cost per delivery \
             must not grow.",
        ),
        Dimension::Connections => (
            "Connections",
            "All connections publish, with 1,000 messages in flight in total; 5,000 connections have one each. With fewer messages \
             in flight per connection, fewer share a read, a write and a wake-up of the server, so the cost per message grows. From \
             one message per connection on, it must not grow any more.",
        ),
        Dimension::Payloads => (
            "Payloads",
            "One connection publishes, with at most 8 MiB in flight. The cost per message must not grow faster than its size.",
        ),
        Dimension::Backlog => (
            "Backlog",
            "One connection publishes to a server that already stores the given number of events. These runs alternate with runs \
             on an empty server, and a row is compared with those. The runs themselves add to the backlog. A new group starts at \
             the end. Opening is the time from the start of the process until it accepts connections, measured once after a normal \
             stop and once after a kill -9 under load. The cost per message must not grow.",
        ),
    }
}

fn columns(dimension: Dimension) -> Vec<Column> {
    const RATE: Column = ("messages/s", |_, figures| spread(figures.rate, &number));
    const CPU: Column = ("CPU µs", |_, figures| microseconds(figures.server_cpu_us));
    const P50: Column = ("p50 ms", |_, figures| milliseconds(figures.publish_p50_ms));
    const P99: Column = ("p99 ms", |_, figures| milliseconds(figures.publish_p99_ms));
    const MEMORY: Column = ("memory MB", |_, figures| number(figures.server_resident_bytes.median / 1e6));
    match dimension {
        Dimension::Topics => vec![RATE, CPU, P99, MEMORY],
        Dimension::Groups => vec![
            ("deliveries/s", |_, figures| spread(figures.rate, &number)),
            CPU,
            ("to the delivery, p99 ms", |_, figures| milliseconds(figures.deliver_p99_ms)),
            MEMORY,
        ],
        Dimension::Connections => {
            vec![
                ("in flight per connection", |row, _| number(row.window as f64)),
                RATE,
                CPU,
                ("client cores", |_, figures| format!("{:.2}", figures.client_cores.median)),
                P50,
                P99,
                MEMORY,
            ]
        }
        Dimension::Payloads => vec![
            ("in flight", |row, _| number(row.window as f64)),
            RATE,
            ("MB/s", |_, figures| format!("{:.0}", figures.bytes_per_second.median / 1e6)),
            CPU,
            ("CPU ns per byte", |row, figures| {
                format!("{:.2}", figures.server_cpu_us.median * 1e3 / row.size as f64)
            }),
            MEMORY,
        ],
        Dimension::Backlog => vec![
            RATE,
            ("empty server, messages/s", |row, _| {
                Figures::of(&row.beside).map_or("–".into(), |beside| spread(beside.rate, &number))
            }),
            CPU,
            P99,
            MEMORY,
            ("with a new group, deliveries/s", |row, _| {
                Figures::of(&row.with_group).map_or("–".into(), |group| spread(group.rate, &number))
            }),
            ("opening ms, after a stop / a kill", |row, _| {
                row.opening.map_or("–".into(), |opening| {
                    format!("{:.0} / {:.0}", opening.after_stop_ms, opening.after_kill_ms)
                })
            }),
        ],
    }
}

fn microseconds(of: Spread) -> String {
    spread(of, &|value| if value < 100.0 { format!("{value:.2}") } else { number(value) })
}

fn milliseconds(of: Spread) -> String {
    format!("{:.1}", of.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::results::tests::measured;

    #[test]
    fn each_step_has_a_row_with_its_cost_relative_to_the_first() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Topics, &[(1, 400_000.0, 1.25), (10_000, 200_000.0, 2.5)]));
        let page = page(&growth, "growth.json");
        assert!(page.contains("| 1 | 400,000 | 1.25 | 0.0 | 50 | 1.00x | 1.00x |"), "{page}");
        assert!(page.contains("| 10,000 | 200,000 | 2.50 | 0.0 | 50 | 0.50x | 2.00x |"), "{page}");
        assert!(page.contains("**Grows too much** – 10,000 topics: a message costs the server 2.0 times"));
        assert!(!page.contains("live publishing"), "no backlog was measured");
    }

    #[test]
    fn a_dimension_without_faults_says_so() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Payloads, &[(64, 400_000.0, 1.0), (1 << 20, 900.0, 900.0)]));
        let page = page(&growth, "growth.json");
        assert!(page.contains("No cost grows too much."), "{page}");
        assert!(page.contains("| 1 MiB | 8 | 900 | "), "{page}");
    }

    #[test]
    fn a_failed_step_is_marked() {
        let mut growth = Growth::default();
        let mut topics = measured(Dimension::Topics, &[(1, 400_000.0, 1.0), (100, 1.0, 1.0)]);
        topics.rows[1].runs.clear();
        topics.rows[1].errors.push("gone".into());
        growth.put(topics);
        let page = page(&growth, "growth.json");
        assert!(page.contains("| 100 **not clean** | **failed** |"), "{page}");
        assert!(page.contains("**FAILED: gone**"), "{page}");
    }

    #[test]
    fn all_columns_of_a_backlog_are_filled() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Backlog, &[(0, 400_000.0, 1.0), (1_000, 400_000.0, 1.0)]));
        let page = page(&growth, "growth.json");
        assert!(page.contains("| 0 | 400,000 | – | 1.00 | 0.0 | 50 | – | – | 1.00x | 1.00x |"), "{page}");
    }
}
