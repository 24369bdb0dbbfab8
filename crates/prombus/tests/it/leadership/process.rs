//! A process on a shared store that makes one step at a time, so that a test can stop it anywhere.

use prombus::engine::simulated::{Database, LeaseFault, NetworkOptions, SimulatedStore};
use prombus::engine::{SharedStore as _, Takeover};
use prombus::leadership::{Candidate, LeaseMachine, LeasePosition, LeaseStep, LeaseTiming};
use prombus::{
    Bus, Clock, LeasingGate, Limits, LocalBackend, ManualClock, OpenError, PublishError, PullLimit, Topic,
};
use std::sync::Arc;

/// A network without delays, so that tests do not have to wait.
pub fn fast_network() -> NetworkOptions {
    NetworkOptions { commit_latency_us: 0..=0, read_latency_us: 0..=0, ..NetworkOptions::default() }
}

pub struct Process {
    pub machine: LeaseMachine,
    pub store: SimulatedStore,
    pub clock: ManualClock,
    /// The bus of the term that it leads.
    pub leading: Option<Leading>,
}

pub struct Leading {
    pub term: u64,
    pub bus: Bus,
    pub gate: Arc<LeasingGate>,
}

impl Process {
    pub fn new(name: &str, database: &Database, clock: &ManualClock) -> Self {
        let candidate =
            Candidate { leader_id: name.to_owned(), address: format!("{name}:7070"), cert_hash: None };
        Self {
            machine: LeaseMachine::new(LeaseTiming::default(), candidate, || [7; 32]),
            store: SimulatedStore::new(database, fast_network()),
            clock: clock.clone(),
            leading: None,
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.steady_ms()
    }

    /// Makes one call of the lease record, if one is due. Returns whether there was one.
    pub async fn lease_step(&mut self) -> bool {
        match self.machine.next(self.now()) {
            LeaseStep::Read => {
                let read = self.store.lease().read().await;
                self.machine.was_read(read, self.now());
            }
            LeaseStep::CompareAndSet { expected, record } => {
                let set = self.store.lease().compare_and_set(expected, record).await;
                self.machine.was_set(set, self.now());
            }
            LeaseStep::WaitUntil(_) | LeaseStep::Stopped => return false,
        }
        self.follow_machine().await;
        true
    }

    /// Makes all steps that are due, including opening the engine.
    pub async fn run(&mut self) {
        while self.lease_step().await {}
        if self.holds().is_some() && self.leading.is_none() {
            self.open().await.expect("opens");
        }
    }

    /// Opens the engine for the term that it holds.
    pub async fn open(&mut self) -> Result<(), OpenError> {
        let LeasePosition::Holding { takeover, .. } = self.machine.position() else { panic!("no lease") };
        self.open_as(takeover).await
    }

    pub async fn open_as(&mut self, takeover: Takeover) -> Result<(), OpenError> {
        let engine = self.store.lead(takeover, Arc::new(self.clock.clone())).await?;
        let backend =
            LocalBackend::open_without_timer(engine, Arc::new(self.clock.clone()), Limits::default())?;
        let gate = Arc::new(LeasingGate::new(Arc::new(self.clock.clone())));
        backend.set_leasing_gate(&gate);
        let bus = Bus::with_backend(Arc::new(backend));
        self.leading = Some(Leading { term: takeover.term, bus, gate });
        self.follow_machine().await;
        Ok(())
    }

    /// Updates the gate, and closes a bus whose term is over.
    async fn follow_machine(&mut self) {
        let Some(leading) = &self.leading else { return };
        match self.machine.gate_deadline() {
            Some(deadline) => leading.gate.open_until(deadline),
            None => leading.gate.close(),
        }
        if self.holds() != Some(leading.term)
            && let Some(leading) = self.leading.take()
        {
            // The engine of an old term may return that it was deposed.
            let _ = leading.bus.close().await;
        }
    }

    pub fn holds(&self) -> Option<u64> {
        match self.machine.position() {
            LeasePosition::Holding { record, .. } => Some(record.term),
            LeasePosition::Following { .. } => None,
        }
    }

    pub fn leader(&self) -> Option<String> {
        match self.machine.position() {
            LeasePosition::Holding { .. } => None,
            LeasePosition::Following { leader } => leader.map(|it| it.leader_id),
        }
    }

    pub fn bus(&self) -> &Bus {
        &self.leading.as_ref().expect("it leads").bus
    }

    pub async fn publish(&self, payload: u64) -> Result<u64, PublishError> {
        Ok(self.bus().publish("orders", &payload).await?.seq)
    }

    /// Kills the process (kill -9): nothing in its memory is written.
    pub fn kill(self) {
        self.cut_off();
        // Closing would write the last acks.
        std::mem::forget(self.leading);
    }

    /// Disconnects this process from the store.
    pub fn cut_off(&self) {
        self.store.fault_of_all(Some(LeaseFault::RequestLost));
        self.store.engine().into_iter().for_each(|engine| engine.suspend("cut off"));
    }
}

/// Advances the clock in steps of 50 ms, and runs these processes after each step.
pub async fn pass(clock: &ManualClock, ms: u64, processes: &mut [&mut Process]) {
    for _ in 0..ms / 50 {
        clock.advance_ms(50);
        for process in &mut *processes {
            process.run().await;
        }
    }
}

/// The payloads of a topic in the order of seqs, which must begin at 1 and have no gap.
pub async fn stored(bus: &Bus) -> Vec<u64> {
    let topic = Topic::new("orders").expect("a good name");
    let (mut payloads, mut from) = (Vec::new(), 1);
    loop {
        let page = match bus.read_from(&topic, from, PullLimit::default()).await {
            Ok(page) => page,
            Err(prombus::ReadError::UnknownTopic(_)) => return payloads,
            Err(error) => panic!("{error}"),
        };
        for event in &page.events {
            assert_eq!(event.seq(), payloads.len() as u64 + 1, "no gap");
            payloads.push(event.payload().parse().expect("a number"));
        }
        if page.next_seq == from {
            return payloads;
        }
        from = page.next_seq;
    }
}

/// Checks that commit numbers have no gap, and that no term writes after a newer one.
pub fn check_fences(database: &Database) {
    let fences = database.fences();
    let is_in_order = fences.is_sorted_by(|a, b| a.0 + 1 == b.0 && a.1 <= b.1);
    assert!(is_in_order, "{fences:?}");
}
