//! The gateway as its clients see it: a real server on a free port of loopback, real sockets.

mod attempts;
mod frame_options;
mod http;
mod limits;
mod placeholders;
mod protocol_doc;
mod random_frames;
mod regressions;
mod rig;
mod transcript;
mod websocket;
