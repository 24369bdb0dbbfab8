//! NATS JetStream, implemented for speed. The reply subject of a publish contains the message's number, and answers are checked for
//! errors. Consumers are durable and ack each message.

mod head;

use anyhow::{Context, bail};
use head::{Head, number};
use memchr::memmem;
use prombus_bench::stamp::Stamp;
use prombus_bench::wire::{Message, Received, Target, Wire};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How messages are delivered to a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Delivery {
    /// The server sends messages until too many are unacked.
    Push,
    /// The client requests messages, and requests more when half of them have arrived.
    Pull,
}

/// A NATS server with JetStream.
#[derive(Clone, Debug)]
pub struct NatsTarget {
    /// Its address.
    pub address: SocketAddr,
    /// The name of the stream. Its only subject is the same name in lower case.
    pub stream: String,
    /// Maximum number of unacked deliveries per consumer.
    pub max_ack_pending: usize,
    /// How messages are delivered to a consumer.
    pub delivery: Delivery,
}

/// One connection to NATS.
#[derive(Debug)]
pub struct NatsWire {
    /// The `PUB` of a message, up to the number in the reply subject.
    publish: Vec<u8>,
    /// The `PUB` of a request for more messages, up to the length of its body.
    more: Vec<u8>,
    /// The `PUB` of a request for the consumer's state.
    info: Vec<u8>,
    delivery: Delivery,
    batch: usize,
    /// Messages that were requested and have not arrived.
    asked: usize,
    out: Vec<u8>,
    is_leaving: bool,
}

/// The subject of answers to publishes, followed by the message's number.
const ANSWERS: &[u8] = b"a.";
/// The subject of answers to requests for the consumer's state.
const STATE: &[u8] = b"i";
/// How long the server keeps a request for messages.
const EXPIRES_NS: u64 = 60_000_000_000;

impl NatsTarget {
    /// Creates the stream: stored in files, one replica, no message is ever dropped.
    ///
    /// # Errors
    /// If the server cannot be reached, has no JetStream, or refuses.
    pub fn create_stream(&self) -> anyhow::Result<()> {
        let (mut stream, _) = self.connect("create", 0)?;
        let (name, subject) = (&self.stream, self.subject());
        let config = format!(
            r#"{{"name":"{name}","subjects":["{subject}"],"storage":"file","num_replicas":1,"retention":"limits"}}"#
        );
        ask(&mut stream, &format!("$JS.API.STREAM.CREATE.{name}"), &config)
    }

    /// The settings of the stream and of its consumers, on one line.
    #[must_use]
    pub fn settings(&self) -> String {
        let delivery = match self.delivery {
            Delivery::Push => "push consumers",
            Delivery::Pull => "pull consumers that request more at half",
        };
        format!(
            "stream storage=file num_replicas=1; durable {delivery}, ack_policy=explicit max_ack_pending={}",
            self.max_ack_pending
        )
    }

    fn subject(&self) -> String {
        self.stream.to_lowercase()
    }

    fn connect(&self, inbox: &str, group: usize) -> anyhow::Result<(TcpStream, NatsWire)> {
        let mut stream = TcpStream::connect(self.address)
            .with_context(|| format!("cannot connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let info = read_line(&mut stream)?;
        if !info.starts_with("INFO ") {
            bail!("no NATS at {}: {info}", self.address);
        }
        write!(
            stream,
            "CONNECT {{\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}}\r\n\
             PING\r\n"
        )?;
        loop {
            match read_line(&mut stream)?.as_str() {
                "PONG" => break,
                "+OK" => {}
                error => bail!("unexpected answer from the server: {error}"),
            }
        }
        Ok((stream, self.new_wire(inbox, group)))
    }

    fn new_wire(&self, inbox: &str, group: usize) -> NatsWire {
        let (name, subject) = (&self.stream, self.subject());
        NatsWire {
            publish: format!("PUB {subject} {inbox}.a.").into_bytes(),
            more: format!("PUB $JS.API.CONSUMER.MSG.NEXT.{name}.g{group} {inbox}.m ").into_bytes(),
            info: format!("PUB $JS.API.CONSUMER.INFO.{name}.g{group} {inbox}.i 0\r\n\r\n").into_bytes(),
            delivery: self.delivery,
            batch: self.max_ack_pending,
            asked: 0,
            out: Vec::new(),
            is_leaving: false,
        }
    }
}

impl Target for NatsTarget {
    type Wire = NatsWire;

    fn publisher(&self, publisher: usize) -> anyhow::Result<(TcpStream, NatsWire)> {
        let inbox = format!("p{publisher}");
        let (mut stream, wire) = self.connect(&inbox, 0)?;
        write!(stream, "SUB {inbox}.a.* 1\r\n")?;
        Ok((stream, wire))
    }

    fn consumer(&self, group: usize) -> anyhow::Result<(TcpStream, NatsWire)> {
        let inbox = format!("c{group}");
        let (mut stream, mut wire) = self.connect(&inbox, group)?;
        let (name, pending) = (&self.stream, self.max_ack_pending);
        let deliver_to = match self.delivery {
            // The server pushes nothing before the client has subscribed to this subject.
            Delivery::Push => format!(r#","deliver_subject":"{inbox}.m""#),
            Delivery::Pull => String::new(),
        };
        let config = format!(
            r#"{{"stream_name":"{name}","config":{{"durable_name":"g{group}","deliver_policy":"all","ack_policy":"explicit","max_ack_pending":{pending}{deliver_to}}}}}"#
        );
        ask(&mut stream, &format!("$JS.API.CONSUMER.DURABLE.CREATE.{name}.g{group}"), &config)?;
        // The server starts to push only for a subscription to exactly this subject, not for one with a wildcard.
        write!(stream, "SUB {inbox}.m 1\r\nSUB {inbox}.i 3\r\n")?;
        wire.ask_for_more();
        stream.write_all(&wire.out)?;
        wire.out.clear();
        Ok((stream, wire))
    }
}

impl NatsWire {
    /// Requests more messages when at most half of a batch is still to arrive.
    fn ask_for_more(&mut self) {
        if self.delivery == Delivery::Push || self.is_leaving || self.asked > self.batch / 2 {
            return;
        }
        let count = self.batch - self.asked;
        let question = format!(r#"{{"batch":{count},"expires":{EXPIRES_NS}}}"#);
        self.out.extend_from_slice(&self.more);
        prombus_bench::wire::put_number(&mut self.out, question.len() as u64);
        self.out.extend_from_slice(b"\r\n");
        self.out.extend_from_slice(question.as_bytes());
        self.out.extend_from_slice(b"\r\n");
        self.asked = self.batch;
    }

    /// Handles a message: an answer to a publish, a delivery, or the state of the consumer.
    fn take_message(&mut self, head: &Head<'_>, body: &[u8], received: &mut Received) -> anyhow::Result<()> {
        let name_at = memchr::memchr(b'.', head.subject).map_or(0, |dot| dot + 1);
        let name = &head.subject[name_at..];
        if head.header_bytes > 0 && body.starts_with(b"NATS/1.0 ") {
            bail!("error from the server: {}", String::from_utf8_lossy(body));
        }
        if let Some(digits) = name.strip_prefix(ANSWERS) {
            if !body.starts_with(br#"{"stream":"#) || memmem::find(body, br#""error""#).is_some() {
                bail!("the server refused a publish: {}", String::from_utf8_lossy(body));
            }
            received.answers.push(number(digits)?);
        } else if name == STATE {
            // Acks are not answered. When none is pending, the server has processed all of them.
            if memmem::find(body, br#""num_ack_pending":0,"#).is_some() {
                received.is_past_barrier = true;
            } else {
                self.out.extend_from_slice(&self.info);
            }
        } else {
            let reply = head.reply.context("received a message without a reply subject")?;
            let payload = &body[head.header_bytes..];
            received.deliveries.push(Stamp::read(payload).context("received a payload without a stamp")?);
            self.out.extend_from_slice(b"PUB ");
            self.out.extend_from_slice(reply);
            self.out.extend_from_slice(b" 4\r\n+ACK\r\n");
            self.asked = self.asked.saturating_sub(1);
        }
        Ok(())
    }
}

impl Wire for NatsWire {
    fn put_publish(&mut self, message: &Message<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.publish);
        prombus_bench::wire::put_number(out, message.number);
        out.push(b' ');
        prombus_bench::wire::put_number(out, message.payload.len() as u64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(message.payload);
        out.extend_from_slice(b"\r\n");
    }

    fn take(&mut self, input: &[u8], received: &mut Received) -> anyhow::Result<usize> {
        let mut taken = 0;
        while let Some(end) = memchr::memchr(b'\n', &input[taken..]) {
            let line = input[taken..taken + end].trim_ascii_end();
            let body_at = taken + end + 1;
            if let Some(head) = Head::read(line)? {
                let Some(body) = input.get(body_at..body_at + head.bytes) else { break };
                if input.len() < body_at + head.bytes + 2 {
                    break;
                }
                self.take_message(&head, body, received)?;
                taken = body_at + head.bytes + 2;
            } else {
                match line {
                    b"PING" => self.out.extend_from_slice(b"PONG\r\n"),
                    b"PONG" | b"+OK" => {}
                    line if line.starts_with(b"INFO ") => {}
                    line => bail!("unexpected line from the server: {}", String::from_utf8_lossy(line)),
                }
                taken = body_at;
            }
        }
        Ok(taken)
    }

    fn put_acks(&mut self, out: &mut Vec<u8>) {
        if self.asked < self.batch {
            self.ask_for_more();
        }
        out.append(&mut self.out);
    }

    fn put_barrier(&mut self, out: &mut Vec<u8>) {
        self.is_leaving = true;
        out.extend_from_slice(&self.info);
    }
}

/// Sends a request to the server's API, and waits for its answer. No other messages may arrive on this connection in the meantime.
fn ask(stream: &mut TcpStream, subject: &str, question: &str) -> anyhow::Result<()> {
    let (port, bytes) = (stream.local_addr()?.port(), question.len());
    write!(stream, "SUB ask.{port} 2\r\nPUB {subject} ask.{port} {bytes}\r\n{question}\r\n")?;
    let line = read_line(stream)?;
    let head =
        Head::read(line.as_bytes())?.with_context(|| format!("unexpected line from the server: {line}"))?;
    let mut body = vec![0; head.bytes + 2];
    stream.read_exact(&mut body)?;
    let body = String::from_utf8_lossy(&body);
    if head.header_bytes > 0 || body.contains(r#""error""#) {
        bail!("the server refused {subject} {question}: {}", body.trim_end());
    }
    write!(stream, "UNSUB 2\r\n")?;
    Ok(())
}

/// Reads one line, and not a byte more.
fn read_line(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).context("the server closed the connection")?;
        line.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::recorded::{cut_everywhere, payload};

    fn wire(delivery: Delivery) -> NatsWire {
        let address = ([127, 0, 0, 1], 1).into();
        NatsTarget { address, stream: "B".into(), max_ack_pending: 4, delivery }.new_wire("c0", 0)
    }

    fn message(number: u64) -> Vec<u8> {
        let mut bytes =
            format!("MSG c0.m 1 $JS.ACK.B.g0.1.{number}.{number}.1794807555123456789.0 64\r\n").into_bytes();
        bytes.extend_from_slice(&payload(64, number));
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    #[test]
    fn a_publish_has_its_number_in_the_reply_subject() {
        let (mut wire, mut out) = (wire(Delivery::Push), Vec::new());
        wire.put_publish(&Message { number: 12, topic: 0, payload: b"\"abc\"" }, &mut out);
        assert_eq!(out, b"PUB b c0.a.12 5\r\n\"abc\"\r\n");
    }

    #[test]
    fn answers_are_read_however_the_input_is_split() {
        let bytes = b"PING\r\nMSG c0.a.12 1 26\r\n{\"stream\":\"B\", \"seq\":9213}\r\nMSG c0.a.13 1 26\r\n{\"stream\":\"B\", \"seq\":9214}\r\n";
        cut_everywhere(bytes, |take| {
            let (mut wire, mut out) = (wire(Delivery::Push), Vec::new());
            assert_eq!(take(&mut wire).answers, [12, 13]);
            wire.put_acks(&mut out);
            assert_eq!(out, b"PONG\r\n");
        });
    }

    #[test]
    fn a_refused_publish_ends_the_run() {
        let body = r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"B","seq":0}"#;
        let bytes = format!("MSG c0.a.12 1 {}\r\n{body}\r\n", body.len());
        assert!(wire(Delivery::Push).take(bytes.as_bytes(), &mut Received::default()).is_err());
        let no_responder = b"HMSG c0.a.12 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n";
        assert!(wire(Delivery::Push).take(no_responder, &mut Received::default()).is_err());
        assert!(wire(Delivery::Push).take(b"-ERR 'Slow Consumer'\r\n", &mut Received::default()).is_err());
    }

    #[test]
    fn each_delivery_is_acked() {
        let bytes = [message(7), message(8)].concat();
        cut_everywhere(&bytes, |take| {
            let (mut wire, mut out) = (wire(Delivery::Push), Vec::new());
            let numbers: Vec<u64> = take(&mut wire).deliveries.iter().map(|stamp| stamp.number).collect();
            assert_eq!(numbers, [7, 8]);
            wire.put_acks(&mut out);
            let text = String::from_utf8(out).unwrap();
            assert_eq!(
                text,
                "PUB $JS.ACK.B.g0.1.7.7.1794807555123456789.0 4\r\n+ACK\r\n\
                 PUB $JS.ACK.B.g0.1.8.8.1794807555123456789.0 4\r\n+ACK\r\n"
            );
        });
    }

    #[test]
    fn a_pull_consumer_requests_more_at_half() {
        let (mut wire, mut received) = (wire(Delivery::Pull), Received::default());
        wire.ask_for_more();
        let question =
            "PUB $JS.API.CONSUMER.MSG.NEXT.B.g0 c0.m 33\r\n{\"batch\":4,\"expires\":60000000000}\r\n";
        assert_eq!(String::from_utf8_lossy(&wire.out), question);
        let mut out = Vec::new();
        wire.put_acks(&mut out);
        out.clear();
        wire.take(&message(1), &mut received).unwrap();
        wire.put_acks(&mut out);
        assert!(!String::from_utf8_lossy(&out).contains("MSG.NEXT"));
        wire.take(&message(2), &mut received).unwrap();
        wire.put_acks(&mut out);
        assert!(String::from_utf8_lossy(&out).ends_with("{\"batch\":2,\"expires\":60000000000}\r\n"));
    }

    #[test]
    fn the_barrier_is_passed_when_no_ack_is_pending() {
        let (mut wire, mut received, mut out) = (wire(Delivery::Push), Received::default(), Vec::new());
        wire.put_barrier(&mut out);
        assert_eq!(out, b"PUB $JS.API.CONSUMER.INFO.B.g0 c0.i 0\r\n\r\n");
        let state = |pending: u32| {
            let body = format!(r#"{{"stream_name":"B","num_ack_pending":{pending},"num_redelivered":0}}"#);
            format!("MSG c0.i 1 {}\r\n{body}\r\n", body.len()).into_bytes()
        };
        out.clear();
        wire.take(&state(3), &mut received).unwrap();
        assert!(!received.is_past_barrier);
        wire.put_acks(&mut out);
        assert!(out.starts_with(b"PUB $JS.API.CONSUMER.INFO."));
        wire.take(&state(0), &mut received).unwrap();
        assert!(received.is_past_barrier);
    }
}
