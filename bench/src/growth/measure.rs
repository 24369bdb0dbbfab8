//! Measures the steps of a dimension on real servers, one server at a time.

use super::dimension::{Dimension, Point};
use super::results::Row;
use crate::page::number;
use crate::peer::PrombusPeer;
use crate::progress::say;
use prombus_bench::client::{self, Progress};
use prombus_bench::ledger::Ledger;
use prombus_bench::process::Process;
use prombus_bench::wire::PrombusTarget;
use prombus_bench::{Length, Measurement, Plan};
use std::path::PathBuf;
use std::time::Duration;

/// Runs measurements. Contains the settings that all runs have in common.
#[derive(Debug)]
pub struct Runner {
    /// The server's program.
    pub peer: PrombusPeer,
    /// The folder for the server's data, created and deleted for each run.
    pub folder: PathBuf,
    /// Number of runs per step.
    pub runs: u8,
    /// How long a run is.
    pub time: Duration,
}

/// How long the disk gets to finish work on deleted files: its work after a discard would distort the next run.
const DISK_SETTLE_TIME: Duration = Duration::from_secs(3);

/// A running server.
#[derive(Debug)]
pub(super) struct GrowthServer {
    pub(super) process: Process,
    pub(super) target: PrombusTarget,
}

impl GrowthServer {
    /// Runs a plan, with its own ledger.
    pub(super) fn run(
        &self,
        plan: &Plan,
        on_progress: &mut dyn FnMut(Progress),
    ) -> anyhow::Result<Measurement> {
        let mut ledger = Ledger::new(plan.publishers, plan.topics, plan.groups);
        client::run(&self.target, plan, &mut ledger, Some(self.process.id()), on_progress)
            .map_err(|error| self.process.explain(error))
    }
}

impl Runner {
    /// Starts a server with the data in the folder; the client publishes to this number of topics.
    pub(super) fn start(&self, topics: usize) -> anyhow::Result<GrowthServer> {
        std::fs::create_dir_all(&self.folder)?;
        let (process, target) = self.peer.start(&self.folder, false)?;
        Ok(GrowthServer { process, target: PrombusTarget { topics, ..target } })
    }

    /// Waits until the disk has finished the work of earlier runs.
    pub(super) fn settle_disk(&self) {
        rustix::fs::sync();
        std::thread::sleep(DISK_SETTLE_TIME.min(self.time));
        rustix::fs::sync();
    }

    /// Runs a step once, on a new server.
    pub(super) fn run(&self, dimension: Dimension, point: Point) -> anyhow::Result<Measurement> {
        self.settle_disk();
        let server = self.start(point.topics)?;
        if point.topics > 1 {
            let each_once = Plan {
                topics: point.topics,
                length: Length::Messages(point.topics as u64),
                warm_up: Duration::ZERO,
                ..Plan::default()
            };
            server.run(&each_once, &mut |_| {})?;
        }
        server.run(&dimension.plan(point, self.time), &mut |_| {})
    }

    /// Runs all steps. The steps take turns, so that a machine that becomes slower affects all of them.
    pub fn measure(&self, dimension: Dimension, points: &[Point]) -> Vec<Row> {
        let row = |&point| Row::new(point, dimension.plan(point, self.time).window);
        let mut rows: Vec<Row> = points.iter().map(row).collect();
        for run in 1..=self.runs {
            for row in &mut rows {
                let outcome = self.run(dimension, row.point());
                let what = format!("{} {}, run {run}", dimension.name(), dimension.label(row.point()));
                record_run(&what, outcome, &mut row.runs, &mut row.errors);
            }
        }
        rows
    }
}

/// Reports the outcome of a run and stores it.
pub(super) fn record_run(
    what: &str,
    outcome: anyhow::Result<Measurement>,
    runs: &mut Vec<Measurement>,
    errors: &mut Vec<String>,
) {
    match outcome {
        Ok(run) => {
            let warning = if run.balance.is_clean() { "" } else { ", NOT CLEAN" };
            say(&format!(
                "{what}: {}/s, server {:.2} µs each, p99 {:.1} ms, {} MB resident{warning}",
                number(run.per_second),
                run.server_cpu_us().unwrap_or(0.0),
                run.publish.p99_ms,
                run.server_resident_bytes.unwrap_or(0) / 1_000_000,
            ));
            runs.push(run);
        }
        Err(error) => {
            say(&format!("{what}: FAILED: {error:#}"));
            errors.push(format!("{what}: {error:#}"));
        }
    }
}
