//! WebSockets: the transport (RFC 6455), and the session of a client on top of it.
//!
//! `connection.rs` moves bytes between a socket and a `Conversation`, which hands messages to the `Session`. What came is in a
//! `ReceiveBuffer`, from which `frame_decoder.rs` takes the frames. What is to be sent is in a `SendBuffer`, to which
//! `frame_encoder.rs` appends them.

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
mod timers;
pub(crate) mod upgrade;
mod utf8;

pub(crate) use close::Ending;
pub(crate) use connection::WebSocket;
#[cfg(feature = "test-util")]
pub(crate) use permessage_deflate::{Deflate, inflate};
pub(crate) use session::Session;
