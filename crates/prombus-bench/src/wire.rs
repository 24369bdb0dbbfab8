//! Protocols as bytes: encodes what a client sends and parses what it receives. A [`Target`] opens connections; after that, the
//! client loop reads and writes their sockets.

mod web_socket;

use crate::stamp::Stamp;
use std::net::TcpStream;

pub use web_socket::{From, PrombusTarget, WebSocketWire};

/// The parsed input of a connection.
#[derive(Debug, Default)]
pub struct Received {
    /// The numbers of the publishes that were answered OK.
    pub answers: Vec<u64>,
    /// The stamps of the delivered messages.
    pub deliveries: Vec<Stamp>,
    /// Whether the answer to [`Wire::put_barrier`] has arrived.
    pub is_past_barrier: bool,
}

/// One message to publish.
#[derive(Debug)]
pub struct Message<'a> {
    /// The message's number at its publisher.
    pub number: u64,
    /// The number of the message's topic.
    pub topic: usize,
    /// A JSON string that begins with its stamp.
    pub payload: &'a [u8],
}

/// The protocol state of one connection.
pub trait Wire {
    /// Appends a publish to `out`.
    fn put_publish(&mut self, message: &Message<'_>, out: &mut Vec<u8>);

    /// Parses the complete frames at the start of `input`. Returns how many bytes they have.
    ///
    /// # Errors
    /// If the server refuses something or sends something unexpected. The run then ends.
    fn take(&mut self, input: &[u8], received: &mut Received) -> anyhow::Result<usize>;

    /// Appends the acks of the deliveries that were parsed since the last call and, in pull protocols, the next request for messages.
    fn put_acks(&mut self, out: &mut Vec<u8>);

    /// Appends a request that the server answers only after it has processed all earlier acks.
    fn put_barrier(&mut self, out: &mut Vec<u8>);
}

/// A server that can be connected to.
pub trait Target {
    /// The protocol of the server.
    type Wire: Wire;

    /// Opens a connection that publishes.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses.
    fn publisher(&self, publisher: usize) -> anyhow::Result<(TcpStream, Self::Wire)>;

    /// Opens a connection that is the only member of a group. The group receives every message from the first one on. The connection
    /// may already have received messages that are not read yet.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses.
    fn consumer(&self, group: usize) -> anyhow::Result<(TcpStream, Self::Wire)>;
}

/// Appends a number in decimal digits.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
