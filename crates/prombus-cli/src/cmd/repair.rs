//! `prombus repair`: lists what cannot be read in a data folder and, with `--accept-loss`, marks it as damaged.

use super::progress;
use super::verify::{faults_as_json, places_as_json, why_not};
use crate::args::RepairArgs;
use crate::messages::print_error;
use prombus_log::{Progress, RepairReport, repair};
use serde_json::json;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;

/// The exit code for a folder that could not be looked at.
const COULD_NOT_RUN: u8 = 2;

/// Runs the command.
///
/// # Errors
/// Writing to stdout failed.
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
            print_error(&why_not(&args.data, error));
            return Ok(ExitCode::from(COULD_NOT_RUN));
        }
    };
    let text = if args.json { as_json(&args.data, &report) } else { as_text(&args.data, &report) };
    writeln!(stdout(), "{text}")?;
    let is_settled = report.places.is_empty() || report.is_accepted;
    Ok(if is_settled { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_text(folder: &Path, report: &RepairReport) -> String {
    let mut lines: Vec<String> = report.places.iter().map(ToString::to_string).collect();
    lines.extend(report.events.iter().map(ToString::to_string));
    lines.extend(report.redundant.iter().map(|place| format!("{place}; there is a second copy of it")));
    let folder = folder.display();
    lines.push(match (report.places.len(), report.is_accepted) {
        (0, _) => format!("{folder}: nothing is lost, everything that is needed can be read"),
        (count, true) => format!("{folder}: {count} places count as damaged from now on"),
        (count, false) => format!(
            "{folder}: {count} places cannot be read. Nothing was changed: copy the folder to another disk first if you can. \
             To give up what is listed, run this again with --accept-loss"
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
