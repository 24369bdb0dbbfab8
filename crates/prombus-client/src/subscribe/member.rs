//! The task of one member of a group: it owns the connection and the leases, and carries out commands.
//!
//! It ends when the server refuses the subscription for good, after `Leave`, or when every handle is dropped. Dropping the
//! connection sends a close frame, so leases return to the group without counting an attempt.

use super::command::{Command, Reply};
use super::lease::Lease;
use super::lease_table::{Arrival, LeaseTable, Settling};
use super::link::{Link, LinkEvent};
use super::settlement::{Settled, Settlement};
use crate::error::{ClientError, PublishError};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use prombus_protocol::limits::{MAX_ACK_TIMEOUT_MS, MIN_EXTEND_MS};
use prombus_protocol::{ClientFrame, ErrorCode, EventContext, EventFrame, EventRecord, OkFrame, Uuid};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// An event for the consumer.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) event: EventRecord,
    pub(super) context: EventContext,
    pub(super) lease: Arc<Lease>,
}

/// Events for the consumer; an error is the last item.
pub(super) type Queue = mpsc::UnboundedSender<Result<Arrived, ClientError>>;

/// The task's state.
pub(super) struct Member {
    link: Link,
    leases: LeaseTable,
    ack_timeout: Duration,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Bounded by the subscription's `max_in_flight`.
    queue: Queue,
    /// Requests whose answers are awaited.
    pending: FuturesUnordered<BoxFuture<'static, Answered>>,
    is_paused: bool,
    /// No more deliveries are wanted, so a lost connection is not replaced.
    is_draining: bool,
    leaving: Option<Leaving>,
}

struct Leaving {
    reply: Reply<()>,
    outcome: Option<Result<(), ClientError>>,
}

/// The answer to a request.
enum Answered {
    Settled { serial: u64, reply: Option<Reply<Settled>>, answer: Result<OkFrame, PublishError> },
    Extended { serial: u64, extension: Extension, answer: Result<OkFrame, PublishError> },
    Paused,
    Left(Result<OkFrame, PublishError>),
}

struct Extension {
    by: Duration,
    sent_at: Instant,
    /// Set if the consumer asked for it.
    reply: Option<Reply<bool>>,
}

impl Member {
    pub(super) fn new(
        link: Link,
        extend_for: Option<Duration>,
        commands: mpsc::UnboundedReceiver<Command>,
        queue: Queue,
    ) -> Self {
        let ack_timeout = Duration::from_millis(link.spec().options.ack_timeout_ms());
        let mut leases = LeaseTable::new(ack_timeout, extend_for);
        leases.connected(Instant::now());
        Self {
            link,
            leases,
            ack_timeout,
            commands,
            queue,
            pending: FuturesUnordered::new(),
            is_paused: false,
            is_draining: false,
            leaving: None,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let due = self.leases.next_due();
            let flow = tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => ControlFlow::Break(()),
                },
                event = self.link.next() => self.link_event(event),
                Some(answered) = self.pending.next() => {
                    self.answered(answered);
                    ControlFlow::Continue(())
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.extend_due();
                    ControlFlow::Continue(())
                }
            };
            if flow.is_break() || self.has_left() {
                break;
            }
        }
        self.leases.end();
        if let Some(Leaving { reply, outcome: Some(outcome) }) = self.leaving {
            let _ = reply.send(outcome);
        }
    }

    /// Whether the group was left and every result is answered.
    fn has_left(&self) -> bool {
        self.pending.is_empty() && self.leaving.as_ref().is_some_and(|leaving| leaving.outcome.is_some())
    }

    fn command(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Settle { serial, settlement, reply } => self.settle(serial, settlement, reply),
            Command::Extend { serial, by, reply } => match self.leases.extendable(serial) {
                Some(id) => self.extend(serial, id, by, Some(reply)),
                None => drop(reply.send(Ok(false))),
            },
            Command::Release { serial } => self.leases.released(serial),
            Command::Pause(is_paused) => {
                self.is_paused = is_paused;
                self.send_pause();
            }
            Command::Drain => {
                (self.is_paused, self.is_draining) = (true, true);
                self.send_pause();
            }
            Command::Leave(reply) => {
                let spec = Arc::clone(self.link.spec());
                let (topic, group) = (spec.topic.as_str().into(), spec.group.as_str().into());
                let Some(answer) = self.link.request(ClientFrame::Unsubscribe { topic, group }) else {
                    let _ = reply.send(Err(self.lost("not connected")));
                    return ControlFlow::Break(());
                };
                self.is_draining = true;
                self.leaving = Some(Leaving { reply, outcome: None });
                self.pending.push(Box::pin(async move { Answered::Left(answer.await) }));
            }
        }
        ControlFlow::Continue(())
    }

    fn link_event(&mut self, event: LinkEvent) -> ControlFlow<()> {
        match event {
            LinkEvent::Up => {
                self.leases.connected(Instant::now());
                if self.is_paused {
                    self.send_pause();
                }
            }
            LinkEvent::Event(event) => self.arrived(event),
            LinkEvent::Down => {
                self.leases.disconnected(Instant::now());
                if self.is_draining {
                    self.link.close();
                }
            }
            LinkEvent::Refused(error) => {
                let _ = self.queue.send(Err(error));
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn arrived(&mut self, EventFrame { event, ctx: context, .. }: EventFrame) {
        let lease_for = Duration::from_millis(context.ack_deadline_ms);
        let id = event.id;
        let key = (event.topic.clone(), id);
        match self.leases.arrived(key, lease_for, context.reason, Instant::now()) {
            // The consumer may be gone; then the connection ends soon and the lease returns to the group.
            Arrival::New(lease) => drop(self.queue.send(Ok(Arrived { event, context, lease }))),
            Arrival::Resend { serial, settlement } => self.send_result(serial, id, &settlement, None),
            Arrival::Adopted | Arrival::Ignored => {}
        }
    }

    fn settle(&mut self, serial: u64, settlement: Settlement, reply: Option<Reply<Settled>>) {
        let outcome = match self.leases.settle(serial, settlement.clone(), Instant::now()) {
            Settling::Send(id) => return self.send_result(serial, id, &settlement, reply),
            Settling::Kept => Err(self.lost("the result is sent when the event is redelivered")),
            Settling::Unknown => Ok(Settled { stale: true }),
        };
        if let Some(reply) = reply {
            let _ = reply.send(outcome);
        }
    }

    fn send_result(&mut self, serial: u64, id: Uuid, settlement: &Settlement, reply: Option<Reply<Settled>>) {
        let spec = self.link.spec();
        // Without a connection the reply is dropped: the table keeps the result.
        if let Some(answer) = self.link.request(settlement.frame(&spec.topic, &spec.group, id)) {
            self.pending
                .push(Box::pin(async move { Answered::Settled { serial, reply, answer: answer.await } }));
        }
    }

    /// Extends the leases that are due and ends those whose time has passed.
    fn extend_due(&mut self) {
        while let Some(serial) = self.leases.next_extension(Instant::now()) {
            if let Some(id) = self.leases.extendable(serial) {
                self.extend(serial, id, self.ack_timeout, None);
            }
        }
    }

    fn extend(&mut self, serial: u64, id: Uuid, by: Duration, reply: Option<Reply<bool>>) {
        // The server raises shorter extensions to its minimum.
        let by = by.clamp(Duration::from_millis(MIN_EXTEND_MS), Duration::from_millis(MAX_ACK_TIMEOUT_MS));
        let spec = self.link.spec();
        let frame = ClientFrame::Modack {
            topic: spec.topic.as_str().into(),
            group: spec.group.as_str().into(),
            id,
            extend_ms: Some(by.as_millis() as u64),
        };
        if let Some(answer) = self.link.request(frame) {
            let extension = Extension { by, sent_at: Instant::now(), reply };
            self.pending.push(Box::pin(async move {
                Answered::Extended { serial, extension, answer: answer.await }
            }));
        }
    }

    fn answered(&mut self, answered: Answered) {
        match answered {
            Answered::Settled { serial, reply, answer } => {
                // Without an answer the result is kept until the event is redelivered.
                if !matches!(answer, Err(PublishError::Lost(_))) {
                    self.leases.answered(serial);
                }
                if let Some(reply) = reply {
                    let settled = answer.map(|ok| Settled { stale: ok.stale });
                    let _ = reply.send(settled.map_err(|error| self.error(error)));
                }
            }
            Answered::Extended { serial, extension: Extension { by, sent_at, reply }, answer } => {
                match &answer {
                    Ok(_) => self.leases.extended(serial, by, sent_at),
                    Err(error) if error.code() == Some(ErrorCode::UnknownId) => self.leases.lost(serial),
                    // The lease may still be extended, or its time passes.
                    Err(_) => {}
                }
                if let Some(reply) = reply {
                    let _ = reply.send(match answer {
                        Ok(_) => Ok(true),
                        Err(error) if error.code() == Some(ErrorCode::UnknownId) => Ok(false),
                        Err(error) => Err(self.error(error)),
                    });
                }
            }
            Answered::Left(answer) => {
                let outcome = answer.map(drop).map_err(|error| self.error(error));
                if let Some(leaving) = &mut self.leaving {
                    leaving.outcome = Some(outcome);
                }
            }
            Answered::Paused => {}
        }
    }

    fn send_pause(&mut self) {
        let spec = self.link.spec();
        let (topic, group) = (spec.topic.as_str().into(), spec.group.as_str().into());
        let frame = match self.is_paused {
            true => ClientFrame::Pause { topic, group },
            false => ClientFrame::Resume { topic, group },
        };
        if let Some(answer) = self.link.request(frame) {
            self.pending.push(Box::pin(async move {
                let _ = answer.await;
                Answered::Paused
            }));
        }
    }

    fn lost(&self, why: &str) -> ClientError {
        ClientError::Lost { address: self.link.address(), why: why.to_owned() }
    }

    fn error(&self, error: PublishError) -> ClientError {
        error.into_client_error(&self.link.address())
    }
}
