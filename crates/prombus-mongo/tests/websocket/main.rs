//! Runs the server's WebSocket tests and the examples of docs/protocol.md on the MongoDB engine.

#![allow(clippy::unwrap_used, dead_code, missing_docs)]

#[path = "../../../prombus-server/tests/it/attempts.rs"]
mod attempts;
#[path = "../../../prombus-server/tests/it/frame_options.rs"]
mod frame_options;
#[path = "../../../prombus-server/tests/it/placeholders.rs"]
mod placeholders;
#[path = "../../../prombus-server/tests/it/protocol_doc.rs"]
mod protocol_doc;
#[path = "../../../prombus-server/tests/it/raw_client.rs"]
mod raw_client;
#[path = "../../../prombus-server/tests/it/rig.rs"]
mod rig;
#[path = "../it/servers.rs"]
mod servers;
#[path = "../../../prombus-server/tests/it/subscriptions.rs"]
mod subscriptions;
mod test_bus;
#[path = "../../../prombus-server/tests/it/transcript.rs"]
mod transcript;
#[path = "../../../prombus-server/tests/it/websocket.rs"]
mod websocket;
