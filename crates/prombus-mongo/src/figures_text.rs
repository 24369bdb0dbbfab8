//! Writes counters and gauges in the Prometheus text format.

use std::fmt::Write as _;

/// Each figure (name, help, value) becomes lines with its help, its type and its value. Names that end in `_total` are counters, others gauges.
pub(crate) fn prometheus(prefix: &str, labels: &[(&str, &str)], figures: &[(&str, &str, u64)]) -> String {
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    let labels = labels.join(",");
    let mut text = String::new();
    for (name, help, value) in figures {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let _ = writeln!(text, "# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}");
        let _ = writeln!(text, "{prefix}_{name}{{{labels}}} {value}");
    }
    text
}

fn quoted(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_lines_with_labels() {
        let text = prometheus("p", &[("topic", "a\"b")], &[("x_total", "X.", 3), ("up", "Up.", 1)]);
        assert_eq!(
            text,
            "# HELP p_x_total X.\n# TYPE p_x_total counter\np_x_total{topic=\"a\\\"b\"} 3\n\
             # HELP p_up Up.\n# TYPE p_up gauge\np_up{topic=\"a\\\"b\"} 1\n"
        );
    }
}
