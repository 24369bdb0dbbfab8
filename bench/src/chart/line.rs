//! Line charts whose axes may be logarithmic.

use super::{Anchor, Canvas, short, step};

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic. Values that are not above zero are left out.
    Log,
}

/// A line chart.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// The title.
    pub title: String,
    /// The parameters and the machine.
    pub subtitle: String,
    /// The label of the x axis.
    pub x_label: String,
    /// The marks of the x axis with their labels. If empty, round numbers are marked.
    pub x_marks: Vec<(f64, String)>,
    /// The scale of the x axis.
    pub x_scale: Scale,
    /// The scale of the y axis.
    pub y_scale: Scale,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Several line charts in one picture, with a common legend.
#[derive(Clone, Debug)]
pub struct Panels {
    /// The title.
    pub title: String,
    /// The parameters and the machine.
    pub subtitle: String,
    /// The names of the lines, for the legend.
    pub series: Vec<String>,
    /// The charts, in rows from left to right. The lines of each chart are in the order of `series`.
    pub charts: Vec<LineChart>,
}

const WIDTH: f64 = 860.0;
const PLOT: f64 = 320.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 32.0;
const PANEL_PLOT: f64 = 170.0;
/// The heights of a panel's title and subtitle, and of the part below its plot.
const PANEL_HEAD: f64 = 50.0;
const PANEL_FOOT: f64 = 52.0;

/// The rectangle in which lines are drawn.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// An axis: maps values to positions, and has marks.
struct Axis {
    scale: Scale,
    min: f64,
    max: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, scale: Scale) -> Self {
        let values: Vec<f64> = values.filter(|&value| scale == Scale::Linear || value > 0.0).collect();
        let max = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        match scale {
            Scale::Linear => {
                let step = step(max, 5.0);
                Self { scale, min: 0.0, max: (max / step).ceil().max(1.0) * step }
            }
            Scale::Log => {
                let min = 10_f64.powf(values.iter().copied().fold(max, f64::min).log10().floor());
                Self { scale, min, max: 10_f64.powf(max.log10().ceil()).max(min * 10.0) }
            }
        }
    }

    /// The position of a value, from 0 to 1. `None` if the axis cannot show it.
    fn part(&self, value: f64) -> Option<f64> {
        match self.scale {
            Scale::Linear => Some(value / self.max),
            Scale::Log if value <= 0.0 => None,
            Scale::Log => Some((value / self.min).log10() / (self.max / self.min).log10()),
        }
    }

    fn marks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.max, 5.0);
                (0..=(self.max / step).round() as usize).map(|at| at as f64 * step).collect()
            }
            Scale::Log => {
                let decades = (self.max / self.min).log10().round() as i32;
                (0..=decades).map(|decade| self.min * 10_f64.powi(decade)).collect()
            }
        }
    }
}

/// Draws a line chart.
#[must_use]
pub fn line_chart(chart: &LineChart) -> String {
    let names: Vec<String> = chart.lines.iter().map(|line| line.name.clone()).collect();
    let rows = names.len().div_ceil(4) as f64;
    let height = 86.0 + rows * 20.0 + PLOT + 56.0;
    let mut canvas = Canvas::new(WIDTH, height, &chart.title);
    let top = canvas.head(&chart.title, &chart.subtitle, &names) + 6.0;
    draw(&mut canvas, chart, Area { left: LEFT, right: RIGHT, top, bottom: top + PLOT });
    canvas.end()
}

/// Draws several charts, two side by side.
#[must_use]
pub fn panels(panels: &Panels) -> String {
    let legend = panels.series.len().div_ceil(3) as f64;
    let rows = panels.charts.len().div_ceil(2) as f64;
    let height = 86.0 + legend * 20.0 + rows * (PANEL_HEAD + PANEL_PLOT + PANEL_FOOT);
    let mut canvas = Canvas::new(WIDTH, height, &panels.title);
    let begin = canvas.head(&panels.title, &panels.subtitle, &panels.series) + 6.0;
    for (at, chart) in panels.charts.iter().enumerate() {
        let (row, column) = ((at / 2) as f64, (at % 2) as f64);
        let top = begin + row * (PANEL_HEAD + PANEL_PLOT + PANEL_FOOT);
        let left = column * WIDTH / 2.0;
        canvas.text((left + 20.0, top + 16.0), "head", Anchor::Start, &chart.title);
        canvas.text((left + 20.0, top + 34.0), "faint", Anchor::Start, &chart.subtitle);
        let top = top + PANEL_HEAD;
        let right = left + WIDTH / 2.0 - 28.0;
        draw(&mut canvas, chart, Area { left: left + 58.0, right, top, bottom: top + PANEL_PLOT });
    }
    canvas.end()
}

fn draw(canvas: &mut Canvas, chart: &LineChart, area: Area) {
    let Area { left, right, top, bottom } = area;
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let mut x_axis = Axis::of(points().map(|point| point.0), chart.x_scale);
    if let (Some((first, _)), Some((last, _)), Scale::Log) =
        (chart.x_marks.first(), chart.x_marks.last(), chart.x_scale)
        && first < last
    {
        (x_axis.min, x_axis.max) = (*first, *last);
    }
    let y_axis = Axis::of(points().map(|point| point.1), chart.y_scale);
    let x_of = |value: f64| x_axis.part(value).map(|part| left + (right - left) * part);
    let y_of = |value: f64| y_axis.part(value).map(|part| bottom - (bottom - top) * part);

    for mark in y_axis.marks() {
        let Some(y) = y_of(mark) else { continue };
        canvas.line("grid", (left, y), (right, y));
        canvas.text((left - 10.0, y + 4.0), "faint", Anchor::End, &short(mark));
    }
    let mut x_marks = chart.x_marks.clone();
    if x_marks.is_empty() {
        x_marks = x_axis.marks().into_iter().map(|mark| (mark, short(mark))).collect();
    }
    for (mark, text) in x_marks {
        let Some(x) = x_of(mark) else { continue };
        canvas.line("grid", (x, top), (x, bottom));
        canvas.text((x, bottom + 18.0), "faint", Anchor::Middle, &text);
    }
    canvas.line("axis", (left, bottom), (right, bottom));
    canvas.text((f64::midpoint(left, right), bottom + 40.0), "faint", Anchor::Middle, &chart.x_label);
    for (series, line) in chart.lines.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            line.points.iter().filter_map(|&(x, y)| Some((x_of(x)?, y_of(y)?))).collect();
        if !points.is_empty() {
            canvas.path(&points, series);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> LineChart {
        LineChart {
            title: "growth".into(),
            subtitle: "here".into(),
            x_label: "groups".into(),
            x_marks: Vec::new(),
            x_scale: Scale::Log,
            y_scale: Scale::Linear,
            lines: vec![Line { name: "prombus".into(), points }],
        }
    }

    #[test]
    fn powers_of_ten_are_evenly_apart() {
        let svg = line_chart(&chart(vec![(1.0, 5.0), (10.0, 6.0), (100.0, 7.0)]));
        let line = svg.lines().find(|line| line.starts_with("<polyline")).unwrap();
        let points = line.split('"').nth(1).unwrap();
        let x: Vec<f64> =
            points.split(' ').map(|point| point.split(',').next().unwrap().parse().unwrap()).collect();
        assert!((x[1] - x[0] - (x[2] - x[1])).abs() < 0.2, "{x:?}");
        assert_eq!((x[0], x[2]), (LEFT, RIGHT));
    }

    #[test]
    fn values_that_a_log_axis_cannot_show_are_left_out() {
        let svg = line_chart(&chart(vec![(0.0, 5.0), (10.0, 6.0)]));
        assert_eq!(svg.matches("<circle").count(), 1);
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn an_empty_chart_is_valid() {
        let svg = line_chart(&chart(Vec::new()));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn given_marks_bound_the_axis() {
        let mut marked = chart(vec![(64.0, 5.0), (1_024.0, 6.0)]);
        marked.x_marks = vec![(64.0, "64 B".into()), (1_024.0, "1 KiB".into())];
        let svg = line_chart(&marked);
        assert!(svg.contains(&format!("<text x=\"{LEFT:.1}\"")) && svg.contains(">1 KiB<"), "{svg}");
        assert!(svg.contains(&format!("<circle cx=\"{RIGHT:.1}\"")), "{svg}");
    }

    #[test]
    fn panels_share_one_legend() {
        let charts = vec![chart(vec![(1.0, 1.0), (10.0, 2.0)]); 3];
        let series = vec!["prombus".into()];
        let svg = panels(&Panels { title: "all".into(), subtitle: "here".into(), series, charts });
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert_eq!(svg.matches(">growth<").count(), 3);
        assert_eq!(svg.matches(">prombus<").count(), 1, "the legend is drawn once");
    }
}
