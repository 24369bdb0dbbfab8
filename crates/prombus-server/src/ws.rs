//! WebSockets: the transport (RFC 6455), and the session of a client on top of it.
//!
//! `connection.rs` moves bytes between a socket and a `Conversation`, which passes messages to the `Session`. Received bytes are
//! in a `ReceiveBuffer`, and `frame_decoder.rs` extracts the frames from it. `frame_encoder.rs` appends outgoing frames to a
//! `SendBuffer`.

mod answers;
mod close;
mod connection;
mod conversation;
mod frame_decoder;
mod frame_encoder;
mod opcode;
mod permessage_deflate;
mod ping;
mod receive_buffer;
mod send_buffer;
mod session;
#[cfg(test)]
mod tests;
mod timers;
pub(crate) mod upgrade;
mod utf8;

pub(crate) use close::Ending;
pub(crate) use connection::WebSocket;
#[cfg(feature = "test-util")]
pub(crate) use permessage_deflate::{Deflate, inflate};
pub(crate) use session::Session;
