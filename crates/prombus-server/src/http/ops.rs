//! Routes about the server itself: greeting, health, readiness and metrics.

use super::answer::{self, Answered};
use super::call::Call;
use super::{ApiError, exposition};
use crate::metrics::{self, Sources};
use axum::body::Body;
use prombus_protocol::ErrorCode;
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Status {
    status: &'static str,
    /// Present only where several gateways share the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
}

/// `GET /`.
pub(super) async fn hello(_call: Call) -> Answered {
    let text = concat!(
        "prombus ",
        env!("CARGO_PKG_VERSION"),
        ": a durable event bus\n\n",
        "WebSocket  /ws\n",
        "publish    curl -d '{\"hello\":\"world\"}' HOST/publish/TOPIC\n",
        "tail       curl -N HOST/subscribe/TOPIC\n",
        "all routes /openapi.json\n",
    );
    Ok(answer::typed("text/plain; charset=utf-8", Body::from(text)))
}

/// `GET /healthz`: succeeds if the bus can write. Problems that a restart would not fix, such as a full disk, are listed as
/// reasons.
pub(super) async fn healthz(call: Call) -> Answered {
    let backend = &call.gateway.backend;
    backend.health()?;
    let reasons: Vec<String> = backend.problems().iter().map(ToString::to_string).collect();
    let role = call.gateway.shared_store.is_some().then_some("leader");
    answer::json(&Status { status: if reasons.is_empty() { "ok" } else { "degraded" }, role, reasons })
}

/// `GET /readyz`: like `/healthz`, but also fails when the server shuts down, or when another gateway becomes the leader of the
/// store.
pub(super) async fn readyz(call: Call) -> Answered {
    if call.gateway.stopping.is_stopping() {
        return Err(ApiError::new(ErrorCode::Unavailable, call.gateway.stopping.reason()));
    }
    healthz(call).await
}

/// The time that a scrape spends on the ages of groups. Prometheus waits for 10 s by default.
const AGES_PATIENCE: Duration = Duration::from_secs(2);

/// `GET /metrics`.
pub(super) async fn metrics(call: Call) -> Answered {
    let gateway = &call.gateway;
    // The other metrics must be available while the store cannot be read.
    let ages = gateway.ages.read(&gateway.backend, AGES_PATIENCE).await;
    let sources = Sources {
        metrics: &gateway.metrics,
        rates: &gateway.rates,
        budget: &gateway.budget,
        backend: &*gateway.backend,
        ages: &ages,
        shared_store: gateway.shared_store.as_deref(),
    };
    Ok(exposition::answer(&call.headers, |format| metrics::render(&sources, format)))
}
