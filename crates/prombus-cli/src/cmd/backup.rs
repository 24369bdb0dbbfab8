//! `prombus backup`: asks a running server to copy all its data to a folder.

use super::{progress, server_client};
use crate::args::BackupArgs;
use crate::output::stdout;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::io::Write;
use std::process::ExitCode;

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct ProgressLine {
    bytes_done: Option<u64>,
    bytes_total: Option<u64>,
    /// Whether the backup is complete.
    done: bool,
    /// Why the backup failed.
    error: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When the server refuses the request or the backup fails.
pub fn run(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(backup(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn backup(args: &BackupArgs) -> anyhow::Result<()> {
    let folder = std::path::absolute(&args.folder)?;
    let shown = folder.display();
    let client = server_client::client(&args.server)?;
    let name = folder.to_str().with_context(|| format!("{shown}: the name of the folder is not UTF-8"))?;
    let request = serde_json::json!({ "folder": name });
    let mut lines = client.post_for_lines("/backup", &request).await?;
    let bar = progress::bytes(0);
    let mut is_done = false;
    while let Some(line) = lines.next().await? {
        let progress: ProgressLine = serde_json::from_slice(&line)
            .with_context(|| format!("unexpected response: {}", String::from_utf8_lossy(&line)))?;
        if let Some(error) = progress.error {
            bar.finish_and_clear();
            bail!("the backup to {shown} failed: {error}");
        }
        if let (Some(done), Some(total)) = (progress.bytes_done, progress.bytes_total) {
            bar.set_length(total);
            bar.set_position(done);
        }
        is_done |= progress.done;
    }
    bar.finish_and_clear();
    if !is_done {
        bail!("the connection to the server was lost; the backup in {shown} is incomplete");
    }
    let mut out = stdout();
    if args.json.json {
        writeln!(out, "{}", serde_json::json!({ "folder": name, "complete": true }))?;
        return Ok(());
    }
    writeln!(out, "the backup is in {shown}")?;
    writeln!(out, "check it:  prombus verify --data {shown}")?;
    writeln!(out, "serve it:  prombus serve --data {shown}")?;
    Ok(())
}
