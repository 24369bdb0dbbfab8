//! `prombus verify`: checks every file of a data folder and reports each fault. Shows a progress bar on a terminal.

use super::progress;
use crate::args::VerifyArgs;
use crate::messages::{counted, one_line, print_error};
use crate::output::stdout;
use prombus_log::{Fault, OpenError, Progress, UnreadablePlace, VerifyError, VerifyReport, verify};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The exit code for a folder that could not be checked, as opposed to one with faults.
const COULD_NOT_RUN: u8 = 2;

/// Runs the command.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let bar = progress::bytes(0);
    let verified = verify(&args.data, |progress: Progress| {
        bar.set_length(progress.bytes_total);
        bar.set_position(progress.bytes_done);
    });
    bar.finish_and_clear();
    let report = match verified {
        Ok(report) => report,
        Err(error) => {
            // Segments without a manifest are a fault of the folder, not a wrong argument.
            let is_fault = matches!(error, VerifyError::Open(OpenError::ManifestMissing { .. }));
            print_error(&failure(&args.data, error));
            return Ok(if is_fault { ExitCode::FAILURE } else { ExitCode::from(COULD_NOT_RUN) });
        }
    };
    let text = if args.json.json { as_json(&args.data, &report) } else { as_text(&args.data, &report) };
    writeln!(stdout(), "{text}")?;
    let is_clean = report.faults.is_empty() && report.unreadable.is_empty();
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why the folder could not be checked, and what to do.
pub(super) fn failure(folder: &Path, error: VerifyError) -> String {
    let folder = folder.display();
    match error {
        VerifyError::Open(OpenError::Locked { .. }) => {
            format!("{folder} is in use by a running server; stop it first, or verify a copy of the folder")
        }
        VerifyError::Open(OpenError::Io { ref source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            format!("no folder {folder}; name the data folder with --data")
        }
        VerifyError::Open(OpenError::NotALog { .. }) => {
            format!("{folder} is not a prombus data folder (no MANIFEST); name the data folder with --data")
        }
        other => one_line(&anyhow::Error::from(other)),
    }
}

fn as_text(folder: &Path, report: &VerifyReport) -> String {
    let mut lines: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    lines.extend(report.unreadable.iter().map(ToString::to_string));
    lines.extend(report.unreadable_events.iter().map(ToString::to_string));
    let VerifyReport { segments, events, bytes, torn_tail_bytes, .. } = report;
    if *torn_tail_bytes > 0 {
        lines.push(format!(
            "{torn_tail_bytes} bytes of an unfinished write at the end: not a fault, the next start removes them"
        ));
    }
    let faults = match report.faults.len() {
        0 if !report.unreadable.is_empty() => "no faults found, but some places cannot be read".to_owned(),
        0 => "no faults".to_owned(),
        count => counted(count as u64, "fault"),
    };
    let (segments, events) = (counted(*segments as u64, "segment"), counted(*events, "event"));
    lines.push(format!("{}: {segments}, {events}, {}: {faults}", folder.display(), counted(*bytes, "byte")));
    lines.join("\n")
}

pub(super) fn faults_as_json(faults: &[Fault]) -> Vec<serde_json::Value> {
    let fault = |fault: &Fault| {
        json!({
            "file": fault.file,
            "position": fault.position,
            "topic": fault.topic,
            "seq": fault.seq,
            "last_seq": fault.last_seq,
            "message": fault.to_string(),
        })
    };
    faults.iter().map(fault).collect()
}

pub(super) fn places_as_json(places: &[UnreadablePlace]) -> Vec<serde_json::Value> {
    let place =
        |place: &UnreadablePlace| json!({ "file": place.file, "position": place.position, "end": place.end });
    places.iter().map(place).collect()
}

fn as_json(folder: &Path, report: &VerifyReport) -> String {
    json!({
        "data": folder.display().to_string(),
        "segments": report.segments,
        "events": report.events,
        "bytes": report.bytes,
        "torn_tail_bytes": report.torn_tail_bytes,
        "faults": faults_as_json(&report.faults),
        "unreadable": places_as_json(&report.unreadable),
        "unreadable_events": faults_as_json(&report.unreadable_events),
    })
    .to_string()
}
