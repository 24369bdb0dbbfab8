//! Tests of the server from the outside: a real server on a free loopback port, and real sockets.

mod attempts;
mod closing;
mod follower_routes;
mod frame_options;
mod full_buffers;
mod http;
mod leasing_gate;
mod limits;
mod placeholders;
mod protocol_doc;
mod random_frames;
mod raw_client;
mod relay;
mod relay_endings;
mod relay_reload;
mod relay_security;
mod revoked;
mod rig;
mod shared_rig;
mod slow_disk;
mod subscriptions;
mod test_bus;
mod tls_rig;
mod transcript;
mod upgrade;
mod websocket;
