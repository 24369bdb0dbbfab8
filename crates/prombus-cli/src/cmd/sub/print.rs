//! `prombus sub` without `--exec`: prints events, and acks each when it is written.
//!
//! A thread of its own prints, because standard output can block, for example on a terminal that is stopped with Ctrl-S. The command still
//! handles signals then, and extends leases.

use super::leave::leave;
use super::stderr_writer::StderrWriter;
use crate::args::SubArgs;
use crate::cmd::event_printer::EventPrinter;
use crate::cmd::serve::stop_signals::{Signals, Stop};
use crate::output;
use prombus_client::{ClientError, Delivery, Settled, Subscription};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How many deliveries wait for the thread.
const QUEUED_MAX: usize = 16;
/// How long the end of the command waits for events that are being printed.
const PRINT_TIME: Duration = Duration::from_secs(1);

/// A delivery that was printed, or why it was not.
type Printed = anyhow::Result<Delivery>;

/// Prints events until `--limit` is reached or a signal arrives. Returns the signal.
pub async fn run(
    args: &SubArgs,
    stderr: StderrWriter,
    mut subscription: Subscription,
    signals: &mut Signals,
) -> anyhow::Result<Option<Stop>> {
    let (to_print, mut printed) = start_printer(EventPrinter::new(args.format));
    let mut acks: JoinSet<Result<Settled, ClientError>> = JoinSet::new();
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut has_unanswered = false;
    let mut closed = pin!(output::closed());
    let ended = loop {
        if left == 0 {
            break Ok(None);
        }
        tokio::select! {
            biased;
            stop = signals.next() => break Ok(Some(stop)),
            Some(acked) = acks.join_next() => has_unanswered |= report(&stderr, acked),
            // An event that could not be written is not acked: it goes to another member.
            Some(printed) = printed.recv() => match printed {
                Ok(delivery) => drop(acks.spawn(delivery.ack())),
                Err(error) => break Err(error),
            },
            next = next(&mut subscription, &to_print) => match next {
                Some(Ok(())) => left -= 1,
                Some(Err(error)) => return Err(error.into()),
                None => break Ok(None),
            },
            () = &mut closed => break Err(output::nobody_reads()),
        }
    };
    subscription.pause();
    drop(to_print);
    let ended = match ended {
        Ok(stop) => finish(stop, printed, &mut acks, signals).await,
        failed => failed,
    };
    while let Some(acked) = tokio::select! {
        acked = acks.join_next() => acked,
        // A second signal does not wait for the answers.
        _ = signals.next() => None,
    } {
        has_unanswered |= report(&stderr, acked);
    }
    let (stop, failure) = match ended {
        Ok(stop) => (stop, None),
        Err(error) => (None, Some(error)),
    };
    let left = leave(subscription, &stderr, signals, stop, has_unanswered && failure.is_none()).await;
    failure.map_or(left, Err)
}

/// Passes the next delivery to the printer. Takes no delivery while the printer has enough of them.
async fn next(
    subscription: &mut Subscription,
    to_print: &Sender<Delivery>,
) -> Option<Result<(), ClientError>> {
    // The printer ends after an error, which the caller receives.
    let Ok(place) = to_print.reserve().await else { return std::future::pending().await };
    Some(subscription.next().await?.map(|delivery| place.send(delivery)))
}

/// Acks the events that the printer still prints. After a signal, the printer has little time, and none after a second signal.
async fn finish(
    stop: Option<Stop>,
    mut printed: Receiver<Printed>,
    acks: &mut JoinSet<Result<Settled, ClientError>>,
    signals: &mut Signals,
) -> anyhow::Result<Option<Stop>> {
    let mut stop = stop;
    let mut deadline = Instant::now() + PRINT_TIME;
    loop {
        let next = tokio::select! {
            biased;
            signal = signals.next() => {
                deadline = Instant::now() + PRINT_TIME;
                match stop.replace(signal) {
                    Some(_) => return Ok(stop),
                    None => continue,
                }
            }
            next = printed.recv() => next,
            () = sleep_until(deadline), if stop.is_some() => return Ok(stop),
        };
        match next {
            Some(Ok(delivery)) => drop(acks.spawn(delivery.ack())),
            Some(Err(error)) => return Err(error),
            None => return Ok(stop),
        }
    }
}

/// Starts the thread. It ends after an error, or when the sender is dropped.
fn start_printer(mut printer: EventPrinter) -> (Sender<Delivery>, Receiver<Printed>) {
    let (to_print, mut deliveries) = mpsc::channel::<Delivery>(QUEUED_MAX);
    let (results, printed) = mpsc::channel(QUEUED_MAX);
    std::thread::spawn(move || {
        while let Some(delivery) = deliveries.blocking_recv() {
            let result = print(&mut printer, &delivery).map(|()| delivery);
            let is_over = result.is_err();
            if results.blocking_send(result).is_err() || is_over {
                return;
            }
        }
    });
    (to_print, printed)
}

fn print(printer: &mut EventPrinter, delivery: &Delivery) -> anyhow::Result<()> {
    let json = serde_json::to_vec(&delivery.event)?;
    printer.print(&delivery.event, &json, delivery.context.attempt)?;
    Ok(printer.flush()?)
}

/// Reports an ack that failed. Returns whether it had no answer because the connection was lost.
fn report(
    stderr: &StderrWriter,
    acked: Result<Result<Settled, ClientError>, tokio::task::JoinError>,
) -> bool {
    let is_unanswered = matches!(acked, Ok(Err(ClientError::Lost { .. })));
    match acked {
        Ok(Ok(Settled { stale: false })) => {}
        Ok(Ok(Settled { stale: true })) => {
            stderr.print_error("an event was printed after its lease had ended; it is printed again");
        }
        Ok(Err(error)) => stderr.print_error(&format!("cannot ack an event: {error}")),
        Err(error) => stderr.print_error(&format!("cannot ack an event: {error}")),
    }
    is_unanswered
}
