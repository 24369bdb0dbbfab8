//! Subscriptions: as a stream of deliveries, or as a handler that is called for each event.
//!
//! Each subscription has its own connection and task (`member.rs`). The task keeps the connection alive (`link.rs`), decides what to do
//! with incoming events and results (`lease_table.rs`), queues events for the consumer (`queue.rs`), and executes the consumer's
//! commands (`command.rs`).

mod builder;
mod command;
mod connection_change;
mod delivery;
mod failure_log;
mod handler;
mod handler_error;
mod lease;
mod lease_table;
mod link;
mod member;
mod queue;
mod settlement;
mod subscription;

pub use builder::Subscribe;
pub use connection_change::ConnectionChange;
pub use delivery::Delivery;
pub use handler::{HandlerContext, HandlerHandle};
pub use handler_error::HandlerError;
pub use settlement::Settled;
pub use subscription::Subscription;
