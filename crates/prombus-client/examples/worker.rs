//! A worker with retries and dead letters. It publishes a few orders and handles them until Ctrl-C.
//!
//! Start a server with `prombus serve`, then run `cargo run -p prombus-client --example worker -- [URL]`. The variable
//! `PROMBUS_TOKEN` holds the token, if the server needs one.

use prombus_client::{Client, EventRecord, HandlerContext, HandlerError, topic};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Order {
    customer: String,
    total: u32,
}

topic! {
    /// Orders that were placed.
    ORDERS: Order = "orders.new";
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "ws://127.0.0.1:8090".to_owned());
    let token = std::env::var("PROMBUS_TOKEN").ok();
    let client = Client::connect(&url, token.as_deref()).await?;

    let worker = client.subscribe(ORDERS, "billing").from_earliest().name("worker-example").concurrency(4);
    let mut worker = worker.handler(bill).await?;
    for total in [12, 0, 700] {
        let order = Order { customer: "customer-7".to_owned(), total };
        let published = client.publish(ORDERS, &order).key(&order.customer).await?;
        say(&format!("published seq {}", published.seq));
    }

    tokio::select! {
        signal = tokio::signal::ctrl_c() => signal?,
        // Ends only if the server permanently refuses the subscription; a lost connection is replaced.
        ended = worker.ended() => ended?,
    }
    // Running handlers finish and their results are sent.
    worker.stop().await?;
    Ok(())
}

/// Handles an order: Ok acks it.
async fn bill(event: EventRecord, context: HandlerContext) -> Result<(), HandlerError> {
    // A retry cannot repair a broken payload, so it becomes a dead letter at once.
    let order: Order = event.json().map_err(HandlerError::reject)?;
    match order.total {
        0 => return Err(HandlerError::reject("nothing to bill")),
        500.. if context.attempt == 1 => {
            return Err(HandlerError::retry_after(Duration::from_secs(2), "the limit is being checked"));
        }
        _ => {}
    }
    tokio::select! {
        // The lease is extended while this runs.
        () = tokio::time::sleep(Duration::from_millis(100)) => {}
        // Another member may have the event: stop.
        () = context.lease_lost() => return Err(HandlerError::retry("the lease was lost")),
    }
    say(&format!("billed {} to {} (attempt {})", order.total, order.customer, context.attempt));
    Ok(())
}

fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}
