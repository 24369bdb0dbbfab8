//! The peers' words, each a [`prombus_bench::wire::Wire`] as lean as the one of prombus.

mod amqp;
mod nats;
#[cfg(test)]
mod recorded;
mod redis;

pub use amqp::{AmqpTarget, AmqpWire, QueueType};
pub use nats::{Delivery, NatsTarget, NatsWire};
pub use redis::{RedisTarget, RedisWire};

/// Puts a number in digits.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
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
