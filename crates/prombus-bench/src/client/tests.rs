//! Tests of the client loop with servers that answer late or never.

use super::*;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// A protocol in which a message is its bare payload and each received byte is one answer.
struct Plain {
    answered: u64,
}

impl Wire for Plain {
    fn put_publish(&mut self, message: &Message<'_>, out: &mut Vec<u8>) {
        assert!(out.len() < OUT_BYTES_MAX, "{} bytes wait to be written", out.len());
        out.extend_from_slice(message.payload);
    }

    fn take(&mut self, input: &[u8], received: &mut Received) -> anyhow::Result<usize> {
        received.answers.extend(self.answered..self.answered + input.len() as u64);
        self.answered += input.len() as u64;
        Ok(input.len())
    }

    fn put_acks(&mut self, _out: &mut Vec<u8>) {}

    fn put_barrier(&mut self, _out: &mut Vec<u8>) {}
}

struct At(SocketAddr);

impl Target for At {
    type Wire = Plain;

    fn publisher(&self, _publisher: usize) -> anyhow::Result<(TcpStream, Plain)> {
        Ok((TcpStream::connect(self.0)?, Plain { answered: 0 }))
    }

    fn consumer(&self, _group: usize) -> anyhow::Result<(TcpStream, Plain)> {
        bail!("these plans have no groups")
    }
}

fn run_plan(listener: &TcpListener, plan: &Plan) -> Measurement {
    let mut ledger = Ledger::new(plan.publishers, plan.topics, plan.groups);
    let target = At(listener.local_addr().unwrap());
    run(&target, plan, &mut ledger, None, &mut |_| ()).unwrap()
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let plan = Plan {
        window: 2,
        length: Length::Messages(10),
        warm_up: Duration::ZERO,
        patience: Duration::from_millis(300),
        ..Plan::default()
    };
    let balance = run_plan(&listener, &plan).balance;
    assert_eq!((balance.sent, balance.answered, balance.lost), (2, 0, 2));
}

#[test]
fn large_messages_are_encoded_only_as_they_are_written() {
    const BYTES: usize = 1 << 20;
    const COUNT: usize = 40;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let plan = Plan {
        payload_bytes: BYTES,
        length: Length::Messages(COUNT as u64),
        warm_up: Duration::ZERO,
        ..Plan::default()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut message = vec![0; BYTES];
            for _ in 0..COUNT {
                stream.read_exact(&mut message).unwrap();
            }
            stream.write_all(&[0; COUNT]).unwrap();
        });
        assert!(run_plan(&listener, &plan).balance.is_clean());
    });
}
