//! Writes the Prometheus text format: families of samples.

use prombus::HistogramFigures;
use std::fmt::Write as _;

/// The type of a family.
#[derive(Clone, Copy)]
pub(super) enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
}

/// Metrics as text.
#[derive(Default)]
pub(super) struct MetricsText {
    text: String,
    /// The name of the current family.
    name: &'static str,
}

/// Labels of a sample.
type Labels<'a> = [(&'static str, &'a str)];

impl MetricsText {
    /// Begins a family; the samples that follow belong to it.
    pub(super) fn family(&mut self, name: &'static str, kind: FamilyKind, help: &str) {
        self.name = name;
        let kind = match kind {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Histogram => "histogram",
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, labels: &Labels<'_>, value: u64) {
        self.put("", labels, None, &value.to_string());
    }

    pub(super) fn histogram(&mut self, labels: &Labels<'_>, figures: &HistogramFigures) {
        let mut count = 0;
        let bounds = figures.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bound, bucket) in bounds.zip(&figures.buckets) {
            count += bucket;
            self.put("_bucket", labels, Some(&bound), &count.to_string());
        }
        self.put("_sum", labels, None, &figures.sum.to_string());
        self.put("_count", labels, None, &count.to_string());
    }

    fn put(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<&str>, value: &str) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let mut separator = '{';
        for (name, label) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(self.text, "{separator}{name}=\"");
            for character in label.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_and_histograms_are_written_as_prometheus_reads_them() {
        let mut text = MetricsText::default();
        text.family("events_total", FamilyKind::Counter, "Events.");
        text.sample(&[("topic", "a\"b\\c\nd")], 3);
        text.family("ms", FamilyKind::Histogram, "Time.");
        let figures = HistogramFigures { bounds: &[0.5, 5.0], buckets: vec![1, 2, 3], sum: 40.5 };
        text.histogram(&[("topic", "t")], &figures);
        let expected = "# HELP events_total Events.\n# TYPE events_total counter\n\
            events_total{topic=\"a\\\"b\\\\c\\nd\"} 3\n\
            # HELP ms Time.\n# TYPE ms histogram\n\
            ms_bucket{topic=\"t\",le=\"0.5\"} 1\nms_bucket{topic=\"t\",le=\"5\"} 3\n\
            ms_bucket{topic=\"t\",le=\"+Inf\"} 6\nms_sum{topic=\"t\"} 40.5\nms_count{topic=\"t\"} 6\n";
        assert_eq!(text.finish(), expected);
    }
}
