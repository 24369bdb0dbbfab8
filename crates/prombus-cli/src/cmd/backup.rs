//! `prombus backup`: has a running server copy everything to a folder.

use super::{progress, server_client};
use crate::args::BackupArgs;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::io::{Write, stdout};
use std::process::ExitCode;

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Told {
    bytes_done: Option<u64>,
    bytes_total: Option<u64>,
    done: bool,
    error: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When the server does not let it, or cannot.
pub fn run(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    server_client::block_on(backup(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn backup(args: &BackupArgs) -> anyhow::Result<()> {
    let folder = std::path::absolute(&args.folder)?;
    let shown = folder.display();
    let client = server_client::client(&args.server)?;
    let name =
        folder.to_str().with_context(|| format!("{shown}: a name that is not UTF-8 cannot be sent"))?;
    let request = serde_json::json!({ "folder": name });
    let mut lines = client.post_for_lines("/backup", &request).await?;
    let bar = progress::bytes(0);
    let mut is_done = false;
    while let Some(line) = lines.next().await? {
        let told: Told = serde_json::from_slice(&line)
            .with_context(|| format!("the server said {}", String::from_utf8_lossy(&line)))?;
        if let Some(error) = told.error {
            bar.finish_and_clear();
            bail!("no backup in {shown}: {error}");
        }
        if let (Some(done), Some(total)) = (told.bytes_done, told.bytes_total) {
            bar.set_length(total);
            bar.set_position(done);
        }
        is_done |= told.done;
    }
    bar.finish_and_clear();
    if !is_done {
        bail!("the server went away in the middle; {shown} is not whole");
    }
    let mut out = stdout();
    writeln!(out, "a copy of everything is in {shown}")?;
    writeln!(out, "check it:  prombus verify --data {shown}")?;
    writeln!(out, "serve it:  prombus serve --data {shown}")?;
    Ok(())
}
