//! Horizontal bars in groups, each followed by its value.

use super::{Anchor, Canvas, short, step, text_width};

/// A bar chart with groups of bars.
#[derive(Clone, Debug, Default)]
pub struct BarChart {
    /// The title.
    pub title: String,
    /// The parameters and the machine.
    pub subtitle: String,
    /// The names of the series, for the legend.
    pub series: Vec<String>,
    /// The groups, from top to bottom.
    pub groups: Vec<BarGroup>,
}

/// Bars that are compared with each other.
#[derive(Clone, Debug)]
pub struct BarGroup {
    /// The label of the group.
    pub name: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The index of its series in the chart.
    pub series: usize,
    /// The value that determines its length.
    pub value: f64,
    /// The text after the bar.
    pub label: String,
}

const WIDTH: f64 = 860.0;
const BAR: f64 = 15.0;
const PITCH: f64 = 19.0;
const GAP: f64 = 18.0;

/// Draws a bar chart.
#[must_use]
pub fn bar_chart(chart: &BarChart) -> String {
    let bars: usize = chart.groups.iter().map(|group| group.bars.len()).sum();
    let rows = chart.series.len().div_ceil(4) as f64;
    let body = bars as f64 * PITCH + chart.groups.len() as f64 * GAP;
    let height = 80.0 + rows * 20.0 + body + 36.0;
    let mut canvas = Canvas::new(WIDTH, height, &chart.title);
    let top = canvas.head(&chart.title, &chart.subtitle, &chart.series);

    let names = chart.groups.iter().map(|group| text_width(&group.name)).fold(0.0, f64::max);
    let labels = chart
        .groups
        .iter()
        .flat_map(|group| &group.bars)
        .map(|bar| text_width(&bar.label))
        .fold(0.0, f64::max);
    let (left, right) = (names * 1.1 + 36.0, WIDTH - 28.0 - labels);
    let max =
        chart.groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value).fold(0.0, f64::max).max(1e-9);
    let x_of = |value: f64| left + (right - left) * value / max;

    let bottom = top + body;
    let step = step(max, 6.0);
    let mut tick = 0.0;
    while tick <= max * 1.0001 {
        let x = x_of(tick);
        canvas.line(if tick == 0.0 { "axis" } else { "grid" }, (x, top), (x, bottom));
        canvas.text((x, bottom + 18.0), "faint", Anchor::Middle, &short(tick));
        tick += step;
    }
    let mut y = top + GAP / 2.0;
    for group in &chart.groups {
        let middle = y + group.bars.len() as f64 * PITCH / 2.0;
        canvas.text((left - 14.0, middle + 3.0), "head", Anchor::End, &group.name);
        for bar in &group.bars {
            let width = (x_of(bar.value) - left).max(1.5);
            canvas.bar((left, y), (width, BAR), bar.series);
            canvas.text((left + width + 7.0, y + 12.0), "", Anchor::Start, &bar.label);
            y += PITCH;
        }
        y += GAP;
    }
    canvas.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> BarChart {
        let bar = |series, value: f64| Bar { series, value, label: format!("{value}") };
        let group = |name: &str| BarGroup { name: name.into(), bars: vec![bar(0, 400.0), bar(1, 100.0)] };
        BarChart {
            title: "a & b".into(),
            subtitle: "here".into(),
            series: vec!["a".into(), "b".into()],
            groups: vec![group("first"), group("second")],
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = bar_chart(&chart());
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("height=\"15.0\""))
            .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 4);
        assert!((widths[0] / widths[1] - 4.0).abs() < 0.01, "{widths:?}");
    }

    #[test]
    fn the_svg_is_complete_and_self_contained() {
        let svg = bar_chart(&chart());
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &amp; b"));
        assert!(!svg.contains("href"), "it needs nothing from elsewhere");
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn an_empty_chart_is_valid() {
        assert!(!bar_chart(&BarChart::default()).contains("NaN"));
    }
}
