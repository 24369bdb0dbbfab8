//! Everything that was measured of growth, raw.

use super::dimension::{Dimension, Point};
use crate::machine::Machine;
use crate::results::Figures;
use prombus_bench::Measurement;
use serde::{Deserialize, Serialize};

/// All that is known: the file of raw results.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Growth {
    /// What it was measured on.
    pub machine: Machine,
    /// What was measured, one for each dimension.
    pub dimensions: Vec<Measured>,
}

/// One dimension.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// The day, in UTC.
    pub date: String,
    /// The revision that was measured.
    pub revision: String,
    /// Runs of each step.
    pub runs: u8,
    /// Seconds of a run that counted.
    pub seconds: f64,
    /// The steps.
    pub rows: Vec<Row>,
}

/// One step, measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// How much there is of what grows.
    pub size: u64,
    /// Topics that messages went to.
    pub topics: usize,
    /// Unanswered messages of one connection at most.
    pub window: usize,
    /// The runs.
    pub runs: Vec<Measurement>,
    /// Runs on an empty server, in turn with the others: what the disk and the machine did then. For backlogs.
    pub beside: Vec<Measurement>,
    /// Publishing with a new group that starts at the end. For backlogs.
    pub with_group: Vec<Measurement>,
    /// Starting again. For backlogs.
    pub opening: Option<Opening>,
    /// What failed.
    pub errors: Vec<String>,
}

/// How long a server takes to listen again, from when its process is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// When it was stopped and had its time.
    pub after_stop_ms: f64,
    /// When it was killed at work.
    pub after_kill_ms: f64,
    /// Resident memory, opened and idle.
    pub resident_bytes: u64,
}

impl Row {
    /// Nothing measured yet.
    #[must_use]
    pub fn new(point: Point, window: usize) -> Self {
        Self { size: point.size, topics: point.topics, window, ..Self::default() }
    }

    /// The step.
    #[must_use]
    pub fn point(&self) -> Point {
        Point { size: self.size, topics: self.topics }
    }

    /// Whether every run went well, with each message once and in order.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let mut runs = self.runs.iter().chain(&self.beside).chain(&self.with_group);
        self.errors.is_empty() && runs.all(|run| run.balance.is_clean())
    }
}

impl Measured {
    /// What grew; none if a file says what nobody knows.
    #[must_use]
    pub fn dimension(&self) -> Option<Dimension> {
        Dimension::ALL.into_iter().find(|dimension| dimension.name() == self.name)
    }

    /// What a row is compared with: the empty server beside it, or the first row.
    #[must_use]
    pub fn base(&self, row: &Row) -> Option<Figures> {
        Figures::of(&row.beside).or_else(|| Figures::of(&self.rows.first()?.runs))
    }
}

impl Growth {
    /// Puts a dimension in, in the place of an earlier one.
    pub fn put(&mut self, measured: Measured) {
        self.dimensions.retain(|known| known.name != measured.name);
        self.dimensions.push(measured);
        let place = |measured: &Measured| {
            Dimension::ALL.iter().position(|dimension| dimension.name() == measured.name)
        };
        self.dimensions.sort_by_key(place);
    }

    /// Whether every run went well.
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
    fn what_is_measured_again_takes_the_place_of_the_old() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Groups, &[(1, 1.0, 1.0)]));
        growth.put(measured(Dimension::Topics, &[(1, 1.0, 1.0)]));
        growth.put(measured(Dimension::Groups, &[(1, 2.0, 1.0), (10, 2.0, 1.0)]));
        let names: Vec<&str> = growth.dimensions.iter().map(|measured| measured.name.as_str()).collect();
        assert_eq!(names, ["topics", "groups"]);
        assert_eq!(growth.dimensions[1].rows.len(), 2);
    }

    #[test]
    fn raw_results_come_back() {
        let mut growth = Growth::default();
        growth.put(measured(Dimension::Groups, &[(1, 1.0, 1.0)]));
        let text = serde_json::to_string(&growth).unwrap();
        let back: Growth = serde_json::from_str(&text).unwrap();
        assert!(back.is_clean());
        assert_eq!(back.dimensions[0].rows[0].window, 1_000);
    }

    #[test]
    fn a_row_is_compared_with_the_empty_server_beside_it() {
        let mut measured = measured(Dimension::Backlog, &[(0, 100.0, 1.0), (1_000, 100.0, 1.0)]);
        assert_eq!(measured.base(&measured.rows[1]).unwrap().rate.median, 100.0);
        let beside = Measurement { per_second: 80.0, ..measured.rows[1].runs[0].clone() };
        measured.rows[1].beside.push(beside);
        assert_eq!(measured.base(&measured.rows[1]).unwrap().rate.median, 80.0);
    }
}
