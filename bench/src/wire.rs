//! The peers' protocols. Each is a [`prombus_bench::wire::Wire`] that is as fast as the one for prombus.

mod amqp;
mod nats;
#[cfg(test)]
mod recorded;
mod redis;

pub use amqp::{AmqpTarget, AmqpWire, QueueType};
pub use nats::{Delivery, NatsTarget, NatsWire};
pub use redis::{RedisTarget, RedisWire};
