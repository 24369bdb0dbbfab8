//! AMQP 0-9-1 for RabbitMQ: persistent publishes with confirms, one fanout exchange with a queue for each group, and one ack for all
//! deliveries of a read.

mod frame;

use anyhow::{Context, bail};
use frame::{Arguments, BASIC_ACK, BASIC_DELIVER, BASIC_QOS_OK, Frame, Kind};
use prombus_bench::stamp::Stamp;
use prombus_bench::wire::{Message, Received, Target, Wire};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The type of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum QueueType {
    /// A durable classic queue.
    Classic,
    /// A quorum queue. It has one member, because there is only one node.
    Quorum,
}

/// A RabbitMQ server.
#[derive(Clone, Debug)]
pub struct AmqpTarget {
    /// Its address.
    pub address: SocketAddr,
    /// The fanout exchange that messages are published to. Queue names begin with the same text.
    pub exchange: String,
    /// The type of its queues.
    pub queue_type: QueueType,
    /// Maximum number of unacked deliveries per consumer.
    pub prefetch: u16,
}

/// One connection to RabbitMQ.
#[derive(Debug)]
pub struct AmqpWire {
    /// The complete method frame of a publish.
    publish: Vec<u8>,
    /// The number of the first message on this connection, whose delivery tag is 1.
    first_number: Option<u64>,
    /// Tags up to this one are confirmed and reported.
    confirmed: u64,
    /// Whether each later tag is confirmed. Confirms arrive in any order and are reported in the order of the tags.
    ahead: VecDeque<bool>,
    /// The tag of the last unacked delivery.
    unacked: Option<u64>,
    /// The frame that must come next.
    awaits: Awaits,
    prefetch: u16,
}

/// Which frame of a delivery comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Method,
    Header,
    Body,
}

const DURABLE: u8 = 0b10;
const IS_MULTIPLE: u8 = 1;

impl QueueType {
    fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

impl AmqpTarget {
    /// Creates the exchange and the queue of the first group: without a queue, the server would drop messages.
    ///
    /// # Errors
    /// If the server cannot be reached, or refuses.
    pub fn create(&self) -> anyhow::Result<()> {
        let mut stream = self.connect()?;
        let declare = Arguments::method(40, 10)
            .short(0)
            .string(&self.exchange)
            .string("fanout")
            .octet(DURABLE)
            .empty_table();
        frame::ask(&mut stream, declare, (40, 11))?;
        self.create_queue(&mut stream, 0)
    }

    /// The settings of exchange, queues and consumers, on one line.
    #[must_use]
    pub fn settings(&self) -> String {
        format!(
            "durable fanout exchange, a durable {} queue for each group, delivery_mode=2, publisher confirms; \
             basic.qos prefetch_count={}, basic.ack multiple",
            self.queue_type.name(),
            self.prefetch
        )
    }

    fn queue(&self, group: usize) -> String {
        format!("{}{group}", self.exchange)
    }

    fn create_queue(&self, stream: &mut TcpStream, group: usize) -> anyhow::Result<()> {
        let queue = self.queue(group);
        let declare = Arguments::method(50, 10)
            .short(0)
            .string(&queue)
            .octet(DURABLE)
            .table("x-queue-type", self.queue_type.name());
        frame::ask(stream, declare, (50, 11))?;
        let bind = Arguments::method(50, 20)
            .short(0)
            .string(&queue)
            .string(&self.exchange)
            .string("")
            .octet(0)
            .empty_table();
        frame::ask(stream, bind, (50, 21))
    }

    /// A connection with channel 1 open.
    fn connect(&self) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)
            .with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(b"AMQP\0\0\x09\x01")?;
        frame::expect(&mut stream, (10, 10))?;
        let start_ok = Arguments::method(10, 11)
            .empty_table()
            .string("PLAIN")
            .long_string(b"\0guest\0guest")
            .string("en_US");
        frame::say(&mut stream, 0, start_ok)?;
        let tune = frame::expect(&mut stream, (10, 30))?;
        // Accepts the server's limits, without heartbeats.
        let limits = tune.get(..6).context("a tune without limits")?;
        frame::say(&mut stream, 0, Arguments::method(10, 31).bytes(limits).short(0))?;
        frame::say(&mut stream, 0, Arguments::method(10, 40).string("/").string("").octet(0))?;
        frame::expect(&mut stream, (10, 41))?;
        frame::ask(&mut stream, Arguments::method(20, 10).string(""), (20, 11))?;
        Ok(stream)
    }

    fn new_wire(&self) -> AmqpWire {
        let mut publish = Vec::new();
        Arguments::method(60, 40).short(0).string(&self.exchange).string("").octet(0).put(1, &mut publish);
        AmqpWire {
            publish,
            first_number: None,
            confirmed: 0,
            ahead: VecDeque::new(),
            unacked: None,
            awaits: Awaits::Method,
            prefetch: self.prefetch,
        }
    }
}

impl Target for AmqpTarget {
    type Wire = AmqpWire;

    fn publisher(&self, _publisher: usize) -> anyhow::Result<(TcpStream, AmqpWire)> {
        let mut stream = self.connect()?;
        frame::ask(&mut stream, Arguments::method(85, 10).octet(0), (85, 11))?;
        Ok((stream, self.new_wire()))
    }

    fn consumer(&self, group: usize) -> anyhow::Result<(TcpStream, AmqpWire)> {
        let mut stream = self.connect()?;
        self.create_queue(&mut stream, group)?;
        frame::ask(&mut stream, qos(self.prefetch), (60, 11))?;
        let consume =
            Arguments::method(60, 20).short(0).string(&self.queue(group)).string("c").octet(0).empty_table();
        frame::ask(&mut stream, consume, (60, 21))?;
        Ok((stream, self.new_wire()))
    }
}

fn qos(prefetch: u16) -> Arguments {
    Arguments::method(60, 10).long(0).short(prefetch).octet(0)
}

impl AmqpWire {
    fn take_frame(&mut self, frame: &Frame<'_>, received: &mut Received) -> anyhow::Result<()> {
        match (frame.kind, self.awaits) {
            (Kind::Heartbeat, _) => {}
            (Kind::Method, Awaits::Method) => match frame.method().context("a method without a number")? {
                (BASIC_ACK, arguments) => {
                    let (tag, rest) = tag(arguments)?;
                    self.confirm(tag, rest.first().is_some_and(|bits| bits & IS_MULTIPLE != 0), received)?;
                }
                (BASIC_DELIVER, arguments) => {
                    let name =
                        1 + usize::from(*arguments.first().context("a delivery without its consumer")?);
                    let (tag, _) = tag(arguments.get(name..).unwrap_or_default())?;
                    self.unacked = Some(tag);
                    self.awaits = Awaits::Header;
                }
                (BASIC_QOS_OK, _) => received.is_past_barrier = true,
                ((class, method), arguments) => {
                    bail!(
                        "unexpected method {class}.{method} from the server: {}",
                        String::from_utf8_lossy(arguments)
                    );
                }
            },
            (Kind::Header, Awaits::Header) => self.awaits = Awaits::Body,
            (Kind::Body, Awaits::Body) => {
                // Bodies of this size are never split into several frames.
                let stamp = Stamp::read(frame.payload).context("received a payload without a stamp")?;
                received.deliveries.push(stamp);
                self.awaits = Awaits::Method;
            }
            (kind, awaits) => bail!("received a {kind:?} frame instead of a {awaits:?} frame"),
        }
        Ok(())
    }

    /// Records a confirm, and reports every confirmed publish whose predecessors are all confirmed.
    fn confirm(&mut self, tag: u64, is_multiple: bool, received: &mut Received) -> anyhow::Result<()> {
        let first = self.first_number.context("received a confirm before any publish")?;
        let offset = tag.checked_sub(self.confirmed + 1).context("received a confirm twice")? as usize;
        let range = if is_multiple { 0..offset + 1 } else { offset..offset + 1 };
        for at in range {
            *self.ahead.get_mut(at).context("received a confirm of an unknown publish")? = true;
        }
        while self.ahead.front() == Some(&true) {
            self.ahead.pop_front();
            received.answers.push(first + self.confirmed);
            self.confirmed += 1;
        }
        Ok(())
    }
}

fn tag(arguments: &[u8]) -> anyhow::Result<(u64, &[u8])> {
    let (tag, rest) = arguments.split_first_chunk().context("a method without its tag")?;
    Ok((u64::from_be_bytes(*tag), rest))
}

impl Wire for AmqpWire {
    fn put_publish(&mut self, message: &Message<'_>, out: &mut Vec<u8>) {
        self.first_number.get_or_insert(message.number);
        self.ahead.push_back(false);
        out.extend_from_slice(&self.publish);
        frame::put_persistent(message.payload, out);
    }

    fn take(&mut self, input: &[u8], received: &mut Received) -> anyhow::Result<usize> {
        let mut taken = 0;
        while let Some((frame, bytes)) = Frame::read(&input[taken..])? {
            self.take_frame(&frame, received)?;
            taken += bytes;
        }
        Ok(taken)
    }

    fn put_acks(&mut self, out: &mut Vec<u8>) {
        // If the body of a delivery is still missing, the ack is sent after the next read: its tag covers the earlier deliveries.
        if self.awaits == Awaits::Method
            && let Some(tag) = self.unacked.take()
        {
            Arguments::method(60, 80).long_long(tag).octet(IS_MULTIPLE).put(1, out);
        }
    }

    fn put_barrier(&mut self, out: &mut Vec<u8>) {
        // The server handles the methods of a channel in order, and answers this one.
        qos(self.prefetch).put(1, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::recorded::{cut_everywhere, payload};

    fn wire() -> AmqpWire {
        let address = ([127, 0, 0, 1], 1).into();
        AmqpTarget { address, exchange: "bench".into(), queue_type: QueueType::Quorum, prefetch: 1_000 }
            .new_wire()
    }

    fn method(class: u16, method: u16, arguments: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Arguments::method(class, method).bytes(arguments).put(1, &mut out);
        out
    }

    fn ack(tag: u64, is_multiple: bool) -> Vec<u8> {
        method(60, 80, &[&tag.to_be_bytes()[..], &[u8::from(is_multiple)]].concat())
    }

    fn delivery(tag: u64) -> Vec<u8> {
        let mut bytes = method(60, 60, &[&b"\x01c"[..], &tag.to_be_bytes(), b"\0\x05bench\0"].concat());
        frame::put_persistent(&payload(64, tag + 100), &mut bytes);
        bytes
    }

    fn published(numbers: std::ops::Range<u64>) -> AmqpWire {
        let mut wire = wire();
        for number in numbers {
            wire.put_publish(&Message { number, topic: 0, payload: b"\"\"" }, &mut Vec::new());
        }
        wire
    }

    #[test]
    fn a_publish_is_three_frames() {
        let mut out = Vec::new();
        wire().put_publish(&Message { number: 0, topic: 0, payload: b"\"abc\"" }, &mut out);
        assert_eq!(
            out,
            b"\x01\0\x01\0\0\0\x0e\0\x3c\0\x28\0\0\x05bench\0\0\xce\
              \x02\0\x01\0\0\0\x0f\0\x3c\0\0\0\0\0\0\0\0\0\x05\x10\0\x02\xce\
              \x03\0\x01\0\0\0\x05\"abc\"\xce"
        );
    }

    #[test]
    fn confirms_are_reported_in_the_order_of_publishes() {
        let bytes = [ack(2, false), ack(1, false), ack(5, false), ack(6, true)].concat();
        cut_everywhere(&bytes, |take| {
            assert_eq!(take(&mut published(40..50)).answers, [40, 41, 42, 43, 44, 45]);
        });
        let mut received = Received::default();
        published(40..50).take(&ack(2, false), &mut received).unwrap();
        assert!(received.answers.is_empty(), "the first is not confirmed yet");
    }

    #[test]
    fn one_ack_covers_all_deliveries_of_a_read() {
        let bytes = [delivery(1), delivery(2)].concat();
        cut_everywhere(&bytes, |take| {
            let (mut wire, mut out) = (wire(), Vec::new());
            let numbers: Vec<u64> = take(&mut wire).deliveries.iter().map(|stamp| stamp.number).collect();
            assert_eq!(numbers, [101, 102]);
            wire.put_acks(&mut out);
            assert_eq!(out, ack(2, true));
            out.clear();
            wire.put_acks(&mut out);
            assert!(out.is_empty(), "acked once");
        });
    }

    #[test]
    fn half_a_delivery_is_not_acked() {
        let (mut wire, mut received, mut out) = (wire(), Received::default(), Vec::new());
        let bytes = delivery(1);
        wire.take(&bytes[..bytes.len() - 1], &mut received).unwrap();
        wire.put_acks(&mut out);
        assert!(out.is_empty() && received.deliveries.is_empty());
    }

    #[test]
    fn the_barrier_is_answered() {
        let (mut wire, mut received, mut out) = (wire(), Received::default(), Vec::new());
        wire.put_barrier(&mut out);
        assert_eq!(out, b"\x01\0\x01\0\0\0\x0b\0\x3c\0\x0a\0\0\0\0\x03\xe8\0\xce");
        wire.take(&method(60, 11, &[]), &mut received).unwrap();
        assert!(received.is_past_barrier);
    }

    #[test]
    fn a_nack_or_a_close_ends_the_run() {
        for bad in
            [method(60, 120, &[0; 9]), method(10, 50, b"\x01\x40\x04gone"), b"\x01\0\x01\0\0\0\0!".to_vec()]
        {
            assert!(published(0..3).take(&bad, &mut Received::default()).is_err());
        }
    }
}
