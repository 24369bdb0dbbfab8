//! Draws charts as SVG: bars in groups, and lines over an axis. Each chart is one self-contained file.
//!
//! A chart is a card with its own background, so it is readable on any page. In dark mode the card is dark.

mod bar;
mod line;

use std::fmt::Write;

pub use bar::{Bar, BarChart, BarGroup, bar_chart};
pub use line::{Line, LineChart, Panels, Scale, line_chart, panels};

/// The colours of the series. They can be distinguished with red-green colour blindness, and on light and dark cards.
const COLOURS: [&str; 8] =
    ["#e8590c", "#1c7ed6", "#74b3e8", "#2b8a3e", "#8ccf9a", "#9c6ade", "#c9a227", "#868e96"];

const STYLE: &str = "<style>\
    text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px;fill:#24292f}\
    .title{font-size:17px;font-weight:600}.head{font-weight:600}.faint{fill:#57606a;font-size:12px}\
    .card{fill:#ffffff;stroke:#d0d7de}.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#8c959f;stroke-width:1}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.faint{fill:#9aa4ae}\
    .card{fill:#0d1117;stroke:#30363d}.grid{stroke:#262c34}.axis{stroke:#6e7681}}\
    </style>";

/// An SVG picture that is being drawn.
struct Canvas {
    svg: String,
    width: f64,
    height: f64,
}

#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    fn new(width: f64, height: f64, title: &str) -> Self {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\"><title>{}</title>{STYLE}\n",
            escaped(title)
        );
        let (inner_width, inner_height) = (width - 1.0, height - 1.0);
        let _ = writeln!(
            svg,
            "<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{inner_width}\" height=\"{inner_height}\" rx=\"8\"/>"
        );
        Self { svg, width, height }
    }

    fn text(&mut self, (x, y): (f64, f64), class: &str, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.svg,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), series: usize) {
        let colour = colour(series);
        let _ = writeln!(
            self.svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{colour}\"/>"
        );
    }

    fn path(&mut self, points: &[(f64, f64)], series: usize) {
        let colour = colour(series);
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        let _ = writeln!(
            self.svg,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>"
        );
        for (x, y) in points {
            let _ = writeln!(self.svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }

    /// Draws title, subtitle and the names of the series. Returns where the rest begins.
    fn head(&mut self, title: &str, subtitle: &str, series: &[String]) -> f64 {
        self.text((20.0, 32.0), "title", Anchor::Start, title);
        self.text((20.0, 53.0), "faint", Anchor::Start, subtitle);
        let (mut x, mut y) = (20.0, 80.0);
        for (at, name) in series.iter().enumerate() {
            let width = 20.0 + text_width(name) + 18.0;
            if x + width > self.width - 20.0 && x > 20.0 {
                (x, y) = (20.0, y + 20.0);
            }
            self.bar((x, y - 10.0), (12.0, 12.0), at);
            self.text((x + 18.0, y), "", Anchor::Start, name);
            x += width;
        }
        y + 18.0
    }

    fn end(mut self) -> String {
        debug_assert!(self.height > 0.0, "a picture has a height");
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

/// The approximate width of a text. Fonts differ, so it is an upper estimate.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.0
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A step of 1, 2 or 5 times a power of ten, so that about `count` steps fit up to `max`.
fn step(max: f64, count: f64) -> f64 {
    let rough = (max / count).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let factor =
        [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    factor * power
}

/// Formats a value for an axis: `200k`, `1.5M`, `0.05`.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = format!("{scaled:.3}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!(step(800_000.0, 5.0), 200_000.0);
        assert_eq!(step(7.0, 5.0), 2.0);
        assert_eq!(step(0.3, 5.0), 0.1);
    }

    #[test]
    fn values_are_short() {
        assert_eq!(short(200_000.0), "200k");
        assert_eq!(short(1_500_000.0), "1.5M");
        assert_eq!(short(0.05), "0.05");
        assert_eq!(short(0.0), "0");
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
