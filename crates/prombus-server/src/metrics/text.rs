//! Writes families of samples in the Prometheus text format or as OpenMetrics.

use prombus::HistogramFigures;
use std::fmt::{Display, Write as _};

/// A format of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The Prometheus text format 0.0.4, the default.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FamilyKind {
    Counter,
    Gauge,
    Histogram,
    /// A gauge whose value is always 1 and whose labels are the content. Its name ends in `_info`.
    Info,
}

/// Metrics as text.
pub(super) struct MetricsText {
    format: Format,
    text: String,
    /// The name of the samples of the current family.
    name: &'static str,
}

/// Labels of a sample.
type Labels<'a> = [(&'static str, &'a str)];

impl Format {
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl MetricsText {
    pub(super) fn new(format: Format) -> Self {
        Self { format, text: String::new(), name: "" }
    }

    /// Begins a family; the samples that follow belong to it. In OpenMetrics, the name of the family is that of its samples without
    /// the suffix of the type, and a unit that the name ends in is declared.
    pub(super) fn family(&mut self, name: &'static str, kind: FamilyKind, help: &str) {
        self.name = name;
        let (family, kind) = match (self.format, kind) {
            (Format::Text, FamilyKind::Counter) => (name, "counter"),
            (Format::Text, FamilyKind::Info) | (_, FamilyKind::Gauge) => (name, "gauge"),
            (_, FamilyKind::Histogram) => (name, "histogram"),
            (Format::OpenMetrics, FamilyKind::Counter) => match name.strip_suffix("_total") {
                Some(family) => (family, "counter"),
                None => (name, "unknown"),
            },
            (Format::OpenMetrics, FamilyKind::Info) => (name.strip_suffix("_info").unwrap_or(name), "info"),
        };
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {kind}");
        if self.format == Format::OpenMetrics
            && let Some((_, unit @ ("seconds" | "bytes"))) = family.rsplit_once('_')
        {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
    }

    pub(super) fn sample(&mut self, labels: &Labels<'_>, value: impl Display) {
        self.put("", labels, None, value);
    }

    pub(super) fn histogram(&mut self, labels: &Labels<'_>, figures: &HistogramFigures) {
        let format = self.format;
        let bounds = figures.bounds.iter().map(|bound| match format {
            Format::Text => bound.to_string(),
            // OpenMetrics requires a decimal point: 1.0.
            Format::OpenMetrics => format!("{bound:?}"),
        });
        let mut count = 0;
        for (bound, bucket) in bounds.chain(["+Inf".to_owned()]).zip(&figures.buckets) {
            count += bucket;
            self.put("_bucket", labels, Some(&bound), count);
        }
        self.put("_sum", labels, None, figures.sum);
        self.put("_count", labels, None, count);
    }

    fn put(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<&str>, value: impl Display) {
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

    pub(super) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: Format) -> String {
        let mut text = MetricsText::new(format);
        text.family("events_total", FamilyKind::Counter, "Events.");
        text.sample(&[("topic", "a\"b\\c\nd")], 3);
        text.family("odd", FamilyKind::Counter, "A counter with another name.");
        text.sample(&[], 0.5);
        text.family("cpu_seconds_total", FamilyKind::Counter, "CPU.");
        text.family("b_build_info", FamilyKind::Info, "Version.");
        text.sample(&[("version", "1")], 1);
        text.family("took_seconds", FamilyKind::Histogram, "Time.");
        let figures = HistogramFigures { bounds: &[0.0005, 5.0], buckets: vec![1, 2, 3], sum: 40.5 };
        text.histogram(&[("topic", "t")], &figures);
        text.finish()
    }

    #[test]
    fn samples_and_histograms_are_written_as_prometheus_reads_them() {
        let expected = "# HELP events_total Events.\n# TYPE events_total counter\n\
            events_total{topic=\"a\\\"b\\\\c\\nd\"} 3\n\
            # HELP odd A counter with another name.\n# TYPE odd counter\nodd 0.5\n\
            # HELP cpu_seconds_total CPU.\n# TYPE cpu_seconds_total counter\n\
            # HELP b_build_info Version.\n# TYPE b_build_info gauge\nb_build_info{version=\"1\"} 1\n\
            # HELP took_seconds Time.\n# TYPE took_seconds histogram\n\
            took_seconds_bucket{topic=\"t\",le=\"0.0005\"} 1\ntook_seconds_bucket{topic=\"t\",le=\"5\"} 3\n\
            took_seconds_bucket{topic=\"t\",le=\"+Inf\"} 6\n\
            took_seconds_sum{topic=\"t\"} 40.5\ntook_seconds_count{topic=\"t\"} 6\n";
        assert_eq!(written(Format::Text), expected);
    }

    #[test]
    fn openmetrics_has_its_own_names_of_families_and_units_and_an_end() {
        let expected = "# HELP events Events.\n# TYPE events counter\n\
            events_total{topic=\"a\\\"b\\\\c\\nd\"} 3\n\
            # HELP odd A counter with another name.\n# TYPE odd unknown\nodd 0.5\n\
            # HELP cpu_seconds CPU.\n# TYPE cpu_seconds counter\n# UNIT cpu_seconds seconds\n\
            # HELP b_build Version.\n# TYPE b_build info\nb_build_info{version=\"1\"} 1\n\
            # HELP took_seconds Time.\n# TYPE took_seconds histogram\n# UNIT took_seconds seconds\n\
            took_seconds_bucket{topic=\"t\",le=\"0.0005\"} 1\ntook_seconds_bucket{topic=\"t\",le=\"5.0\"} 3\n\
            took_seconds_bucket{topic=\"t\",le=\"+Inf\"} 6\n\
            took_seconds_sum{topic=\"t\"} 40.5\ntook_seconds_count{topic=\"t\"} 6\n\
            # EOF\n";
        assert_eq!(written(Format::OpenMetrics), expected);
    }
}
