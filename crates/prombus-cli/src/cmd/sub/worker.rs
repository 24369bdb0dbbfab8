//! `prombus sub --exec`: runs a command for each event, several at the same time, and settles the events by the results.

use super::command::{Command, Finished, Verdict, lacks_resources};
use super::leave::leave;
use super::stderr_writer::StderrWriter;
use crate::args::SubArgs;
use crate::cmd::serve::stop_signals::{Signals, Stop};
use crate::messages::counted;
use crate::output;
use anyhow::Context;
use prombus_client::{ClientError, Delivery, Settled, Subscription};
use rustix::process::{Resource, getrlimit};
use std::pin::pin;
use std::sync::Arc;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The state of a worker.
struct Worker {
    subscription: Subscription,
    command: Arc<Command>,
    running: JoinSet<anyhow::Result<Outcome>>,
    /// An event whose command could not be started because the system had no resources for another process. It is started when a running
    /// command has ended.
    waiting: Option<Delivery>,
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
    let descriptor_limit = getrlimit(Resource::Nofile);
    // Each running command needs several file descriptors. If the limit stays too low, fewer commands run at the same time.
    let _ = prombus_server::raise_descriptor_limit();
    let mut worker = Worker {
        subscription,
        command: Arc::new(Command {
            text: command.to_owned(),
            timeout: args.timeout,
            stderr: stderr.clone(),
            descriptor_limit,
        }),
        running: JoinSet::new(),
        waiting: None,
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
        let mut closed = pin!(output::closed());
        while self.is_taking || !self.running.is_empty() {
            let has_room = self.is_taking && self.waiting.is_none() && self.running.len() < concurrency;
            tokio::select! {
                biased;
                signal = signals.next() => self.signalled(signal),
                Some(done) = self.running.join_next() => {
                    match done.context("a task failed").flatten() {
                        Ok(outcome) => self.has_unanswered |= outcome == Outcome::Unanswered,
                        Err(error) => self.fail(error),
                    }
                    if let Some(delivery) = self.waiting.take() {
                        self.start(delivery);
                    }
                }
                next = self.subscription.next(), if has_room => match next {
                    // The delivery is dropped, and returns to the group.
                    Some(Ok(_)) if output::is_closed() => self.fail(output::nobody_reads()),
                    Some(Ok(delivery)) => self.start(delivery),
                    Some(Err(error)) => {
                        self.failure.get_or_insert(error.into());
                        self.is_refused = true;
                        self.is_taking = false;
                    }
                    None => self.is_taking = false,
                },
                () = &mut closed, if self.is_taking => self.fail(output::nobody_reads()),
            }
        }
    }

    /// Starts the command of an event, or keeps the event until a running command has ended.
    fn start(&mut self, delivery: Delivery) {
        let spawned = self.command.spawn(&delivery.event, delivery.context.attempt);
        if spawned.as_ref().is_err_and(lacks_resources) && !self.running.is_empty() {
            self.waiting = Some(delivery);
            return;
        }
        let command = Arc::clone(&self.command);
        self.running.spawn(handle(command, delivery, spawned, self.kill.subscribe()));
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.stop_taking();
            }
        }
    }

    fn fail(&mut self, error: anyhow::Error) {
        self.failure.get_or_insert(error);
        self.stop_taking();
    }

    fn signalled(&mut self, signal: Stop) {
        if self.stop.is_some() {
            self.kill.send_replace(true);
            return;
        }
        self.stop = Some(signal);
        self.stop_taking();
        if !self.running.is_empty() {
            let count = self.running.len() as u64;
            let (commands, them) =
                (counted(count, "running command"), if count == 1 { "it" } else { "them" });
            self.command
                .stderr
                .print_error(&format!("{signal}: waiting for {commands}; a second signal kills {them}"));
        }
    }

    /// Takes no more events. One that waits returns to the group.
    fn stop_taking(&mut self) {
        self.is_taking = false;
        self.waiting = None;
        self.subscription.pause();
    }
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The server has answered the result, or there is none.
    Done,
    /// The connection was lost before the server answered.
    Unanswered,
}

/// Waits for the command of an event and settles the event.
async fn handle(
    command: Arc<Command>,
    delivery: Delivery,
    spawned: std::io::Result<Child>,
    mut kill: watch::Receiver<bool>,
) -> anyhow::Result<Outcome> {
    let stderr = &command.stderr;
    // If the command cannot be started, or was killed, the event is released without a result.
    let Finished::Verdict(verdict) = command.run(spawned, &delivery.event, &mut kill).await? else {
        return Ok(Outcome::Done);
    };
    // A command that wrote to a closed pipe was killed by SIGPIPE or has failed. That says nothing about the event.
    if verdict != Verdict::Ack && output::is_closed() {
        return Err(output::nobody_reads());
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
