//! Durable publishing, alternating with the log alone.

use crate::ids::IdKind;
use crate::load::{BusPublisher, payload};
use crate::publisher::{Load, Publisher, body, make_topics};
use crate::recorder::Latencies;
use crate::scratch::Scratch;
use crate::{Failure, Plan, Round, Stopwatch};
use prombus::Bus;
use prombus_log::{Log, Options};
use std::time::{Duration, Instant};

/// Written before the measurement, so that the log's tail is full and its buffers have grown to their size.
const WARM_UP_EVENTS: u64 = 400_000;

pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn warm_up(plan: &Plan) -> u64 {
    if plan.round < Duration::from_millis(100) { 1_000 } else { WARM_UP_EVENTS }
}

fn log_alone(plan: &Plan, scratch: &Scratch, in_flight: usize) -> Result<f64, Failure> {
    let folder = scratch.fresh();
    let log = Log::open(folder.path(), Options::default())?;
    let topics = make_topics(&log, 1).map_err(|failure| failure.to_string())?;
    let body = body();
    let mut publisher = Publisher::new(&log, &topics, &body, IdKind::Server);
    let load = |in_flight| Load::new(in_flight);
    let events = warm_up(plan);
    publisher.run(load(1_024), |_, count| count >= events).map_err(|failure| failure.to_string())?;
    let started = Instant::now();
    let until = started + plan.round;
    let count =
        publisher.run(load(in_flight), |now, _| now >= until).map_err(|failure| failure.to_string())?;
    let seconds = started.elapsed().as_secs_f64();
    drop(publisher);
    log.close()?;
    Ok(count as f64 / seconds)
}

pub fn measure(plan: &Plan, scratch: &Scratch, in_flight: usize) -> Result<Round, Failure> {
    let log = log_alone(plan, scratch, in_flight)?;
    scratch.settle()?;
    let folder = scratch.fresh();
    let round = runtime()?.block_on(async {
        let bus = Bus::open(folder.path()).await?;
        let events = warm_up(plan);
        BusPublisher::new(&bus, "orders", 1_024)?.run(|_, count| count >= events).await?;
        let mut publisher = BusPublisher::new(&bus, "orders", in_flight)?;
        let watch = Stopwatch::start();
        let until = Instant::now() + plan.round;
        let count = publisher.run(|now, _| now >= until).await?;
        let round = watch.stop(count, publisher.latencies.percentiles());
        bus.close().await?;
        Ok::<Round, Failure>(round)
    })?;
    Ok(Round { log_events_per_second: Some(log), ..round })
}

/// Many tasks, each of which repeatedly publishes one event and waits for it.
pub fn measure_tasks(plan: &Plan, scratch: &Scratch, tasks: usize) -> Result<Round, Failure> {
    let folder = scratch.fresh();
    runtime()?.block_on(async {
        let bus = Bus::open(folder.path()).await?;
        let events = warm_up(plan);
        BusPublisher::new(&bus, "orders", 1_024)?.run(|_, count| count >= events).await?;
        let payload = payload();
        let watch = Stopwatch::start();
        let until = Instant::now() + plan.round;
        let tasks = (0..tasks).map(|_| {
            let (bus, payload) = (bus.clone(), payload.clone());
            tokio::spawn(async move {
                let mut count = 0;
                while Instant::now() < until {
                    bus.publish_json("orders", payload.clone()).await?;
                    count += 1;
                }
                Ok::<u64, prombus::PublishError>(count)
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut count = 0;
        for task in tasks {
            count += task.await??;
        }
        let round = watch.stop(count, Latencies::new().percentiles());
        bus.close().await?;
        Ok(round)
    })
}
