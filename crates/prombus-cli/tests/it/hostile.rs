//! Tests of hostile and broken clients: the server bounds each of them, and other clients are not affected.

mod deaf;
mod flood;
mod frames;
mod raw;
mod silence;

use crate::serving::{Serving, serve};
use crate::support::TempFolder;
use crate::ws_client::Client;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

/// The maximum time of an honest client's request during an attack.
const HONEST_PATIENCE: Duration = Duration::from_secs(2);

fn start(folder: &TempFolder, settings: &[(&str, &str)]) -> Serving {
    let mut command = serve(folder, &["--log", "warn"]);
    command.envs(settings.iter().copied());
    block_in_place(|| Serving::start(command))
}

/// Checks that an honest client can publish an event and receive it in time.
async fn check_is_responsive(serving: &Serving) {
    let started = Instant::now();
    let mut client = Client::connect(serving.address()).await;
    client.subscribe("honest", "work", json!({"from": "latest"})).await;
    client.send(&json!({"op": "PUBLISH", "topic": "honest", "payload": {"hello": 1}})).await;
    let (mut is_answered, mut is_delivered) = (false, false);
    while !(is_answered && is_delivered) {
        let frame = client.frame().await;
        is_answered |= frame.is_ok();
        is_delivered |= frame.event.is_some();
    }
    let took = started.elapsed();
    assert!(took < HONEST_PATIENCE, "an honest client had to wait for {took:?}");
    client.socket.close(None).await.unwrap();
    client.see().await;
}
