//! Draws the results: a small chart for each dimension, relative to its first step.

use super::dimension::{Dimension, Point};
use super::results::{Growth, Measured, Row};
use super::verdicts::ratios;
use crate::chart::{Line, LineChart, Panels, Scale, panels};

/// The picture as SVG.
#[must_use]
pub fn picture(growth: &Growth) -> String {
    let machine = &growth.machine;
    panels(&Panels {
        title: "How costs grow".into(),
        subtitle: format!("Relative to the first step, which is 1; {}, {} cores", machine.cpu, machine.cores),
        series: vec![
            "server CPU per message or delivery".into(),
            "messages or deliveries per second".into(),
            "bytes".into(),
        ],
        charts: growth.dimensions.iter().filter_map(chart).collect(),
    })
}

fn chart(measured: &Measured) -> Option<LineChart> {
    let dimension = measured.dimension()?;
    // The backlog step with many topics is left out: it has the same size as the step before.
    let rows: Vec<&Row> =
        measured.rows.iter().filter(|row| dimension == Dimension::Topics || row.topics == 1).collect();
    let first = rows.first()?.size.max(1) as f64;
    // A logarithmic axis has no zero: a size of 0 is drawn a little to the left of the first size above 0.
    let nothing = rows.iter().find(|row| row.size > 0).map_or(1.0, |row| row.size as f64 / 5.0);
    let place = |size: u64| if size == 0 { nothing } else { size as f64 };
    let line = |of: &dyn Fn(&Row) -> Option<f64>| {
        let points = rows.iter().filter_map(|row| Some((place(row.size), of(row)?)));
        Line { name: String::new(), points: points.collect() }
    };
    let is_payload = dimension == Dimension::Payloads;
    let mut lines =
        vec![line(&|row| Some(ratios(measured, row)?.cost)), line(&|row| Some(ratios(measured, row)?.rate))];
    if is_payload {
        lines.push(line(&|row| Some(row.size as f64 / first)));
    }
    let (title, subtitle) = title_and_subtitle(dimension);
    Some(LineChart {
        title: title.into(),
        subtitle: subtitle.into(),
        x_label: String::new(),
        x_marks: rows.iter().map(|row| (place(row.size), mark(dimension, row.point()))).collect(),
        x_scale: Scale::Log,
        y_scale: if is_payload { Scale::Log } else { Scale::Linear },
        lines,
    })
}

fn title_and_subtitle(dimension: Dimension) -> (&'static str, &'static str) {
    match dimension {
        Dimension::Topics => ("Topics", "published to in turn over one connection"),
        Dimension::Groups => ("Groups", "each receives every message; per delivery"),
        Dimension::Connections => ("Connections", "publishing, 1,000 in flight in total; 5,000 have 1 each"),
        Dimension::Payloads => ("Payloads", "cost must not grow faster than the bytes"),
        Dimension::Backlog => ("Backlog", "stored events, relative to an empty server"),
    }
}

fn mark(dimension: Dimension, point: Point) -> String {
    match dimension {
        Dimension::Payloads => {
            dimension.label(point).replace(" KiB", "K").replace(" MiB", "M").replace(" B", "")
        }
        Dimension::Backlog if point.size >= 1_000_000 => format!("{}M", point.size / 1_000_000),
        _ => dimension.label(point),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::results::tests::measured;

    #[test]
    fn each_dimension_has_a_chart() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Topics, &[(1, 400.0, 1.0), (100, 390.0, 1.1)]));
        growth.put(measured(Dimension::Payloads, &[(64, 400.0, 1.0), (1 << 20, 1.0, 700.0)]));
        let svg = picture(&growth);
        assert_eq!(svg.matches("<polyline").count(), 5, "two lines each, and the bytes");
        assert!(svg.contains(">Topics<") && svg.contains(">Payloads<") && svg.contains(">1M<"));
    }

    #[test]
    fn an_empty_backlog_is_drawn_at_the_left() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Backlog, &[(0, 400.0, 1.0), (50_000_000, 390.0, 1.1)]));
        let svg = picture(&growth);
        assert!(svg.contains(">0</text>") && svg.contains(">50M</text>"));
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}
