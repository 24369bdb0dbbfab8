//! `prombus repair`: lists unreadable places of a data folder and, with `--accept-loss`, marks them as damaged.

use super::progress;
use super::verify::{failure, faults_as_json, places_as_json};
use crate::args::RepairArgs;
use crate::messages::{counted, print_error};
use crate::output::stdout;
use prombus_log::{Progress, RepairReport, repair};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The exit code for a folder that could not be checked.
const COULD_NOT_RUN: u8 = 2;

/// Runs the command.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &RepairArgs) -> anyhow::Result<ExitCode> {
    let bar = progress::bytes(0);
    let repaired = repair(&args.data, args.accept_loss, |progress: Progress| {
        bar.set_length(progress.bytes_total);
        bar.set_position(progress.bytes_done);
    });
    bar.finish_and_clear();
    let report = match repaired {
        Ok(report) => report,
        Err(error) => {
            print_error(&failure(&args.data, error));
            return Ok(ExitCode::from(COULD_NOT_RUN));
        }
    };
    let text = if args.json.json { as_json(&args.data, &report) } else { as_text(&args.data, &report) };
    writeln!(stdout(), "{text}")?;
    let is_resolved = report.places.is_empty() || report.is_accepted;
    Ok(if is_resolved { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(folder: &Path, report: &RepairReport) -> String {
    let mut lines: Vec<String> = report.places.iter().map(ToString::to_string).collect();
    lines.extend(report.events.iter().map(ToString::to_string));
    lines.extend(report.redundant.iter().map(|place| format!("{place}; a second copy exists")));
    let folder = folder.display();
    lines.push(match (report.places.len(), report.is_accepted) {
        (0, _) => format!("{folder}: nothing is lost; all required data can be read"),
        (1, true) => format!("{folder}: 1 place is marked as damaged"),
        (count, true) => format!("{folder}: {count} places are marked as damaged"),
        (count, false) => format!(
            "{folder}: {} cannot be read. Nothing was changed. If possible, copy the folder to another disk first. \
             To give up the listed data, run the command again with --accept-loss",
            counted(count as u64, "place")
        ),
    });
    lines.join("\n")
}

fn as_json(folder: &Path, report: &RepairReport) -> String {
    json!({
        "data": folder.display().to_string(),
        "unreadable": places_as_json(&report.places),
        "events": faults_as_json(&report.events),
        "redundant": places_as_json(&report.redundant),
        "accepted": report.is_accepted,
    })
    .to_string()
}
