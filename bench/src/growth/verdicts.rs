//! Finds costs that grow too much.
//!
//! A message must not cost more because there are more topics, groups or stored events. Steps of connections are compared only if
//! they have the same number of messages in flight per connection: with fewer, fewer share a read, a write and a wake-up. For
//! payloads, the cost per byte must not grow.

use super::dimension::Dimension;
use super::results::{Growth, Measured, Row};
use crate::page::number;
use crate::results::Figures;

/// The ratio up to which a difference is ignored.
const ALLOWED: f64 = 1.2;

/// A row relative to the figures that it is compared with; 1 means equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// CPU time of the server per message or delivery.
    pub cost: f64,
    /// Messages or deliveries per second.
    pub rate: f64,
}

impl Ratios {
    fn of(figures: &Figures, base: &Figures) -> Self {
        let ratio = |value: f64, of: f64| if of > 0.0 { value / of } else { 1.0 };
        Self {
            cost: ratio(figures.server_cpu_us.median, base.server_cpu_us.median),
            rate: ratio(figures.rate.median, base.rate.median),
        }
    }

    fn costs_more(self) -> Option<String> {
        (self.cost > ALLOWED).then(|| format!("costs the server {:.1} times as much", self.cost))
    }

    fn is_slower(self) -> Option<String> {
        (self.rate < 1.0 / ALLOWED).then(|| format!("is published {:.0} % slower", (1.0 - self.rate) * 100.0))
    }
}

/// A row relative to its runs on an empty server, or else to the first row.
#[must_use]
pub fn ratios(measured: &Measured, row: &Row) -> Option<Ratios> {
    Some(Ratios::of(&Figures::of(&row.runs)?, &measured.base(row)?))
}

/// Describes each cost that grows too much.
#[must_use]
pub fn faults(measured: &Measured) -> Vec<String> {
    let Some(dimension) = measured.dimension() else { return Vec::new() };
    let mut faults = Vec::new();
    for (at, row) in measured.rows.iter().enumerate() {
        let what = format!("{} {}", dimension.label(row.point()), dimension.unit());
        let found = match dimension {
            Dimension::Payloads => byte_cost_growth(&measured.rows[..=at]),
            Dimension::Connections => {
                let before = &measured.rows[..at];
                before.iter().rfind(|before| before.window == row.window).and_then(|before| {
                    let ratios = Ratios::of(&Figures::of(&row.runs)?, &Figures::of(&before.runs)?);
                    let than = dimension.label(before.point());
                    sentence([ratios.costs_more(), ratios.is_slower()], &format!("as with {than}"))
                })
            }
            // The rate is not compared: with fewer groups there are fewer deliveries.
            Dimension::Groups => ratios(measured, row).and_then(|ratios| sentence([ratios.costs_more()], "")),
            Dimension::Topics | Dimension::Backlog => ratios(measured, row)
                .and_then(|ratios| sentence([ratios.costs_more(), ratios.is_slower()], "")),
        };
        faults.extend(found.map(|found| format!("{what}: a message {found}")));
    }
    faults
}

fn sentence<const PARTS: usize>(parts: [Option<String>; PARTS], than: &str) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let text = format!("{} {than}", parts.join(" and "));
    (!parts.is_empty()).then(|| text.trim_end().to_owned())
}

/// Describes by how much a byte of the last row costs more than one of the cheapest earlier row.
fn byte_cost_growth(rows: &[Row]) -> Option<String> {
    let cost = |row: &Row| Some(Figures::of(&row.runs)?.server_cpu_us.median / row.size as f64);
    let (last, before) = rows.split_last()?;
    let least = before.iter().filter_map(cost).min_by(f64::total_cmp)?;
    let times = cost(last)? / least;
    (times > ALLOWED).then(|| format!("costs {times:.1} times as much per byte as smaller ones"))
}

/// The goal for the largest backlog with many topics: live publishing must lose less than 20 % of its rate. Returns a sentence, and
/// whether the goal is reached.
#[must_use]
pub fn backlog_goal(growth: &Growth) -> Option<(String, bool)> {
    let backlog =
        growth.dimensions.iter().find(|measured| measured.dimension() == Some(Dimension::Backlog))?;
    let row = backlog.rows.iter().rfind(|row| row.topics > 1)?;
    let lost = (1.0 - ratios(backlog, row)?.rate) * 100.0;
    let is_reached = lost < 20.0;
    let (topics, events) = (number(row.topics as f64), number(row.size as f64));
    let outcome = if is_reached { "reached" } else { "**missed**" };
    let lost = if lost <= 0.0 { "nothing".into() } else { format!("{lost:.0} %") };
    let text = format!(
        "{topics} topics and a backlog of {events} events cost live publishing {lost} of its rate. Goal: less than 20 %, {outcome}."
    );
    Some((text, is_reached))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::growth::results::tests::measured;

    #[test]
    fn more_topics_must_not_cost_more() {
        let well = measured(Dimension::Topics, &[(1, 400.0, 1.0), (100, 390.0, 1.1), (10_000, 350.0, 1.15)]);
        assert_eq!(faults(&well), [""; 0]);
        let badly = measured(Dimension::Topics, &[(1, 400.0, 1.0), (100, 390.0, 1.1), (10_000, 200.0, 2.5)]);
        assert_eq!(
            faults(&badly),
            ["10,000 topics: a message costs the server 2.5 times as much and is published 50 % slower"]
        );
    }

    #[test]
    fn connections_are_compared_with_the_same_number_in_flight_on_each() {
        let well =
            measured(Dimension::Connections, &[(1, 400.0, 1.0), (1_000, 40.0, 10.0), (5_000, 40.0, 11.0)]);
        assert_eq!(faults(&well), [""; 0]);
        let badly =
            measured(Dimension::Connections, &[(1, 9.0, 1.0), (1_000, 4.0, 10.0), (5_000, 4.0, 30.0)]);
        assert_eq!(
            faults(&badly),
            ["5,000 connections: a message costs the server 3.0 times as much as with 1,000"]
        );
    }

    #[test]
    fn a_byte_must_not_cost_more_in_larger_payloads() {
        let well = measured(Dimension::Payloads, &[(64, 9.0, 1.0), (256, 9.0, 1.2), (1_024, 4.0, 3.0)]);
        assert_eq!(faults(&well), [""; 0]);
        let badly = measured(Dimension::Payloads, &[(64, 9.0, 1.0), (256, 9.0, 1.2), (1_024, 4.0, 9.6)]);
        let found = faults(&badly);
        assert!(found[0].starts_with("1 KiB payloads: a message costs 2.0 times as much"), "{found:?}");
    }

    #[test]
    fn groups_are_not_judged_by_their_rate() {
        let well = measured(Dimension::Groups, &[(1, 900.0, 2.0), (10, 500.0, 1.5)]);
        assert_eq!(faults(&well), [""; 0]);
    }

    #[test]
    fn losing_20_percent_misses_the_goal() {
        let mut growth = Growth::default();
        let mut backlog = measured(Dimension::Backlog, &[(0, 100.0, 1.0), (50_000_000, 81.0, 1.0)]);
        backlog.rows[1].topics = 10_000;
        growth.put(backlog.clone());
        let (text, is_reached) = backlog_goal(&growth).unwrap();
        assert!(is_reached && text.contains("cost live publishing 19 %"), "{text}");
        backlog.rows[1].runs[0].per_second = 79.0;
        growth.put(backlog);
        assert!(backlog_goal(&growth).unwrap().0.ends_with("Goal: less than 20 %, **missed**."));
    }
}
