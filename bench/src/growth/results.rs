//! The raw results of the growth measurements.

use super::dimension::{Dimension, Point};
use crate::machine::Machine;
use crate::results::Figures;
use prombus_bench::Measurement;
use serde::{Deserialize, Serialize};

/// The contents of the file with raw results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Growth {
    /// The machine of the measurements.
    pub machine: Machine,
    /// The measured dimensions.
    pub dimensions: Vec<Measured>,
}

/// The measurements of one dimension.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// The date of the measurement, in UTC.
    pub date: String,
    /// The revision that was measured.
    pub revision: String,
    /// Runs per step.
    pub runs: u8,
    /// The length of a run in seconds, without the warm-up.
    pub seconds: f64,
    /// The steps.
    pub rows: Vec<Row>,
}

/// The measurements of one step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The size of the dimension at this step.
    pub size: u64,
    /// Topics that messages went to.
    pub topics: usize,
    /// Maximum number of unanswered messages per connection.
    pub window: usize,
    /// The runs.
    pub runs: Vec<Measurement>,
    /// Only for backlogs: runs on an empty server that alternated with `runs`, so that disk and machine were in the same state.
    pub beside: Vec<Measurement>,
    /// Only for backlogs: publishing with a new group that starts at the end.
    pub with_group: Vec<Measurement>,
    /// Only for backlogs: how long the server takes to start again.
    pub opening: Option<Opening>,
    /// The errors of failed runs.
    pub errors: Vec<String>,
}

/// The time from the start of a server process until it accepts connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// After a normal stop.
    pub after_stop_ms: f64,
    /// After it was killed under load.
    pub after_kill_ms: f64,
    /// Resident memory when it is open and idle.
    pub resident_bytes: u64,
}

impl Row {
    /// A step without measurements.
    #[must_use]
    pub fn new(point: Point, window: usize) -> Self {
        Self { size: point.size, topics: point.topics, window, ..Self::default() }
    }

    /// The step.
    #[must_use]
    pub fn point(&self) -> Point {
        Point { size: self.size, topics: self.topics }
    }

    /// Whether every run succeeded, with each message delivered once and in order.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let mut runs = self.runs.iter().chain(&self.beside).chain(&self.with_group);
        self.errors.is_empty() && runs.all(|run| run.balance.is_clean())
    }
}

impl Measured {
    /// The dimension; `None` if the file contains an unknown name.
    #[must_use]
    pub fn dimension(&self) -> Option<Dimension> {
        Dimension::ALL.into_iter().find(|dimension| dimension.name() == self.name)
    }

    /// The figures that a row is compared with: its runs on an empty server, or else the first row.
    #[must_use]
    pub fn base(&self, row: &Row) -> Option<Figures> {
        Figures::of(&row.beside).or_else(|| Figures::of(&self.rows.first()?.runs))
    }
}

impl Growth {
    /// Adds a dimension, and replaces earlier measurements of it.
    pub fn put(&mut self, measured: Measured) {
        self.dimensions.retain(|known| known.name != measured.name);
        self.dimensions.push(measured);
        let place = |measured: &Measured| {
            Dimension::ALL.iter().position(|dimension| dimension.name() == measured.name)
        };
        self.dimensions.sort_by_key(place);
    }

    /// Whether every run was clean.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.dimensions.iter().flat_map(|measured| &measured.rows).all(Row::is_clean)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A dimension with a run of this rate and CPU time for each size.
    pub(crate) fn measured(dimension: Dimension, rows: &[(u64, f64, f64)]) -> Measured {
        let rows = rows.iter().map(|&(size, per_second, cpu_us)| {
            let run = Measurement {
                count: 1_000_000,
                seconds: 1.0,
                per_second,
                server_cpu_seconds: Some(cpu_us),
                server_resident_bytes: Some(50_000_000),
                ..Measurement::default()
            };
            let point = Point { size, topics: 1 };
            let window = dimension.plan(point, std::time::Duration::from_secs(1)).window;
            Row { runs: vec![run], ..Row::new(point, window) }
        });
        Measured {
            name: dimension.name().into(),
            date: "2030-01-02".into(),
            revision: "abc".into(),
            runs: 1,
            seconds: 3.0,
            rows: rows.collect(),
        }
    }

    #[test]
    fn a_new_measurement_replaces_the_old_one() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Groups, &[(1, 1.0, 1.0)]));
        growth.put(measured(Dimension::Topics, &[(1, 1.0, 1.0)]));
        growth.put(measured(Dimension::Groups, &[(1, 2.0, 1.0), (10, 2.0, 1.0)]));
        let names: Vec<&str> = growth.dimensions.iter().map(|measured| measured.name.as_str()).collect();
        assert_eq!(names, ["topics", "groups"]);
        assert_eq!(growth.dimensions[1].rows.len(), 2);
    }

    #[test]
    fn raw_results_survive_a_round_trip() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Groups, &[(1, 1.0, 1.0)]));
        let text = serde_json::to_string(&growth).unwrap();
        let back: Growth = serde_json::from_str(&text).unwrap();
        assert!(back.is_clean());
        assert_eq!(back.dimensions[0].rows[0].window, 1_000);
    }

    #[test]
    fn a_row_is_compared_with_its_runs_on_an_empty_server() {
        let mut measured = measured(Dimension::Backlog, &[(0, 100.0, 1.0), (1_000, 100.0, 1.0)]);
        assert_eq!(measured.base(&measured.rows[1]).unwrap().rate.median, 100.0);
        let beside = Measurement { per_second: 80.0, ..measured.rows[1].runs[0].clone() };
        measured.rows[1].beside.push(beside);
        assert_eq!(measured.base(&measured.rows[1]).unwrap().rate.median, 80.0);
    }
}
