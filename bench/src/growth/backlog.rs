//! Measures live publishing on a server that already stores many events, alternating with an empty server.

use super::dimension::{Dimension, Point};
use super::measure::{GrowthServer, Runner, record_run};
use super::results::{Opening, Row};
use crate::machine::check_free;
use crate::page::number;
use crate::progress::say;
use prombus_bench::usage::Usage;
use prombus_bench::wire::From;
use prombus_bench::{Length, Plan};
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The disk space per event, including overhead and a reserve of a quarter.
const BYTES_PER_EVENT: u64 = 460;
/// The disk space that the measured runs may need in addition to the backlog.
const BYTES_OF_RUNS: u64 = 4_000_000_000;
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Checks that the disk has room for the largest of these backlogs.
///
/// # Errors
/// If it has not.
pub fn check_room(runner: &Runner, points: &[Point]) -> anyhow::Result<()> {
    let largest = points.iter().map(|point| point.size).max().unwrap_or(0);
    let folder = runner.folder.parent().unwrap_or(&runner.folder);
    let what = format!("a backlog of {} events", number(largest as f64));
    let advice = "use another disk with --data, or a smaller --backlog";
    check_free(folder, largest * BYTES_PER_EVENT + BYTES_OF_RUNS.min(largest * 1_000), &what, advice)
}

/// Runs all backlogs, from small to large.
#[must_use]
pub fn measure(runner: &Runner, points: &[Point]) -> Vec<Row> {
    let (empty, kept): (Vec<Point>, Vec<Point>) = points.iter().partition(|point| point.size == 0);
    let mut rows: Vec<Row> = empty.iter().map(|&point| measure_empty(runner, point)).collect();
    for point in kept {
        let mut row = Row::new(point, super::dimension::IN_FLIGHT);
        if let Err(error) = measure_kept(runner, point, &mut row) {
            let what = Dimension::Backlog.label(point);
            say(&format!("backlog {what}: FAILED: {error:#}"));
            row.errors.push(format!("backlog {what}: {error:#}"));
        }
        // A server that failed may have left the folder behind.
        let _ = std::fs::remove_dir_all(&runner.folder);
        rows.push(row);
    }
    rows
}

/// Measures without a backlog. Each run has its own server: otherwise the events of one run would be the backlog of the next.
fn measure_empty(runner: &Runner, point: Point) -> Row {
    let mut rows = runner.measure(Dimension::Backlog, &[point]);
    let mut row = rows.remove(0);
    for run in 1..=runner.runs {
        runner.settle_disk();
        let outcome = runner.start(1).and_then(|server| run_with_group(runner, server, run).1);
        record_run(
            &format!("backlog 0, new group, run {run}"),
            outcome,
            &mut row.with_group,
            &mut row.errors,
        );
    }
    match runner.start(1).and_then(|server| open_again(runner, server)) {
        Ok(opening) => row.opening = Some(opening),
        Err(error) => row.errors.push(format!("backlog 0, opening: {error:#}")),
    }
    row
}

fn measure_kept(runner: &Runner, point: Point, row: &mut Row) -> anyhow::Result<()> {
    let label = Dimension::Backlog.label(point);
    runner.settle_disk();
    let mut server = runner.start(point.topics)?;
    fill(&server, point, &label)?;
    let empty = Runner {
        peer: runner.peer.clone(),
        folder: PathBuf::from(format!("{}-empty", runner.folder.display())),
        ..*runner
    };
    for run in 1..=runner.runs {
        let outcome = empty.run(Dimension::Backlog, Point { size: 0, topics: 1 });
        let what = format!("backlog {label}, run {run}, empty server");
        record_run(&what, outcome, &mut row.beside, &mut row.errors);
        runner.settle_disk();
        let outcome = server.run(&Dimension::Backlog.plan(point, runner.time), &mut |_| {});
        record_run(&format!("backlog {label}, run {run}"), outcome, &mut row.runs, &mut row.errors);
    }
    for run in 1..=runner.runs {
        runner.settle_disk();
        let (back, outcome) = run_with_group(runner, server, run);
        server = back;
        let what = format!("backlog {label}, new group, run {run}");
        record_run(&what, outcome, &mut row.with_group, &mut row.errors);
    }
    let opening = open_again(runner, server)?;
    say(&format!(
        "backlog {label}: opens in {:.0} ms after a stop, in {:.0} ms after a kill, with {} MB resident",
        opening.after_stop_ms,
        opening.after_kill_ms,
        opening.resident_bytes / 1_000_000
    ));
    row.opening = Some(opening);
    Ok(())
}

/// Publishes the backlog.
fn fill(server: &GrowthServer, point: Point, label: &str) -> anyhow::Result<()> {
    let plan = Plan {
        topics: point.topics,
        length: Length::Messages(point.size),
        warm_up: Duration::ZERO,
        ..Plan::default()
    };
    let mut reported_at = Duration::ZERO;
    server.run(&plan, &mut |progress| {
        if progress.elapsed >= reported_at + PROGRESS_INTERVAL {
            reported_at = progress.elapsed;
            say(&format!("backlog {label}: {} events published", number(progress.answered as f64)));
        }
    })?;
    Ok(())
}

/// Measures publishing with a new group that starts at the end.
fn run_with_group(
    runner: &Runner,
    mut server: GrowthServer,
    run: u8,
) -> (GrowthServer, anyhow::Result<prombus_bench::Measurement>) {
    server.target.group = format!("new-{run}-");
    server.target.from = From::Latest;
    let point = Point { size: 0, topics: server.target.topics };
    let plan = Plan { groups: 1, ..Dimension::Backlog.plan(point, runner.time) };
    let outcome = server.run(&plan, &mut |_| {});
    (server, outcome)
}

/// Measures how long the server takes to start: after it was killed under load, and after a normal stop. Deletes its data.
fn open_again(runner: &Runner, server: GrowthServer) -> anyhow::Result<Opening> {
    let topics = server.target.topics;
    let timed_start = || -> anyhow::Result<(GrowthServer, f64)> {
        let began = Instant::now();
        let server = runner.start(topics)?;
        Ok((server, began.elapsed().as_secs_f64() * 1e3))
    };
    // A kill under load is the worst case: the server has to replay everything since its last checkpoint.
    let live = Dimension::Backlog.plan(Point { size: 0, topics }, runner.time / 3);
    server.run(&live, &mut |_| {})?;
    server.process.end(Signal::KILL);
    let (server, after_kill_ms) = timed_start()?;
    server.process.end(Signal::TERM);
    let (server, after_stop_ms) = timed_start()?;
    let resident_bytes = Usage::of(server.process.id())?.resident_bytes;
    Ok(Opening { after_stop_ms, after_kill_ms, resident_bytes })
}
