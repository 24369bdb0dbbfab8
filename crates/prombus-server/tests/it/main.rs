//! The gateway as its clients see it: a real server on a free port of loopback, real sockets.

mod placeholders;
mod protocol_doc;
mod rig;
mod transcript;
mod websocket;
