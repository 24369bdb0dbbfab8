//! `prombus sub` without `--exec`: prints events, and acks each when it is written.

use super::leave::leave;
use crate::args::SubArgs;
use crate::cmd::event_printer::EventPrinter;
use crate::cmd::serve::stop_signals::{Signals, Stop};
use crate::messages::print_error;
use prombus_client::{ClientError, Delivery, Settled, Subscription};
use tokio::task::JoinSet;

/// Prints events until `--limit` is reached or a signal arrives. Returns the signal.
pub async fn run(
    args: &SubArgs,
    mut subscription: Subscription,
    signals: &mut Signals,
) -> anyhow::Result<Option<Stop>> {
    let mut printer = EventPrinter::new(args.format);
    let mut acks: JoinSet<Result<Settled, ClientError>> = JoinSet::new();
    let mut printed = 0;
    let ended = loop {
        if args.limit == Some(printed) {
            break Ok(None);
        }
        tokio::select! {
            biased;
            stop = signals.next() => break Ok(Some(stop)),
            Some(acked) = acks.join_next() => report(acked),
            next = subscription.next() => {
                let delivery = match next {
                    Some(Ok(delivery)) => delivery,
                    Some(Err(error)) => return Err(error.into()),
                    None => break Ok(None),
                };
                // An event that could not be written is not acked: it goes to another member.
                if let Err(error) = print(&mut printer, &delivery) {
                    break Err(error);
                }
                printed += 1;
                acks.spawn(delivery.ack());
            }
        }
    };
    subscription.pause();
    while let Some(acked) = tokio::select! {
        acked = acks.join_next() => acked,
        // A second signal does not wait for the answers.
        _ = signals.next() => None,
    } {
        report(acked);
    }
    leave(subscription, signals).await;
    ended
}

fn print(printer: &mut EventPrinter, delivery: &Delivery) -> anyhow::Result<()> {
    let json = serde_json::to_vec(&delivery.event)?;
    printer.print(&delivery.event, &json, delivery.context.attempt)?;
    Ok(printer.flush()?)
}

fn report(acked: Result<Result<Settled, ClientError>, tokio::task::JoinError>) {
    match acked {
        Ok(Ok(Settled { stale: false })) => {}
        Ok(Ok(Settled { stale: true })) => {
            print_error("an event was printed after its lease had ended; it is printed again");
        }
        Ok(Err(error)) => print_error(&format!("cannot ack an event: {error}")),
        Err(error) => print_error(&format!("cannot ack an event: {error}")),
    }
}
