//! The simulated database as a store that several processes share. Each process has its own [`SimulatedStore`]. A test can make
//! its reads and writes of the lease record, and the opening of its engine, fail.

use super::SimulatedEngine;
use super::database::Database;
use super::faults::NetworkOptions;
use crate::box_future::BoxFuture;
use crate::clock::Clock;
use crate::engine::{Engine, LeaseError, LeaseRecord, LeaseStore, SharedStore, Takeover};
use crate::error::OpenError;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A fault of a read or write of the lease record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseFault {
    /// The request is lost, and the caller gets an error.
    RequestLost,
    /// The request is applied, but the caller gets an error.
    AnswerLost,
    /// The request is lost, and the caller never gets a response.
    Hangs,
}

/// A process's connection to a [`Database`] that it shares with other processes.
pub struct SimulatedStore {
    database: Database,
    network: NetworkOptions,
    faults: Mutex<Faults>,
}

#[derive(Default)]
struct Faults {
    /// The faults of the next writes of the lease record, one entry per write; `None` for no fault.
    writes: VecDeque<Option<LeaseFault>>,
    /// The fault of all reads and writes of the lease record that have no other fault; `None` for no fault.
    all: Option<LeaseFault>,
    /// How many of the next attempts to open an engine will fail.
    failing_leads: u32,
    /// How long it takes to open an engine.
    lead_takes: Duration,
    /// The engines that were opened, the newest last.
    engines: Vec<Weak<SimulatedEngine>>,
}

impl Faults {
    fn takes_lead_failure(&mut self) -> bool {
        let fails = self.failing_leads > 0;
        self.failing_leads -= u32::from(fails);
        fails
    }
}

impl SimulatedStore {
    /// A connection to a database, at first without faults.
    pub fn new(database: &Database, network: NetworkOptions) -> Self {
        Self { database: database.clone(), network, faults: Mutex::default() }
    }

    /// Queues the fault of one more write of the lease record, after those already queued. `None` gives that write no fault of
    /// its own.
    pub fn fault_of_next_write(&self, fault: Option<LeaseFault>) {
        self.faults.lock().writes.push_back(fault);
    }

    /// Sets the fault of all later reads and writes of the lease record that have no queued fault; `None` ends it.
    pub fn fault_of_all(&self, fault: Option<LeaseFault>) {
        self.faults.lock().all = fault;
    }

    /// Makes the next `count` opens of an engine fail.
    pub fn fail_leads(&self, count: u32) {
        self.faults.lock().failing_leads = count;
    }

    /// Makes opening an engine take this long, by tokio's clock.
    pub fn delay_leads(&self, takes: Duration) {
        self.faults.lock().lead_takes = takes;
    }

    /// The engine that was opened last, if it still exists.
    pub fn engine(&self) -> Option<Arc<SimulatedEngine>> {
        self.faults.lock().engines.last()?.upgrade()
    }

    async fn open(&self, term: u64, clock: Arc<dyn Clock>) -> Result<Arc<dyn Engine>, OpenError> {
        let takes = self.faults.lock().lead_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        if self.faults.lock().takes_lead_failure() {
            return Err(OpenError::Store("simulated: the engine cannot be opened".to_owned()));
        }
        let led = || {
            let term = self.database.term();
            OpenError::Led { address: format!("simulated engine of term {term}"), term }
        };
        if self.database.term() >= term {
            return Err(led());
        }
        let engine = SimulatedEngine::open(&self.database.for_term(term), self.network.clone(), clock);
        let engine =
            Arc::new(engine.map_err(|error| if self.database.term() > term { led() } else { error })?);
        self.faults.lock().engines.push(Arc::downgrade(&engine));
        Ok(engine)
    }
}

impl SharedStore for SimulatedStore {
    fn location(&self) -> String {
        "simulated database".to_owned()
    }

    fn lease(&self) -> &dyn LeaseStore {
        self
    }

    fn lead(
        &self,
        takeover: Takeover,
        clock: Arc<dyn Clock>,
    ) -> BoxFuture<'_, Result<Arc<dyn Engine>, OpenError>> {
        Box::pin(self.open(takeover.term, clock))
    }
}

impl LeaseStore for SimulatedStore {
    fn read(&self) -> BoxFuture<'_, Result<Option<LeaseRecord>, LeaseError>> {
        let fault = self.faults.lock().all;
        Box::pin(async move {
            match fault {
                None => Ok(self.database.lease().read()),
                fault => Err(failed(fault).await),
            }
        })
    }

    fn compare_and_set(
        &self,
        expected: Option<u64>,
        record: LeaseRecord,
    ) -> BoxFuture<'_, Result<bool, LeaseError>> {
        let mut faults = self.faults.lock();
        let fault = faults.writes.pop_front().flatten().or(faults.all);
        drop(faults);
        Box::pin(async move {
            if matches!(fault, Some(LeaseFault::RequestLost | LeaseFault::Hangs)) {
                return Err(failed(fault).await);
            }
            let is_set = self.database.lease().compare_and_set(expected, record);
            if fault.is_some() { Err(failed(fault).await) } else { Ok(is_set) }
        })
    }
}

async fn failed(fault: Option<LeaseFault>) -> LeaseError {
    match fault {
        Some(LeaseFault::Hangs) => std::future::pending().await,
        fault => LeaseError(format!("simulated: {fault:?}")),
    }
}
