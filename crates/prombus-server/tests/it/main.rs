//! The gateway as its clients see it: a real server on a free port of loopback, real sockets.

mod http;
mod rig;
mod websocket;
