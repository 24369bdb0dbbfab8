//! Opcodes and flags in the first byte of a WebSocket frame (RFC 6455, section 5.2).

pub(super) const CONTINUATION: u8 = 0;
pub(super) const TEXT: u8 = 1;
pub(super) const BINARY: u8 = 2;
pub(super) const CLOSE: u8 = 8;
pub(super) const PING: u8 = 9;
pub(super) const PONG: u8 = 10;
/// The bit that marks a compressed message.
pub(super) const DEFLATED: u8 = 0x40;
