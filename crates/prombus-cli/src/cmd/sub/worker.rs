//! `prombus sub --exec`: runs a command for each event, several at the same time, and settles the events by the results.

use super::command::{Command, Finished, Verdict};
use super::leave::leave;
use super::stderr_writer::StderrWriter;
use crate::args::SubArgs;
use crate::cmd::serve::stop_signals::{Signals, Stop};
use anyhow::Context;
use prombus_client::{ClientError, Delivery, Settled, Subscription};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The state of a worker.
struct Worker {
    subscription: Subscription,
    command: Arc<Command>,
    running: JoinSet<anyhow::Result<Outcome>>,
    /// Set to true to kill the running commands.
    kill: watch::Sender<bool>,
    /// How many more events are taken; `None` is unlimited.
    left: Option<u64>,
    is_taking: bool,
    /// The first signal.
    stop: Option<Stop>,
    /// Why the worker ends, if it is not a signal or the limit.
    failure: Option<anyhow::Error>,
    /// Whether the server has ended the subscription.
    is_refused: bool,
    /// Whether a result had no answer because the connection was lost. It is sent again if its event is redelivered.
    has_unanswered: bool,
}

/// Runs commands until `--limit` is reached or a signal arrives. Returns the signal.
pub async fn run(
    args: &SubArgs,
    command: &str,
    stderr: StderrWriter,
    subscription: Subscription,
    signals: &mut Signals,
) -> anyhow::Result<Option<Stop>> {
    let mut worker = Worker {
        subscription,
        command: Arc::new(Command {
            text: command.to_owned(),
            timeout: args.timeout,
            stderr: stderr.clone(),
        }),
        running: JoinSet::new(),
        kill: watch::Sender::new(false),
        left: args.limit,
        is_taking: true,
        stop: None,
        failure: None,
        is_refused: false,
        has_unanswered: false,
    };
    worker.run(args.concurrency as usize, signals).await;
    stderr.flush().await;
    let Worker { subscription, stop, failure, is_refused, has_unanswered, .. } = worker;
    let left = match is_refused {
        true => Ok(stop),
        false => leave(subscription, &stderr, signals, stop, has_unanswered && failure.is_none()).await,
    };
    failure.map_or(left, Err)
}

impl Worker {
    async fn run(&mut self, concurrency: usize, signals: &mut Signals) {
        while self.is_taking || !self.running.is_empty() {
            let has_room = self.is_taking && self.running.len() < concurrency;
            tokio::select! {
                biased;
                signal = signals.next() => self.signalled(signal),
                Some(done) = self.running.join_next() => {
                    match done.context("a task failed").flatten() {
                        Ok(outcome) => self.has_unanswered |= outcome == Outcome::Unanswered,
                        Err(error) => {
                            self.failure.get_or_insert(error);
                            self.stop_taking();
                        }
                    }
                }
                next = self.subscription.next(), if has_room => match next {
                    // The delivery is dropped, and returns to the group.
                    Some(Ok(_)) if stdout_is_closed() => {
                        self.failure.get_or_insert(nobody_reads());
                        self.stop_taking();
                    }
                    Some(Ok(delivery)) => self.start(delivery),
                    Some(Err(error)) => {
                        self.failure.get_or_insert(error.into());
                        self.is_refused = true;
                        self.is_taking = false;
                    }
                    None => self.is_taking = false,
                },
            }
        }
    }

    fn start(&mut self, delivery: Delivery) {
        let command = Arc::clone(&self.command);
        self.running.spawn(handle(command, delivery, self.kill.subscribe()));
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.stop_taking();
            }
        }
    }

    fn signalled(&mut self, signal: Stop) {
        if self.stop.is_some() {
            self.kill.send_replace(true);
            return;
        }
        self.stop = Some(signal);
        self.stop_taking();
        if !self.running.is_empty() {
            let count = self.running.len();
            self.command.stderr.print_error(&format!(
                "{signal}: waiting for {count} running commands; a second signal kills them"
            ));
        }
    }

    fn stop_taking(&mut self) {
        self.is_taking = false;
        self.subscription.pause();
    }
}

/// Whether standard output is a pipe or socket whose reader is gone. Commands write to it, so they could not succeed.
fn stdout_is_closed() -> bool {
    let stdout = std::io::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    // An error, or a system without poll for this kind of file, is not a closed pipe.
    poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Ends prombus like a broken pipe of its own output.
fn nobody_reads() -> anyhow::Error {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The server has answered the result, or there is none.
    Done,
    /// The connection was lost before the server answered.
    Unanswered,
}

/// Runs the command for an event and settles the event.
async fn handle(
    command: Arc<Command>,
    delivery: Delivery,
    mut kill: watch::Receiver<bool>,
) -> anyhow::Result<Outcome> {
    let attempt = delivery.context.attempt;
    let stderr = &command.stderr;
    // If the command cannot be started, or was killed, the event is released without a result.
    let Finished::Verdict(verdict) = command.run(&delivery.event, attempt, &mut kill).await? else {
        return Ok(Outcome::Done);
    };
    // A command that wrote to a closed pipe was killed by SIGPIPE or has failed. That says nothing about the event.
    if verdict != Verdict::Ack && stdout_is_closed() {
        return Err(nobody_reads());
    }
    let event = format!("event {} of {}", delivery.event.seq, delivery.event.topic);
    let settled = tokio::select! {
        settled = settle(delivery, verdict, &event, stderr) => settled,
        // The worker does not wait for a server that does not respond.
        _ = kill.wait_for(|is_killed| *is_killed) => return Ok(Outcome::Unanswered),
    };
    match settled {
        Ok(Settled { stale: false }) => {}
        Ok(Settled { stale: true }) => {
            stderr.print_error(&format!(
                "{event}: the lease ended before the command; the result has no effect"
            ));
        }
        Err(error @ ClientError::Lost { .. }) => {
            stderr.print_error(&format!("{event}: {error}"));
            return Ok(Outcome::Unanswered);
        }
        Err(error) => stderr.print_error(&format!("{event}: the result was refused: {error}")),
    }
    Ok(Outcome::Done)
}

/// Sends the result, and reports a failure.
async fn settle(
    delivery: Delivery,
    verdict: Verdict,
    event: &str,
    stderr: &StderrWriter,
) -> Result<Settled, ClientError> {
    let last_line = |reason: &str| reason.lines().last().unwrap_or_default().to_owned();
    let (attempt, max_attempts) = (delivery.context.attempt, delivery.context.max_attempts);
    match verdict {
        Verdict::Ack => delivery.ack().await,
        Verdict::Nack { reason } => {
            let why = last_line(&reason);
            stderr.print_error(&format!("{event} failed, attempt {attempt} of {max_attempts}: {why}"));
            delivery.nack(&reason).await
        }
        Verdict::GiveUp { reason } => {
            stderr.print_error(&format!("{event} is given up: {}", last_line(&reason)));
            delivery.give_up(&reason).await
        }
    }
}
