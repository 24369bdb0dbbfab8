//! The gateway as its clients see it: a real server on a free port of loopback, real sockets.

mod attempts;
mod closing;
mod frame_options;
mod full_buffers;
mod http;
mod limits;
mod placeholders;
mod protocol_doc;
mod random_frames;
mod raw_client;
mod rig;
mod slow_disk;
mod subscriptions;
mod tls_rig;
mod transcript;
mod upgrade;
mod websocket;
