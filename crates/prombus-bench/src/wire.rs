//! What a client says to a server and what it hears, in bytes. No sockets here but those that are opened.

mod web_socket;

use crate::stamp::Stamp;
use std::net::TcpStream;

pub use web_socket::{From, PrombusTarget, WebSocketWire};

/// What came in.
#[derive(Debug, Default)]
pub struct Heard {
    /// Publishes that were answered OK, by number.
    pub answers: Vec<u64>,
    /// Deliveries.
    pub deliveries: Vec<Stamp>,
    /// The answer to [`Wire::put_barrier`] came.
    pub is_past_barrier: bool,
}

/// One message to publish.
#[derive(Debug)]
pub struct Message<'a> {
    /// Its number at its publisher.
    pub number: u64,
    /// Which of the topics it goes to.
    pub topic: usize,
    /// A JSON string that begins with its stamp.
    pub payload: &'a [u8],
}

/// One connection's words.
pub trait Wire {
    /// Puts a publish.
    fn put_publish(&mut self, message: &Message<'_>, out: &mut Vec<u8>);

    /// Takes what is whole at the begin of `input`, and answers how many bytes that was.
    ///
    /// # Errors
    /// When a server refuses something, or says what nobody expects: the run ends.
    fn take(&mut self, input: &[u8], heard: &mut Heard) -> anyhow::Result<usize>;

    /// Puts what is owed for what was taken since: acks, and in languages that ask for messages, the next question.
    fn put_acks(&mut self, out: &mut Vec<u8>);

    /// Puts something whose answer comes when all acks before it are done.
    fn put_barrier(&mut self, out: &mut Vec<u8>);
}

/// A server that can be connected to.
pub trait Target {
    /// Its words.
    type Wire: Wire;

    /// A connection that publishes.
    ///
    /// # Errors
    /// When the server is not there, or refuses.
    fn publisher(&self, publisher: usize) -> anyhow::Result<(TcpStream, Self::Wire)>;

    /// A connection that is the one member of a group which gets everything from the first message on. It may have
    /// messages in it that were not read yet.
    ///
    /// # Errors
    /// When the server is not there, or refuses.
    fn consumer(&self, group: usize) -> anyhow::Result<(TcpStream, Self::Wire)>;
}

/// Puts a number in digits.
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
