//! The dimensions that grow, and their steps.

use anyhow::Context;
use prombus_bench::{Length, Plan};
use std::time::Duration;

/// A quantity that grows from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Topics that one connection publishes to in turn.
    Topics,
    /// Groups that each receive every message over their own connection.
    Groups,
    /// Connections that publish.
    Connections,
    /// Bytes of a payload.
    Payloads,
    /// Events that the server already stores.
    Backlog,
}

/// One step of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The size of the dimension at this step.
    pub size: u64,
    /// Number of topics; messages go to them in turn.
    pub topics: usize,
}

/// Limits of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest size of every dimension except the backlog.
    pub at_most: u64,
    /// Events of the largest backlog.
    pub backlog: u64,
    /// Skip the backlogs between the empty and the largest one.
    pub is_largest_only: bool,
}

/// Unanswered messages of all connections together.
pub const IN_FLIGHT: usize = 1_000;
/// Maximum number of unanswered payload bytes.
const IN_FLIGHT_BYTES: usize = 8 << 20;
/// The longest warm-up of a run.
const WARM_UP: Duration = Duration::from_millis(500);
const MANY_TOPICS: u64 = 10_000;

impl Dimension {
    /// All dimensions, in the order of the tables.
    pub const ALL: [Self; 5] = [Self::Topics, Self::Groups, Self::Connections, Self::Payloads, Self::Backlog];

    /// Its name on the command line and in the raw results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Topics => "topics",
            Self::Groups => "groups",
            Self::Connections => "connections",
            Self::Payloads => "payloads",
            Self::Backlog => "backlog",
        }
    }

    /// The unit of a step's size.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Backlog => "stored events",
            _ => self.name(),
        }
    }

    /// The dimensions with these names, in the order of the tables; all dimensions if no name is given.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn named(names: &[String]) -> anyhow::Result<Vec<Self>> {
        for name in names {
            let known = Self::ALL.map(Self::name);
            known
                .contains(&name.as_str())
                .then_some(())
                .with_context(|| format!("unknown dimension {name}: known are {}", known.join(", ")))?;
        }
        let is_named = |known: &Self| names.is_empty() || names.iter().any(|name| name == known.name());
        Ok(Self::ALL.into_iter().filter(is_named).collect())
    }

    /// Its steps, from small to large.
    #[must_use]
    pub fn points(self, limits: Limits) -> Vec<Point> {
        let sizes: &[u64] = match self {
            Self::Topics => &[1, 100, MANY_TOPICS],
            Self::Groups => &[1, 10, 100],
            Self::Connections => &[1, 100, 1_000, 5_000],
            Self::Payloads => &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            Self::Backlog => return backlog_points(limits),
        };
        let topics_of = |size: u64| if self == Self::Topics { size as usize } else { 1 };
        let sizes = sizes.iter().copied().filter(|&size| size <= limits.at_most);
        sizes.map(|size| Point { size, topics: topics_of(size) }).collect()
    }

    /// The plan for the client loop at a step, for runs of this length.
    #[must_use]
    pub fn plan(self, point: Point, time: Duration) -> Plan {
        let plan = Plan {
            window: IN_FLIGHT,
            topics: point.topics,
            length: Length::Time(time),
            warm_up: WARM_UP.min(time / 2),
            ..Plan::default()
        };
        let size = point.size as usize;
        match self {
            Self::Topics | Self::Backlog => plan,
            Self::Groups => Plan { groups: size, ..plan },
            Self::Connections => Plan { publishers: size, window: (IN_FLIGHT / size).max(1), ..plan },
            Self::Payloads => {
                Plan { payload_bytes: size, window: (IN_FLIGHT_BYTES / size).clamp(1, IN_FLIGHT), ..plan }
            }
        }
    }

    /// The label of a step.
    #[must_use]
    pub fn label(self, point: Point) -> String {
        use crate::page::number;
        match self {
            Self::Payloads if point.size >= 1 << 20 => format!("{} MiB", point.size >> 20),
            Self::Payloads if point.size >= 1 << 10 => format!("{} KiB", point.size >> 10),
            Self::Payloads => format!("{} B", point.size),
            Self::Backlog if point.topics > 1 => {
                format!("{} in {} topics", number(point.size as f64), number(point.topics as f64))
            }
            _ => number(point.size as f64),
        }
    }
}

/// The steps of the backlog. The largest one is measured twice: with one topic and with many topics.
fn backlog_points(limits: Limits) -> Vec<Point> {
    let is_wanted = |size: &u64| *size < limits.backlog && (*size == 0 || !limits.is_largest_only);
    let steps = [0, 1_000_000, 5_000_000, 20_000_000].into_iter().filter(is_wanted);
    let mut points: Vec<Point> = steps.map(|size| Point { size, topics: 1 }).collect();
    if limits.backlog > 0 {
        points.push(Point { size: limits.backlog, topics: 1 });
        points.push(Point { size: limits.backlog, topics: MANY_TOPICS.min(limits.at_most).max(2) as usize });
    } else {
        points.push(Point { size: 0, topics: 1 });
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Limits = Limits { at_most: u64::MAX, backlog: 50_000_000, is_largest_only: false };

    #[test]
    fn more_connections_do_not_put_more_messages_in_flight() {
        for point in Dimension::Connections.points(ALL).into_iter().filter(|point| point.size <= 1_000) {
            let plan = Dimension::Connections.plan(point, Duration::from_secs(1));
            assert_eq!(plan.publishers * plan.window, IN_FLIGHT);
        }
        let most = Point { size: 5_000, topics: 1 };
        assert_eq!(Dimension::Connections.plan(most, Duration::from_secs(1)).window, 1);
    }

    #[test]
    fn large_payloads_do_not_fill_the_memory() {
        for point in Dimension::Payloads.points(ALL) {
            let plan = Dimension::Payloads.plan(point, Duration::from_secs(1));
            assert!(plan.window * plan.payload_bytes <= IN_FLIGHT_BYTES, "{plan:?}");
            assert!(plan.window >= 8);
        }
    }

    #[test]
    fn the_largest_backlog_is_also_measured_with_many_topics() {
        let points = Dimension::Backlog.points(ALL);
        assert_eq!(points.len(), 6);
        assert_eq!(points[4], Point { size: 50_000_000, topics: 1 });
        assert_eq!(points[5], Point { size: 50_000_000, topics: 10_000 });
        let few = Dimension::Backlog.points(Limits { at_most: 10, backlog: 2_000, ..ALL });
        let sizes: Vec<(u64, usize)> = few.iter().map(|point| (point.size, point.topics)).collect();
        assert_eq!(sizes, [(0, 1), (2_000, 1), (2_000, 10)]);
        let ends = Dimension::Backlog.points(Limits { is_largest_only: true, ..ALL });
        assert_eq!(ends.iter().map(|point| point.size).collect::<Vec<_>>(), [0, 50_000_000, 50_000_000]);
    }

    #[test]
    fn unknown_dimensions_are_refused() {
        let error = Dimension::named(&["topic".into()]).unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown dimension topic: known are topics, groups, connections, payloads, backlog"
        );
        assert_eq!(Dimension::named(&["groups".into(), "topics".into()]).unwrap().len(), 2);
        assert_eq!(Dimension::named(&[]).unwrap(), Dimension::ALL);
    }

    #[test]
    fn labels_have_readable_units() {
        let labels: Vec<String> =
            [64, 1 << 10, 1 << 20].map(|size| Dimension::Payloads.label(Point { size, topics: 1 })).to_vec();
        assert_eq!(labels, ["64 B", "1 KiB", "1 MiB"]);
        let both = Point { size: 50_000_000, topics: 10_000 };
        assert_eq!(Dimension::Backlog.label(both), "50,000,000 in 10,000 topics");
    }
}
