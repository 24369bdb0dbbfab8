//! `prombus config`: prints the default config file, or checks one.

use crate::args::ConfigCommand;
use crate::config::{check, default_file};
use crate::messages::io_reason;
use crate::output::stdout;
use anyhow::{Context, anyhow};
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// When the file cannot be read, or stdout cannot be written.
pub fn run(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Default => match stdout().write_all(default_file().as_bytes()) {
            // `prombus config default | head` closes the pipe early: not an error.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("printing the config"),
            _ => Ok(ExitCode::SUCCESS),
        },
        ConfigCommand::Check { file, json } => check_file(file, json.json),
    }
}

fn check_file(file: &Path, is_json: bool) -> anyhow::Result<ExitCode> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|error| anyhow!("cannot read {name}: {}", io_reason(&error)))?;
    let faults = check(&name, &text);
    let mut out = stdout().lock();
    if is_json {
        writeln!(out, "{}", json!({ "file": name, "ok": faults.is_empty(), "faults": faults }))?;
        return Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if faults.is_empty() {
        writeln!(out, "{name}: ok")?;
        return Ok(ExitCode::SUCCESS);
    }
    for fault in faults {
        writeln!(out, "{fault}")?;
    }
    Ok(ExitCode::FAILURE)
}
