//! The task of one member of a group: it owns the connection and the leases, and executes commands.
//!
//! It ends when the server permanently refuses the subscription, after `Leave`, or when every handle is dropped. Dropping the
//! connection sends a close frame, so unsettled deliveries return to the group without counting an attempt.

use super::command::{Command, Reply};
use super::connection_change::{ConnectionCallback, ConnectionChange};
use super::lease_table::{Arrival, Extendable, LeaseTable, Settling};
use super::link::{Link, LinkEvent};
use super::queue::{Arrived, QueueSender};
use super::settlement::{Settled, Settlement};
use crate::error::{ClientError, PublishError};
use prombus_protocol::limits::{MAX_ACK_TIMEOUT_MS, MIN_EXTEND_MS};
use prombus_protocol::{ClientFrame, ErrorCode, EventFrame, OkFrame, Uuid};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// The task's state.
pub(super) struct Member {
    link: Link,
    leases: LeaseTable,
    ack_timeout: Duration,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Deliveries for the consumer.
    queue: QueueSender,
    /// Requests of the current connection that wait for a response. Responses and deliveries are processed in the order in which the
    /// server sent them.
    pending: HashMap<u64, Request>,
    /// No more deliveries are wanted, so a lost connection is not replaced.
    is_draining: bool,
    /// Set by `Leave`.
    leaving: Option<Leaving>,
    on_connection_change: ConnectionCallback,
}

/// The state after `Leave`.
struct Leaving {
    reply: Reply<()>,
    /// The response to UNSUBSCRIBE; `None` while it has not arrived.
    outcome: Option<Result<(), ClientError>>,
}

/// A request that waits for its response.
enum Request {
    Settle {
        serial: u64,
        reply: Option<Reply<Settled>>,
    },
    Extend {
        lease: Extendable,
        by: Duration,
        sent_at: Instant,
        /// Set if the consumer requested the extension.
        reply: Option<Reply<bool>>,
    },
    Leave,
}

impl Member {
    pub(super) fn new(
        link: Link,
        extend_for: Option<Duration>,
        commands: mpsc::UnboundedReceiver<Command>,
        queue: QueueSender,
        on_connection_change: ConnectionCallback,
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
            pending: HashMap::new(),
            is_draining: false,
            leaving: None,
            on_connection_change,
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
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.extend_due();
                    ControlFlow::Continue(())
                }
            };
            let discarded = self.leases.take_discarded();
            if discarded > 0 {
                self.queue.discarded(discarded);
            }
            if flow.is_break() || self.has_left() {
                break;
            }
        }
        self.leases.end();
        if let Some(Leaving { reply, outcome: Some(outcome) }) = self.leaving.take() {
            let kept = match self.leases.kept_count() {
                0 => Ok(()),
                count => Err(self.lost(&format!(
                    "the results of {count} events were not received; the events are redelivered to other members"
                ))),
            };
            let _ = reply.send(outcome.and(kept));
        }
    }

    /// Whether the group was left and the server has responded to every result.
    fn has_left(&self) -> bool {
        self.pending.is_empty() && self.leaving.as_ref().is_some_and(|leaving| leaving.outcome.is_some())
    }

    fn command(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Settle { serial, settlement, reply } => self.settle(serial, settlement, reply),
            Command::Extend { serial, by, reply } => match self.leases.extendable(serial) {
                Some(lease) => self.extend(lease, by, Some(reply)),
                None => drop(reply.send(Ok(false))),
            },
            Command::Release { serial } => self.leases.released(serial),
            // No deliveries are wanted after Drain.
            Command::Pause(_) if self.is_draining => {}
            Command::Pause(is_paused) => self.pause(is_paused),
            Command::Drain => {
                self.drain();
                self.pause(true);
            }
            Command::Leave(reply) => {
                let spec = Arc::clone(self.link.spec());
                let (topic, group) = (spec.topic.as_str().into(), spec.group.as_str().into());
                let Some(corr) = self.link.post(&ClientFrame::Unsubscribe { topic, group }) else {
                    let _ = reply.send(Err(self.lost("not connected")));
                    return ControlFlow::Break(());
                };
                self.drain();
                self.leaving = Some(Leaving { reply, outcome: None });
                self.pending.insert(corr, Request::Leave);
            }
        }
        ControlFlow::Continue(())
    }

    fn link_event(&mut self, event: LinkEvent) -> ControlFlow<()> {
        match event {
            LinkEvent::Up => {
                self.leases.connected(Instant::now());
                self.on_connection_change.call(&ConnectionChange::Restored);
            }
            LinkEvent::Event(event) => self.arrived(event),
            LinkEvent::Answer { corr, answer } => {
                if let Some(request) = self.pending.remove(&corr) {
                    self.answered(request, answer);
                }
            }
            LinkEvent::Down(why) => {
                self.leases.disconnected(Instant::now());
                for (_, request) in std::mem::take(&mut self.pending) {
                    self.answered(request, Err(PublishError::Lost(why.clone())));
                }
                if self.is_draining {
                    self.link.close();
                } else {
                    self.on_connection_change.call(&ConnectionChange::Lost(why));
                }
            }
            LinkEvent::Refused(error) => {
                self.queue.fail(error);
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
            Arrival::New(lease) => self.queue.push(Arrived { event, context, lease }),
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
        if let Some(corr) = self.link.post(&settlement.frame(&spec.topic, &spec.group, id)) {
            self.pending.insert(corr, Request::Settle { serial, reply });
        }
    }

    /// Extends the leases that are due and ends those whose time has passed.
    fn extend_due(&mut self) {
        while let Some(lease) = self.leases.next_extension(Instant::now()) {
            self.extend(lease, self.ack_timeout, None);
        }
    }

    fn extend(&mut self, lease: Extendable, by: Duration, reply: Option<Reply<bool>>) {
        // The server also raises extensions that are below its minimum.
        let by = by.clamp(Duration::from_millis(MIN_EXTEND_MS), Duration::from_millis(MAX_ACK_TIMEOUT_MS));
        let spec = self.link.spec();
        let frame = ClientFrame::Modack {
            topic: spec.topic.as_str().into(),
            group: spec.group.as_str().into(),
            id: lease.id,
            extend_ms: Some(by.as_millis() as u64),
        };
        if let Some(corr) = self.link.post(&frame) {
            self.pending.insert(corr, Request::Extend { lease, by, sent_at: Instant::now(), reply });
        }
    }

    fn answered(&mut self, request: Request, answer: Result<OkFrame, PublishError>) {
        match request {
            Request::Settle { serial, reply } => {
                // Without a response, the result is kept until the event is redelivered.
                if !matches!(answer, Err(PublishError::Lost(_))) {
                    self.leases.answered(serial);
                }
                if let Some(reply) = reply {
                    let settled = answer.map(|ok| Settled { stale: ok.stale });
                    let _ = reply.send(settled.map_err(|error| self.error(error)));
                }
            }
            Request::Extend { lease, by, sent_at, reply } => {
                match &answer {
                    Ok(_) => self.leases.extended(lease, by, sent_at),
                    Err(error) if error.code() == Some(ErrorCode::UnknownId) => {
                        self.leases.not_extended(lease);
                    }
                    // The lease may still be extended later; otherwise it expires.
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
            Request::Leave => {
                let outcome = answer.map(drop).map_err(|error| self.error(error));
                if let Some(leaving) = &mut self.leaving {
                    leaving.outcome = Some(outcome);
                }
            }
        }
    }

    fn pause(&mut self, is_paused: bool) {
        self.link.set_paused(is_paused);
        self.leases.set_paused(is_paused, Instant::now());
    }

    /// Stops handing deliveries to the consumer.
    fn drain(&mut self) {
        self.is_draining = true;
        self.leases.drain();
    }

    fn lost(&self, why: &str) -> ClientError {
        ClientError::Lost { address: self.link.address(), why: why.to_owned() }
    }

    fn error(&self, error: PublishError) -> ClientError {
        error.into_client_error(&self.link.address())
    }
}
