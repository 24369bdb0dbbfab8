//! The client against a real gateway in this process (`gateway`), and where the gateway would never do what is tested, against
//! an HTTP server that responds byte for byte as it is told (`scripted`) or a WebSocket server whose frames the test sends
//! (`fake_server`).
#![cfg(test)]

mod clock;
mod errors;
mod fake_server;
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
