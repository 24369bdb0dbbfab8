//! Runs the same loads as [`crate::client`], but on the library in this process. The difference to a run over the network is the
//! cost of the server and its protocol.

use crate::client::Progress;
use crate::ledger::Ledger;
use crate::plan::{Length, MAX_IN_FLIGHT, Pace, Plan};
use crate::report::{Latencies, Measurement, nanoseconds};
use crate::stamp::{Payload, Stamp};
use crate::usage::Usage;
use anyhow::{Context, bail};
use prombus::{Bus, PublishBatch, PublishOptions, Publishing, Subscription, Topic};
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The counters of a run. All tasks add to them, a batch at a time.
struct Totals {
    ledger: Ledger,
    /// Latencies from due to answered.
    publish: Latencies,
    /// Latencies from due to delivered.
    deliver: Latencies,
    /// Messages that were answered.
    answered: u64,
    /// Deliveries of each group.
    delivered: Vec<u64>,
    /// The deliveries after the warm-up; in a run without groups, the answers after the warm-up.
    counted: u64,
    /// When the last answer or delivery arrived.
    last_at_ns: u64,
    /// How many of `counted` arrived in each second.
    series: Vec<u64>,
}

struct Shared {
    plan: Plan,
    began: Instant,
    topics: Vec<Topic>,
    totals: Mutex<Totals>,
    /// Whether publishers choose the ids of events.
    has_client_ids: bool,
}

/// Runs a plan on a bus. Publishers and groups are tasks of the current runtime; topic names begin with `topic`.
///
/// # Errors
/// If the bus refuses a subscription or a publish.
pub async fn run(
    bus: &Bus,
    topic: &str,
    plan: &Plan,
    ledger: Ledger,
    has_client_ids: bool,
    on_progress: &mut dyn FnMut(Progress),
) -> anyhow::Result<(Measurement, Ledger)> {
    let mut subscriptions = Vec::new();
    for group in 0..plan.groups {
        subscriptions.push(subscribe(bus, topic, plan, group).await?);
    }
    let names =
        (0..plan.topics).map(|at| if plan.topics == 1 { topic.into() } else { format!("{topic}.{at}") });
    let totals = Totals {
        ledger,
        publish: Latencies::new()?,
        deliver: Latencies::new()?,
        answered: 0,
        delivered: vec![0; plan.groups],
        counted: 0,
        last_at_ns: 0,
        series: Vec::new(),
    };
    let shared = Arc::new(Shared {
        plan: plan.clone(),
        began: Instant::now(),
        topics: names.map(Topic::new).collect::<Result<_, _>>()?,
        totals: Mutex::new(totals),
        has_client_ids,
    });
    let groups: Vec<_> = subscriptions
        .into_iter()
        .enumerate()
        .map(|(group, subscription)| tokio::spawn(consume(Arc::clone(&shared), group, subscription)))
        .collect();
    let publishers: Vec<_> = (0..plan.publishers)
        .map(|publisher| {
            let (shared, bus) = (Arc::clone(&shared), bus.clone());
            match plan.pace {
                Pace::Full => tokio::spawn(publish(shared, bus, publisher)),
                Pace::Rate(rate) => {
                    tokio::task::spawn_blocking(move || publish_at(rate, &shared, &bus, publisher))
                }
            }
        })
        .collect();
    let (cpu, since_ns) = wait(&shared, publishers, &groups, on_progress).await?;
    for group in groups {
        group.abort();
    }
    let mut totals = shared.totals.lock().expect("no task panics while it holds this lock");
    let measurement = totals.measurement(plan, since_ns, cpu);
    Ok((measurement, std::mem::replace(&mut totals.ledger, Ledger::new(0, 1, 0))))
}

impl Totals {
    /// The result of the run since the end of the warm-up.
    fn measurement(&mut self, plan: &Plan, since_ns: u64, cpu: Duration) -> Measurement {
        let seconds = self.last_at_ns.saturating_sub(since_ns) as f64 / 1e9;
        let per_second = if seconds > 0.0 { self.counted as f64 / seconds } else { 0.0 };
        Measurement {
            count: self.counted,
            seconds,
            per_second,
            bytes_per_second: per_second * plan.payload_bytes as f64,
            publish: self.publish.percentiles(),
            deliver: self.deliver.percentiles(),
            client_cpu_seconds: cpu.as_secs_f64(),
            server_cpu_seconds: None,
            server_resident_bytes: None,
            series: std::mem::take(&mut self.series),
            balance: self.ledger.balance(),
        }
    }
}

/// Waits until every message is answered and delivered, or nothing has arrived for `plan.patience`. Returns the CPU time since the
/// warm-up, and the end of the warm-up in nanoseconds.
async fn wait(
    shared: &Shared,
    publishers: Vec<JoinHandle<anyhow::Result<()>>>,
    groups: &[JoinHandle<anyhow::Result<()>>],
    on_progress: &mut dyn FnMut(Progress),
) -> anyhow::Result<(Duration, u64)> {
    let warm_up_ns = nanoseconds(shared.plan.warm_up);
    let mut cpu_before = (warm_up_ns == 0).then(|| Usage::of_self().map(|usage| usage.cpu)).transpose()?;
    let mut reported_at = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now_ns = nanoseconds(shared.began.elapsed());
        if cpu_before.is_none() && now_ns >= warm_up_ns {
            cpu_before = Some(Usage::of_self()?.cpu);
        }
        // Checked before the totals: messages that are answered in between must be delivered too.
        let has_published = publishers.iter().all(JoinHandle::is_finished);
        let (is_done, is_stuck) = {
            let totals = shared.totals.lock().expect("no task panics while it holds this lock");
            if reported_at.elapsed() >= Duration::from_millis(100) {
                reported_at = Instant::now();
                on_progress(Progress {
                    elapsed: shared.began.elapsed(),
                    sent: totals.ledger.sent(),
                    answered: totals.answered,
                    delivered: totals.delivered.iter().sum(),
                });
            }
            let wanted = totals.ledger.answered();
            let is_silent = now_ns.saturating_sub(totals.last_at_ns) > nanoseconds(shared.plan.patience);
            (totals.delivered.iter().all(|&delivered| delivered >= wanted), is_silent)
        };
        if has_published && (is_done || is_stuck) {
            break;
        }
        if groups.iter().any(JoinHandle::is_finished) {
            bail!("a group ended before everything was delivered");
        }
    }
    for publisher in publishers {
        publisher.await??;
    }
    let before = cpu_before.context("the run ended before its warm-up")?;
    Ok((Usage::of_self()?.cpu.saturating_sub(before), warm_up_ns))
}

async fn subscribe(bus: &Bus, topic: &str, plan: &Plan, group: usize) -> anyhow::Result<Subscription> {
    let pattern = if plan.topics == 1 { topic.to_owned() } else { format!("{topic}.*") };
    let in_flight = u32::try_from(plan.window)?.clamp(1_000, MAX_IN_FLIGHT as u32);
    let subscribe = bus.subscribe(pattern, format!("bench-{group}")).from_earliest();
    Ok(subscribe.batch_size(1_000).max_in_flight(in_flight).await?)
}

/// A sent message: its number, and when it was due, in nanoseconds since the start of the run.
type Sent = (u64, u64);

/// The limits of one publisher: an end time and a number of messages. If the messages do not divide evenly, the first publishers
/// send one more.
fn length(plan: &Plan, publisher: usize) -> (u64, u64) {
    match plan.length {
        Length::Time(time) => (nanoseconds(plan.warm_up + time), u64::MAX),
        Length::Messages(messages) => {
            let publishers = plan.publishers as u64;
            (u64::MAX, messages / publishers + u64::from((publisher as u64) < messages % publishers))
        }
    }
}

/// Runs a publisher that keeps up to `plan.window` messages unanswered. Like a session of a server, it publishes in batches.
async fn publish(shared: Arc<Shared>, bus: Bus, publisher: usize) -> anyhow::Result<()> {
    let plan = &shared.plan;
    let mut payload = Payload::new(plan.payload_bytes);
    let piece = (plan.window / 8).clamp(1, 128);
    let (until_ns, mut left) = length(plan, publisher);
    let mut in_flight: VecDeque<(Publishing, Vec<Sent>)> = VecDeque::new();
    let mut count = 0;
    loop {
        let now_ns = nanoseconds(shared.began.elapsed());
        let may_send = now_ns < until_ns && left > 0;
        if !may_send && in_flight.is_empty() {
            return Ok(());
        }
        if may_send && count + piece <= plan.window.max(piece) {
            let events = piece.min(usize::try_from(left).unwrap_or(piece));
            let due = std::iter::repeat_n(now_ns, events);
            let (batch, sent) = make_batch(&shared, &bus, publisher, due, &mut payload)?;
            left -= events as u64;
            count += events;
            in_flight.push_back((bus.publish_batch(batch), sent));
            continue;
        }
        let Some((publishing, sent)) = in_flight.pop_front() else { continue };
        publishing.await?;
        count -= sent.len();
        shared.answered(publisher, &sent);
    }
}

/// Runs a publisher with a fixed rate. It has its own thread, because the runtime's timers have a resolution of only a
/// millisecond.
fn publish_at(rate: f64, shared: &Arc<Shared>, bus: &Bus, publisher: usize) -> anyhow::Result<()> {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let runtime = tokio::runtime::Handle::current();
    let mut payload = Payload::new(shared.plan.payload_bytes);
    let (until_ns, left) = length(&shared.plan, publisher);
    let publishers = shared.plan.publishers as u64;
    let due_ns = |number: u64| ((number * publishers + publisher as u64) as f64 * 1e9 / rate) as u64;
    let mut next = 0;
    let (waiting, mut answers) = tokio::sync::mpsc::unbounded_channel::<(Publishing, Vec<Sent>)>();
    let recorder = Arc::clone(shared);
    let answering = runtime.spawn(async move {
        while let Some((publishing, sent)) = answers.recv().await {
            publishing.await?;
            recorder.answered(publisher, &sent);
        }
        anyhow::Ok(())
    });
    while next < left && due_ns(next) < until_ns {
        let now_ns = nanoseconds(shared.began.elapsed());
        if due_ns(next) > now_ns {
            std::thread::sleep(Duration::from_nanos(due_ns(next) - now_ns));
            continue;
        }
        let first = next;
        while due_ns(next) <= now_ns && next < left && next - first < shared.plan.window as u64 {
            next += 1;
        }
        let due = (first..next).map(due_ns);
        let (batch, sent) = make_batch(shared, bus, publisher, due, &mut payload)?;
        if waiting.send((bus.publish_batch(batch), sent)).is_err() {
            break;
        }
    }
    drop(waiting);
    runtime.block_on(answering)?
}

fn make_batch(
    shared: &Shared,
    bus: &Bus,
    publisher: usize,
    due: impl Iterator<Item = u64>,
    payload: &mut Payload,
) -> anyhow::Result<(PublishBatch, Vec<Sent>)> {
    let sent: Vec<Sent> = {
        let mut totals = shared.totals.lock().expect("no task panics while it holds this lock");
        due.map(|due_ns| (totals.ledger.send(publisher), due_ns)).collect()
    };
    let mut batch = bus.batch();
    let mut options = PublishOptions::default();
    for &(number, due_ns) in &sent {
        options.id = shared.has_client_ids.then(uuid::Uuid::now_v7);
        let stamp = Stamp { publisher: publisher as u16, number, due_ns };
        let topic = &shared.topics[(number % shared.topics.len() as u64) as usize];
        batch.push_json(topic.clone(), payload.stamped(stamp), &options)?;
    }
    Ok((batch, sent))
}

async fn consume(shared: Arc<Shared>, group: usize, mut subscription: Subscription) -> anyhow::Result<()> {
    let mut stamps = Vec::new();
    loop {
        let deliveries = subscription.next_batch().await?;
        stamps.clear();
        for event in deliveries.events() {
            let payload = event.payload();
            stamps.push(Stamp::read(payload.as_bytes()).context("received a payload without a stamp")?);
        }
        drop(deliveries.ack());
        shared.delivered(group, &stamps);
    }
}

impl Shared {
    fn answered(&self, publisher: usize, sent: &[Sent]) {
        let now_ns = nanoseconds(self.began.elapsed());
        let warm_up_ns = nanoseconds(self.plan.warm_up);
        let mut totals = self.totals.lock().expect("no task panics while it holds this lock");
        for &(number, due_ns) in sent {
            totals.ledger.answer(publisher, number);
            if due_ns >= warm_up_ns {
                totals.publish.add(now_ns.saturating_sub(due_ns));
            }
        }
        totals.answered += sent.len() as u64;
        if self.plan.groups == 0 {
            totals.count(now_ns, warm_up_ns, sent.len() as u64);
        }
    }

    fn delivered(&self, group: usize, stamps: &[Stamp]) {
        let now_ns = nanoseconds(self.began.elapsed());
        let warm_up_ns = nanoseconds(self.plan.warm_up);
        let mut totals = self.totals.lock().expect("no task panics while it holds this lock");
        for &stamp in stamps {
            totals.ledger.deliver(group, stamp);
            if self.plan.publishers > 0 && stamp.due_ns >= warm_up_ns {
                totals.deliver.add(now_ns.saturating_sub(stamp.due_ns));
            }
        }
        totals.delivered[group] += stamps.len() as u64;
        totals.count(now_ns, warm_up_ns, stamps.len() as u64);
    }
}

impl Totals {
    fn count(&mut self, now_ns: u64, warm_up_ns: u64, count: u64) {
        self.last_at_ns = now_ns;
        if now_ns < warm_up_ns {
            return;
        }
        self.counted += count;
        let second = ((now_ns - warm_up_ns) / 1_000_000_000) as usize;
        if second >= self.series.len() {
            self.series.resize(second + 1, 0);
        }
        self.series[second] += count;
    }
}
