//! The client against a real gateway in this process (`gateway`), and against a server that answers byte for byte as it is
//! told (`scripted`) where the gateway would never do what is tested.
#![cfg(test)]

mod errors;
mod gateway;
mod history;
mod lines;
mod reconnect;
mod scripted;
mod subscription;
mod timeouts;
