//! Tests the client against a real gateway in this process (`gateway`). For behaviour that the real gateway never shows, there are an HTTP
//! server that sends prepared bytes (`scripted`) and a WebSocket server whose frames the test sends (`fake_server`).
#![cfg(test)]

mod clock;
mod errors;
mod fake_server;
mod follow;
mod gateway;
mod handlers;
mod heartbeat;
mod history;
mod leases;
mod lines;
mod publishing;
mod reconnect;
mod resubscribe;
mod scripted;
mod subscription;
mod timeouts;
