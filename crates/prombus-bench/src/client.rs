//! The client loop: all connections of a run in one thread.

mod link;
mod timer_slack;

use crate::ledger::Ledger;
use crate::plan::{Length, Pace, Plan};
use crate::report::{Latencies, Measurement, nanoseconds};
use crate::stamp::{Payload, Stamp};
use crate::usage::Usage;
use crate::wire::{Message, Received, Target, Wire};
use anyhow::{Context, bail};
use link::{Link, Role};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use timer_slack::NoTimerSlack;

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Messages sent.
    pub sent: u64,
    /// Messages answered.
    pub answered: u64,
    /// Deliveries.
    pub delivered: u64,
}

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum size of one read: large enough for a window of messages.
const READ_BYTES: usize = 512 * 1024;
/// No further message is encoded while a connection has this many unwritten bytes: a window of large messages would take gigabytes.
const OUT_BYTES_MAX: usize = 4 << 20;

struct Run<'a, W> {
    plan: &'a Plan,
    ledger: &'a mut Ledger,
    links: Vec<Link<W>>,
    epoll: OwnedFd,
    payload: Payload,
    received: Received,
    scratch: Vec<u8>,
    began: Instant,
    /// The time since `began`, updated in each round of the loop.
    now_ns: u64,
    /// Messages of this run that were sent.
    sent: u64,
    /// Messages of this run that were answered.
    answered: u64,
    /// Deliveries in this run.
    delivered: u64,
    /// When the last answer or delivery arrived.
    last_at_ns: u64,
    /// When the last message was sent.
    last_sent_ns: u64,
    /// The deliveries after the warm-up; in a run without groups, the answers after the warm-up.
    counted: u64,
    /// Set at the end of the warm-up.
    counting: Option<Counting>,
    /// Latencies from due to answered.
    publish: Latencies,
    /// Latencies from due to delivered.
    deliver: Latencies,
    /// How many of `counted` arrived in each second.
    series: Vec<u64>,
}

/// The start of the measurement, after the warm-up, and the CPU times at that point.
struct Counting {
    since_ns: u64,
    /// CPU time of the client.
    client: Duration,
    /// CPU time of the server, if its process is known.
    server: Option<Duration>,
}

/// Runs a plan against a server: connects, publishes and consumes until every message is answered, delivered and acked, and records
/// all of that in the ledger.
///
/// Each group must receive every message in the ledger, including messages that earlier runs published. `server` is the process id
/// of the server, if it is known.
///
/// # Errors
/// If the server cannot be reached, refuses something, or closes a connection. Messages that never arrive are not an error: the
/// ledger counts them as lost.
pub fn run<T: Target>(
    target: &T,
    plan: &Plan,
    ledger: &mut Ledger,
    server: Option<u32>,
    on_progress: &mut dyn FnMut(Progress),
) -> anyhow::Result<Measurement> {
    let _no_slack = NoTimerSlack::set();
    let mut links = Vec::new();
    for group in 0..plan.groups {
        let (stream, wire) = target.consumer(group)?;
        links.push(Link::new(stream, wire, Role::Consumer { group, delivered: 0, is_past_barrier: false })?);
    }
    let slots = (plan.window * 2).next_power_of_two();
    for index in 0..plan.publishers {
        let (stream, wire) = target.publisher(index)?;
        let role = Role::Publisher { index, in_flight: 0, due_ns: vec![0; slots] };
        links.push(Link::new(stream, wire, role)?);
    }
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (at, link) in links.iter().enumerate() {
        epoll::add(&epoll, &link.stream, epoll::EventData::new_u64(at as u64), epoll::EventFlags::IN)?;
    }
    let mut run = Run {
        plan,
        ledger,
        links,
        epoll,
        payload: Payload::new(plan.payload_bytes),
        received: Received::default(),
        scratch: vec![0; READ_BYTES],
        began: Instant::now(),
        now_ns: 0,
        sent: 0,
        answered: 0,
        delivered: 0,
        last_at_ns: 0,
        last_sent_ns: 0,
        counted: 0,
        counting: None,
        publish: Latencies::new()?,
        deliver: Latencies::new()?,
        series: Vec::new(),
    };
    run.measure(server, on_progress)
}

impl<W: Wire> Run<'_, W> {
    fn measure(
        &mut self,
        server: Option<u32>,
        on_progress: &mut dyn FnMut(Progress),
    ) -> anyhow::Result<Measurement> {
        let usage = |server: Option<u32>| -> anyhow::Result<_> {
            Ok((Usage::of_self()?, server.map(Usage::of).transpose()?))
        };
        let warm_up_ns = nanoseconds(self.plan.warm_up);
        let mut reported_at = Instant::now();
        let mut events = Vec::with_capacity(1_024);
        for at in 0..self.links.len() {
            self.exchange(at, false)?;
        }
        while !self.is_done() {
            if self.counting.is_none() && self.now_ns >= warm_up_ns {
                let (client, server) = usage(server)?;
                self.counting = Some(Counting {
                    since_ns: self.now_ns,
                    client: client.cpu,
                    server: server.map(|usage| usage.cpu),
                });
            }
            if reported_at.elapsed() >= PROGRESS_INTERVAL {
                reported_at = Instant::now();
                let Self { sent, answered, delivered, .. } = *self;
                on_progress(Progress { elapsed: self.began.elapsed(), sent, answered, delivered });
            }
            self.wait(&mut events)?;
            self.now_ns = nanoseconds(self.began.elapsed());
            if events.is_empty() && self.has_timed_out() {
                break;
            }
            for &(at, is_readable) in &events {
                self.exchange(at, is_readable)?;
            }
            if matches!(self.plan.pace, Pace::Rate(_)) {
                self.send_due()?;
            }
        }
        let (client, server) = usage(server)?;
        let counting = self.counting.take().context("the run ended before its warm-up")?;
        self.pass_barrier()?;
        let seconds = self.last_at_ns.saturating_sub(counting.since_ns) as f64 / 1e9;
        let per_second = if seconds > 0.0 { self.counted as f64 / seconds } else { 0.0 };
        Ok(Measurement {
            count: self.counted,
            seconds,
            per_second,
            bytes_per_second: per_second * self.plan.payload_bytes as f64,
            publish: self.publish.percentiles(),
            deliver: self.deliver.percentiles(),
            client_cpu_seconds: (client.cpu - counting.client).as_secs_f64(),
            server_cpu_seconds: server
                .zip(counting.server)
                .map(|(now, then)| now.cpu.saturating_sub(then).as_secs_f64()),
            server_resident_bytes: server.map(|usage| usage.resident_bytes),
            series: std::mem::take(&mut self.series),
            balance: self.ledger.balance(),
        })
    }

    /// Whether every message of the plan is sent, answered and delivered.
    fn is_done(&self) -> bool {
        if !self.has_sent_all() || self.answered < self.sent {
            return false;
        }
        let wanted = self.ledger.answered();
        self.links.iter().all(|link| match link.role {
            Role::Publisher { .. } => true,
            Role::Consumer { delivered, .. } => delivered >= wanted,
        })
    }

    fn has_sent_all(&self) -> bool {
        if self.plan.publishers == 0 {
            return true;
        }
        match self.plan.length {
            Length::Messages(messages) => self.sent >= messages,
            Length::Time(time) => self.now_ns >= nanoseconds(self.plan.warm_up + time),
        }
    }

    fn has_timed_out(&self) -> bool {
        // Whether the server still owes answers or deliveries. If the window is full, the rest is sent only after an answer.
        let is_owed = self.has_sent_all() || self.answered < self.sent;
        let last_ns = self.last_at_ns.max(self.last_sent_ns);
        is_owed && self.now_ns.saturating_sub(last_ns) > nanoseconds(self.plan.patience)
    }

    /// Sleeps until a socket is ready or a message is due, at most for [`PROGRESS_INTERVAL`].
    fn wait(&mut self, events: &mut Vec<(usize, bool)>) -> anyhow::Result<()> {
        let mut timeout = PROGRESS_INTERVAL;
        // If the window is full, only an answer lets the next message be sent, so a message that is due must not end the wait.
        if let Pace::Rate(rate) = self.plan.pace
            && !self.has_sent_all()
            && self.may_send(self.plan.groups + (self.sent % self.plan.publishers as u64) as usize)
        {
            let now_ns = nanoseconds(self.began.elapsed());
            timeout = timeout.min(Duration::from_nanos(due_ns(self.sent, rate).saturating_sub(now_ns)));
        }
        events.clear();
        let timeout = Timespec::try_from(timeout).context("a timeout is short")?;
        // Unlike `epoll_wait`, `poll` on the epoll descriptor supports timeouts in nanoseconds on every kernel.
        let mut polled = [PollFd::new(&self.epoll, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            ready => ready?,
        };
        let mut ready =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 256];
        let count = epoll::wait(&self.epoll, &mut ready, Some(&Timespec::default()))?;
        events.extend(ready[..count].iter().map(|event| {
            let (data, flags) = (event.data, event.flags);
            (data.u64() as usize, flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP))
        }));
        Ok(())
    }

    /// Reads and handles the available bytes, then writes publishes and acks.
    fn exchange(&mut self, at: usize, is_readable: bool) -> anyhow::Result<()> {
        if is_readable {
            self.read(at)?;
        }
        loop {
            while self.plan.pace == Pace::Full
                && self.may_send(at)
                && self.links[at].out.len() < OUT_BYTES_MAX
            {
                self.send(at, self.now_ns);
            }
            self.flush(at)?;
            if self.plan.pace != Pace::Full || self.links[at].waits_for_room || !self.may_send(at) {
                return Ok(());
            }
        }
    }

    fn read(&mut self, at: usize) -> anyhow::Result<()> {
        if self.links[at].read(&mut self.scratch, &mut self.received)? {
            self.record_received(at);
            let link = &mut self.links[at];
            link.wire.put_acks(&mut link.out);
        }
        Ok(())
    }

    /// Records the received answers and deliveries.
    fn record_received(&mut self, at: usize) {
        let since_ns = self.counting.as_ref().map(|counting| counting.since_ns);
        let (has_groups, publishes) = (self.plan.groups > 0, self.plan.publishers > 0);
        let now_ns = self.now_ns;
        let mut count = 0;
        match &mut self.links[at].role {
            Role::Publisher { index, in_flight, due_ns } => {
                for number in self.received.answers.drain(..) {
                    self.ledger.answer(*index, number);
                    let due_ns = due_ns[number as usize & (due_ns.len() - 1)];
                    if since_ns.is_some_and(|since| due_ns >= since) {
                        self.publish.add(now_ns.saturating_sub(due_ns));
                    }
                    *in_flight = in_flight.saturating_sub(1);
                    self.answered += 1;
                    count += u64::from(!has_groups);
                }
            }
            Role::Consumer { group, delivered, is_past_barrier } => {
                *is_past_barrier |= std::mem::take(&mut self.received.is_past_barrier);
                for stamp in self.received.deliveries.drain(..) {
                    self.ledger.deliver(*group, stamp);
                    // The time in a stamp counts from the start of its run, so stamps of earlier runs give no latency.
                    if publishes && since_ns.is_some_and(|since| stamp.due_ns >= since) {
                        self.deliver.add(now_ns.saturating_sub(stamp.due_ns));
                    }
                    *delivered += 1;
                    self.delivered += 1;
                    count += 1;
                }
            }
        }
        if count > 0 {
            self.last_at_ns = now_ns;
            if let Some(since_ns) = since_ns {
                self.counted += count;
                let second = (now_ns.saturating_sub(since_ns) / 1_000_000_000) as usize;
                if second >= self.series.len() {
                    self.series.resize(second + 1, 0);
                }
                self.series[second] += count;
            }
        }
    }

    fn may_send(&self, at: usize) -> bool {
        match self.links[at].role {
            Role::Publisher { in_flight, .. } => in_flight < self.plan.window && !self.has_sent_all(),
            Role::Consumer { .. } => false,
        }
    }

    fn send(&mut self, at: usize, due: u64) {
        let link = &mut self.links[at];
        let Role::Publisher { index, in_flight, due_ns } = &mut link.role else { return };
        let number = self.ledger.send(*index);
        let mask = due_ns.len() - 1;
        due_ns[number as usize & mask] = due;
        let payload = self.payload.stamped(Stamp { publisher: *index as u16, number, due_ns: due });
        let topic = (number % self.plan.topics as u64) as usize;
        link.wire.put_publish(&Message { number, topic, payload }, &mut link.out);
        *in_flight += 1;
        self.sent += 1;
        self.last_sent_ns = self.now_ns;
    }

    /// Sends all messages that are due, alternating between publishers.
    fn send_due(&mut self) -> anyhow::Result<()> {
        let Pace::Rate(rate) = self.plan.pace else { return Ok(()) };
        let first = self.plan.groups;
        let before = self.sent;
        loop {
            let due = due_ns(self.sent, rate);
            let at = first + (self.sent % self.plan.publishers as u64) as usize;
            if due > self.now_ns || !self.may_send(at) {
                break;
            }
            self.send(at, due);
        }
        let touched = (self.sent - before).min(self.plan.publishers as u64);
        for turn in before..before + touched {
            self.flush(first + (turn % self.plan.publishers as u64) as usize)?;
        }
        Ok(())
    }

    fn flush(&mut self, at: usize) -> anyhow::Result<()> {
        self.links[at].flush(&self.epoll, at)
    }

    /// Waits until the server has processed all acks, so that they do not disturb the next run.
    fn pass_barrier(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + self.plan.patience;
        for at in 0..self.plan.groups {
            let link = &mut self.links[at];
            link.wire.put_barrier(&mut link.out);
            self.flush(at)?;
        }
        let mut events = Vec::new();
        while self.links.iter().any(|link| matches!(link.role, Role::Consumer { is_past_barrier: false, .. }))
        {
            if Instant::now() > until {
                bail!("the acks were not answered within {:?}", self.plan.patience);
            }
            self.wait(&mut events)?;
            for &(at, is_readable) in &events {
                if is_readable {
                    self.read(at)?;
                }
                self.flush(at)?;
            }
        }
        Ok(())
    }
}

/// When message number `sent` of a run at this rate is due.
fn due_ns(sent: u64, rate: f64) -> u64 {
    (sent as f64 * 1e9 / rate) as u64
}

#[cfg(test)]
mod tests;
