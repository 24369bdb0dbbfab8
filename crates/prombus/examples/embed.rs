//! The bus inside a program: no server, no network. Orders are billed by a durable group; one order fails once and is
//! retried, one can never be billed and becomes a dead letter.
//!
//! ```text
//! cargo run -p prombus --example embed                          # data in a temporary folder
//! DATA=./prombus-data cargo run -p prombus --example embed      # run it twice: settled events are not delivered again
//! ```

#![allow(clippy::print_stdout, reason = "the output is what the example shows")]

use prombus::{Bus, DeadLetter, RawValue};
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    customer: String,
    total: i64,
}

// The name of a topic and the type of its payloads, checked at compile time.
prombus::topic! { ORDERS: Order = "orders.new"; }

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let temporary = std::env::temp_dir().join(format!("prombus-embed-{}", std::process::id()));
    let folder = std::env::var_os("DATA").map_or_else(|| temporary.clone(), Into::into);
    let bus = Bus::open(&folder).await?;

    // Subscribed before the orders are published, so that no dead letter is missed.
    let mut dead_letters = bus.subscribe("dlq.orders.new", "report").await?;
    let mut orders = bus.subscribe(ORDERS, "billing").from_earliest().max_attempts(3).await?;

    for (customer, total) in [("ada", 12), ("flaky", 7), ("eve", -1)] {
        let published = bus.publish(ORDERS, &Order { customer: customer.into(), total }).await?;
        println!("published seq {}: {customer}", published.seq); // on disk now
    }

    let mut unsettled = 3;
    while unsettled > 0 {
        let delivery = orders.next().await.ok_or("the bus was closed")??;
        let order: Order = delivery.json()?;
        if order.total < 0 {
            // Retrying cannot help.
            delivery.give_up("the total is negative").await?;
        } else if order.customer == "flaky" && delivery.attempt() == 1 {
            println!("attempt 1 for flaky failed, retrying");
            delivery.nack_after(Duration::from_millis(100), "no answer from the bank").await?;
            continue;
        } else {
            println!("billed {} on attempt {}", order.customer, delivery.attempt());
            delivery.ack().await?; // on disk too: no member of the group gets the event again
        }
        unsettled -= 1;
    }

    let delivery = dead_letters.next().await.ok_or("the bus was closed")??;
    let letter: DeadLetter<Box<RawValue>> = delivery.json()?;
    println!("dead letter: {}", letter.err);
    delivery.ack().await?;

    bus.close().await?;
    if folder == temporary {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}
