//! Tests that the files in contrib/ name only metrics that exist. `tests/metrics/run` checks their syntax with promtool.

use std::collections::BTreeSet;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");

/// A gauge of dead letters that are neither redriven nor discarded, by topic.
const OPEN_DEAD_LETTERS: &str = "prombus_dead_letters_open";

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}{path}")).unwrap()
}

/// The metrics of the tables in docs/operating.md, which other tests compare with the server.
fn documented() -> BTreeSet<String> {
    let document = read("docs/operating.md");
    let section = document.split("\n## Metrics\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let cells =
        section.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').nth(1).unwrap());
    let mut names: BTreeSet<String> =
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    assert!(names.len() > 45, "{names:?}");
    names.insert(OPEN_DEAD_LETTERS.to_owned());
    names
}

/// The words of a text that look like names of metrics.
fn metrics_in(text: &str) -> BTreeSet<String> {
    const STARTS: &[&str] = &["prombus_", "process_", "events_", "ws_", "subscribe_", "delivery_"];
    let words = text.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let words = words.filter(|word| STARTS.iter().any(|start| word.starts_with(start)));
    let is_histogram =
        |word: &str| word.contains("_duration_") || word.contains("_latency_") || word.contains("_batch_");
    let families = words.map(|word| match word.rsplit_once('_') {
        Some((family, "bucket" | "sum" | "count")) if is_histogram(word) => family.to_owned(),
        _ => word.to_owned(),
    });
    families.collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_only_metrics_that_exist() {
    let documented = documented();
    for path in [
        "contrib/grafana/prombus.json",
        "contrib/prometheus/alerts.yml",
        "contrib/prometheus/alerts_test.yml",
    ] {
        let named = metrics_in(&read(path));
        assert!(named.len() > 10, "{path}: {named:?}");
        let unknown: Vec<_> = named.difference(&documented).collect();
        assert!(unknown.is_empty(), "{path} names metrics that do not exist: {unknown:?}");
    }
}

#[test]
fn every_alert_is_tested() {
    let rules = read("contrib/prometheus/alerts.yml");
    let tests = read("contrib/prometheus/alerts_test.yml");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        let fires = tests
            .split("- eval_time:")
            .any(|check| check.contains(&format!("alertname: {alert}\n")) && check.contains("- exp_labels:"));
        assert!(fires, "no test in which {alert} fires");
    }
}
