//! Writes the results as a page of tables, and draws the rates as a bar chart.

use crate::chart::{Bar, BarChart, BarGroup, bar_chart};
use crate::load::{Alone, LOADS, Load};
use crate::peer::Durability;
use crate::results::{Figures, Results, Spread};
use crate::verdicts::verdicts;
use std::fmt::Write;

/// The page. `raw` is the name of the file with the raw results.
#[must_use]
pub fn page(results: &Results, raw: &str) -> String {
    let mut page = String::new();
    put_head(&mut page, results, raw);
    put_rates(&mut page, results);
    put_verdicts(&mut page, results);
    put_latencies(&mut page, results);
    put_cpu(&mut page, results);
    put_alone(&mut page, results);
    put_accounting(&mut page, results);
    put_settings(&mut page, results);
    page
}

/// The rates as a bar chart.
#[must_use]
pub fn picture(results: &Results) -> String {
    let series =
        results.servers.iter().map(|server| format!("{} ({})", server.name, when_synced(server.durability)));
    let groups = compared(results).filter(|load| load.rate.is_none()).map(|load| {
        let bars = results.servers.iter().enumerate().filter_map(|(series, server)| {
            let value = results.figures(load.name, &server.name)?.rate.median;
            Some(Bar { series, value, label: number(value) })
        });
        BarGroup { name: load.title.into(), bars: bars.collect() }
    });
    let (payload_bytes, window) = (results.payload_bytes, number(results.window as f64));
    let (cpu, cores) = (&results.machine.cpu, results.machine.cores);
    let chart = BarChart {
        title: "Messages per second, each accounted for".into(),
        subtitle: format!("{payload_bytes}-byte payloads, {window} in flight, medians; {cpu}, {cores} cores"),
        series: series.collect(),
        groups: groups.collect(),
    };
    bar_chart(&chart)
}

fn when_synced(durability: Durability) -> &'static str {
    match durability {
        Durability::Synced => "synced",
        Durability::NotSynced => "not synced",
    }
}

/// The measured loads that were run on prombus and on peers.
fn compared(results: &Results) -> impl Iterator<Item = Load> {
    measured(results).filter(|load| load.alone.is_none())
}

fn measured(results: &Results) -> impl Iterator<Item = Load> {
    LOADS.into_iter().filter(|load| results.samples.iter().any(|sample| sample.load == load.name))
}

fn put_head(page: &mut String, results: &Results, raw: &str) {
    let Results { date, revision, machine, payload_bytes, window, seconds, .. } = results;
    let runs = results.samples.iter().map(|sample| sample.run).max().unwrap_or(0);
    let (runs, window) =
        (if runs == 1 { "1 run".into() } else { format!("{runs} runs") }, number(*window as f64));
    let memory_gb = machine.memory_bytes as f64 / 1e9;
    let _ = writeln!(
        page,
        "# prombus compared with its peers\n\n\
         Written by `bench/compare` on {date}, revision {revision}; raw results in [{raw}]({raw}).\n\n\
         {payload_bytes}-byte payloads, {window} in flight per connection; the figures are medians of {runs} of {seconds} s, with \
         the lowest and highest value in parentheses. All servers get their load from the same single-threaded client loop. Each \
         run uses a new server without data, one server at a time, in rotating order, with the data on the same disk.\n\n\
         Machine: {}, {} cores, {memory_gb:.1} GB of memory, Linux {}, {} on {}; a 4 KiB write with `fdatasync` takes \
         {:.2} ms; load average at the start: {}.\n",
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.file_system,
        machine.disk,
        machine.sync_ms,
        machine.load_average
    );
    for error in results.samples.iter().filter(|sample| sample.error.is_some()) {
        let (server, load, run) = (&error.server, &error.load, error.run);
        let _ = writeln!(
            page,
            "**FAILED: {server}, {load}, run {run}: {}**\n",
            error.error.as_deref().unwrap_or_default().replace('\n', " ")
        );
    }
    for missing in &results.not_compared {
        let _ = writeln!(page, "**{missing}**\n");
    }
}

fn put_table_head(page: &mut String, results: &Results, first: &str) {
    let names: Vec<String> = results.servers.iter().map(|server| server.name.clone()).collect();
    let _ = writeln!(page, "| {first} | {} |\n|---|{}", names.join(" | "), "---:|".repeat(names.len()));
}

/// A row with a cell for each server.
fn put_row(
    page: &mut String,
    results: &Results,
    load: &Load,
    title: &str,
    cell: &dyn Fn(&Figures) -> String,
) {
    let _ = write!(page, "| {title} |");
    for server in &results.servers {
        let text = match results.figures(load.name, &server.name) {
            None if results.samples_of(load.name, &server.name).next().is_some() => "**failed**".into(),
            None => "–".into(),
            Some(_) if load.rate.is_some() && !results.holds_rate(load, &server.name) => {
                "did not keep up".into()
            }
            Some(figures) if results.balance(load.name, &server.name).is_clean() => cell(&figures),
            Some(figures) => format!("{} **not clean**", cell(&figures)),
        };
        let _ = write!(page, " {text} |");
    }
    page.push('\n');
}

fn put_rates(page: &mut String, results: &Results) {
    page.push_str("## Messages per second\n\nFor loads with groups: deliveries per second.\n\n");
    put_table_head(page, results, "");
    for load in compared(results).filter(|load| load.rate.is_none()) {
        put_row(page, results, &load, load.title, &|figures| spread(figures.rate, &number));
    }
    let _ = write!(page, "| an answer means |");
    for server in &results.servers {
        let _ = write!(page, " {} |", when_synced(server.durability));
    }
    page.push_str("\n\n");
}

fn put_verdicts(page: &mut String, results: &Results) {
    page.push_str(
        "## Goals\n\nRatios are prombus divided by the other.\n\n| | compared with | measured | goal | |\n|---|---|---:|---|---|\n",
    );
    for verdict in verdicts(results) {
        let (measured, outcome) = match verdict.measured {
            None => ("–".into(), "the other did not keep up with the rate"),
            Some(measured) => {
                let outcome = if verdict.is_reached { "reached" } else { "**missed**" };
                (format!("{measured:.2}{}", verdict.unit), outcome)
            }
        };
        let (title, compared_with, wanted) = (verdict.title, verdict.compared_with, verdict.wanted);
        let _ = writeln!(page, "| {title} | {compared_with} | {measured} | {wanted} | {outcome} |");
    }
    page.push('\n');
}

fn put_latencies(page: &mut String, results: &Results) {
    let Some(load) = compared(results).find(|load| load.rate.is_some()) else { return };
    let _ = writeln!(
        page,
        "## Latencies at {}\n\nMilliseconds, from the time at which a message was due.\n",
        load.title
    );
    put_table_head(page, results, "");
    type Row = (&'static str, fn(&Figures) -> Spread);
    let rows: [Row; 4] = [
        ("to the answer, p50", |figures| figures.publish_p50_ms),
        ("to the answer, p99", |figures| figures.publish_p99_ms),
        ("to the delivery, p50", |figures| figures.deliver_p50_ms),
        ("to the delivery, p99", |figures| figures.deliver_p99_ms),
    ];
    for (title, of) in rows {
        put_row(page, results, &load, title, &|figures| spread(of(figures), &|value| format!("{value:.2}")));
    }
    page.push('\n');
}

fn put_cpu(page: &mut String, results: &Results) {
    page.push_str(
        "## CPU\n\nCores that the client used / cores that the server used / CPU time of the server per message or delivery. A \
         client well under 1 core is not the bottleneck.\n\n",
    );
    put_table_head(page, results, "");
    for load in compared(results) {
        put_row(page, results, &load, load.title, &|figures| {
            let Figures { client_cores, server_cores, server_cpu_us, .. } = figures;
            format!(
                "{:.2} / {:.2} / {:.1} µs",
                client_cores.median, server_cores.median, server_cpu_us.median
            )
        });
    }
    page.push('\n');
}

fn put_alone(page: &mut String, results: &Results) {
    let loads: Vec<Load> = measured(results).filter(|load| load.alone.is_some()).collect();
    if loads.is_empty() {
        return;
    }
    page.push_str("## prombus alone\n\n");
    if loads.iter().any(|load| load.alone == Some(Alone::Sustained)) {
        let _ = writeln!(page, "A sustained load is one run of {} s.\n", results.sustained_seconds);
    }
    let _ = writeln!(
        page,
        "\
         | | messages per second | slowest second | server cores | CPU per message |\n|---|---:|---:|---:|---:|"
    );
    for load in loads {
        let Some(figures) = results.figures(load.name, "prombus") else { continue };
        let rate = match load.alone {
            Some(Alone::Sustained) => number(figures.rate.median),
            _ => spread(figures.rate, &number),
        };
        let _ = writeln!(
            page,
            "| {} | {rate} | {} | {:.2} | {:.2} µs |",
            load.title,
            number(figures.slowest_second as f64),
            figures.server_cores.median,
            figures.server_cpu_us.median
        );
    }
    page.push('\n');
}

fn put_accounting(page: &mut String, results: &Results) {
    page.push_str(
        "## Accounting\n\nEvery message is numbered. Each must be answered once, and delivered to each group once and in order.\n\n\
         | | sent | answered | delivered | lost | doubled | out of order |\n|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for server in &results.servers {
        let mut all = [0; 6];
        for load in measured(results) {
            let balance = results.balance(load.name, &server.name);
            let counts = [
                balance.sent,
                balance.answered,
                balance.delivered,
                balance.lost,
                balance.doubled,
                balance.out_of_order,
            ];
            all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
        }
        let cells = all.map(|count| number(count as f64)).join(" | ");
        let _ = writeln!(page, "| {} | {cells} |", server.name);
    }
    page.push('\n');
}

fn put_settings(page: &mut String, results: &Results) {
    page.push_str(
        "## Settings\n\n| | version | an answer means | settings that are not the default |\n|---|---|---|---|\n",
    );
    for server in &results.servers {
        let settings: Vec<String> = server.settings.iter().map(|setting| format!("`{setting}`")).collect();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            server.name,
            server.version,
            server.promise,
            settings.join("<br>")
        );
    }
}

/// Formats the median, followed by the lowest and the highest value.
pub(crate) fn spread(spread: Spread, format: &dyn Fn(f64) -> String) -> String {
    if spread.min == spread.max {
        return format(spread.median);
    }
    format!("{} ({}–{})", format(spread.median), format(spread.min), format(spread.max))
}

pub use prombus_bench::report::grouped as number;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::results;

    #[test]
    fn the_page_has_rates_ratios_and_accounting() {
        let results = results(&[("publish", "prombus", 541_000.0), ("publish", "nats", 200_000.0)]);
        let page = page(&results, "raw.json");
        assert!(
            page.contains(
                "| publish, 1 connection | 541,000 (486,900–595,100) | 200,000 (180,000–220,000) |"
            ),
            "{page}"
        );
        assert!(page.contains("| publish, 1 connection | nats | 2.71x | at least 2 | reached |"), "{page}");
        assert!(page.contains("| an answer means | synced | not synced |"));
        assert!(page.contains("| nats | 0 | 0 | 0 | 0 | 0 | 0 |"));
    }

    #[test]
    fn a_peer_that_lost_messages_is_marked() {
        let mut results = results(&[("publish", "prombus", 1_000.0), ("publish", "nats", 500.0)]);
        results.samples[4].measurement.as_mut().unwrap().balance.lost = 7;
        let page = page(&results, "raw.json");
        assert!(page.contains("500 (450–550) **not clean**"), "{page}");
        assert!(page.contains("| nats | 0 | 0 | 0 | 7 | 0 | 0 |"));
    }

    #[test]
    fn a_server_that_failed_is_marked() {
        let mut results = results(&[("publish", "prombus", 1_000.0), ("publish", "nats", 500.0)]);
        for sample in &mut results.samples[3..] {
            sample.measurement = None;
            sample.error = Some("gone".into());
        }
        let page = page(&results, "raw.json");
        assert!(page.contains("| 1,000 (900–1,100) | **failed** |"));
        assert!(page.contains("**FAILED: nats, publish, run 1: gone**"));
    }

    #[test]
    fn latencies_of_a_server_that_did_not_keep_up_are_not_shown() {
        let results = results(&[("steady", "prombus", 11_500.0), ("steady", "nats", 4_000.0)]);
        assert!(page(&results, "raw.json").contains("| 0.00 | did not keep up |"));
        assert!(
            page(&results, "raw.json")
                .contains("| – | at most 0.5 | the other did not keep up with the rate |")
        );
    }

    #[test]
    fn the_picture_has_a_bar_for_each_server() {
        let results = results(&[("publish", "prombus", 541_000.0), ("publish", "nats", 200_000.0)]);
        let svg = picture(&results);
        assert!(svg.contains(">541,000<") && svg.contains(">200,000<") && svg.contains("nats (not synced)"));
    }

    #[test]
    fn thousands_are_separated_by_commas() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0.0, 999.0, 1e3, 1_234_567.0].map(number));
    }
}
