//! `prombus health`: whether a server can write and accepts new work.

use super::server_client;
use super::style::{escape_controls, put_json_line};
use crate::args::HealthArgs;
use crate::output::stdout;
use prombus_client::{Client, ClientError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::timeout;

/// How long the server has to answer. A probe that waits is of no use.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The response of `/healthz` or `/readyz`.
#[derive(Debug, Deserialize, Serialize)]
struct Status {
    status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
}

/// The health of a server.
#[derive(Debug)]
struct Health {
    version: Option<String>,
    health: Status,
    ready: Status,
}

/// Runs the command.
///
/// # Errors
/// When the server cannot be reached.
pub fn run(args: &HealthArgs) -> anyhow::Result<ExitCode> {
    let client = server_client::client(&args.server)?;
    let address = client.address().to_string();
    let asking = async {
        Ok(timeout(ANSWER_MAX, ask(&client)).await.unwrap_or_else(|_| {
            let why = format!("no answer in {} s", ANSWER_MAX.as_secs());
            Err(ClientError::Lost { address: address.clone(), why })
        }))
    };
    let health = match server_client::block_on(asking)? {
        Ok(health) => health,
        Err(error) if args.json.json => {
            let error = error.to_string();
            put_json_line(&json!({ "server": address, "healthy": false, "error": error }))?;
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    let is_healthy = health.health.status == "ok" && health.ready.status == "ok";
    if args.json.json {
        let Health { version, health, ready } = health;
        let json = json!({
            "server": address, "version": version, "healthy": is_healthy, "health": health, "ready": ready,
        });
        put_json_line(&json)?;
    } else {
        write!(stdout(), "{}", described(&address, &health))?;
    }
    Ok(if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask(client: &Client) -> Result<Health, ClientError> {
    let health = status(client, "healthz").await?;
    let ready = status(client, "readyz").await?;
    let mut greeting = client.lines("/").await?;
    let line = greeting.next().await?.unwrap_or_default();
    // `prombus VERSION: …`
    let version = String::from_utf8_lossy(&line)
        .strip_prefix("prombus ")
        .and_then(|rest| rest.split([':', '\n']).next())
        .map(str::to_owned);
    Ok(Health { version, health, ready })
}

async fn status(client: &Client, route: &str) -> Result<Status, ClientError> {
    match client.get_json(&Client::path(&[route], &[])).await {
        Err(ClientError::Refused { status: Some(503), message, .. }) => {
            Ok(Status { status: "unavailable".to_owned(), role: None, reasons: vec![message] })
        }
        answer => answer,
    }
}

fn described(address: &str, health: &Health) -> String {
    let mut rows = vec![
        ("server", address.to_owned()),
        ("version", health.version.clone().unwrap_or_else(|| "-".to_owned())),
        ("health", health.health.status.clone()),
        ("ready", health.ready.status.clone()),
    ];
    rows.extend(health.health.role.iter().map(|role| ("role", role.clone())));
    let mut reasons = health.health.reasons.clone();
    reasons.extend(
        health.ready.reasons.iter().filter(|reason| !health.health.reasons.contains(reason)).cloned(),
    );
    rows.extend(reasons.into_iter().map(|reason| ("problem", reason)));
    rows.into_iter().map(|(title, text)| format!("{title:<8} {}\n", escape_controls(&text))).collect()
}
