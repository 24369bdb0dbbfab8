//! Reads over the simulated network: each request is answered after a latency of its own, by one thread.

use super::network::{NetworkOptions, Random};
use crate::error::{ReadError, Unavailable};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Gets `Ok` when the database can be asked, or why it cannot.
type Request = Box<dyn FnOnce(Result<(), ReadError>) + Send>;

/// Requests on their way.
pub(super) struct Reader {
    options: Arc<NetworkOptions>,
    state: Mutex<ReaderState>,
    changed: Condvar,
}

struct ReaderState {
    random: Random,
    /// By the time of their answers. The number tells requests of one time apart.
    requests: BTreeMap<(Instant, u64), Request>,
    next_number: u64,
    is_suspended: bool,
    is_closed: bool,
}

impl Reader {
    pub(super) fn new(options: Arc<NetworkOptions>) -> Self {
        let state = ReaderState {
            random: Random::new(options.seed.rotate_left(32)),
            requests: BTreeMap::new(),
            next_number: 0,
            is_suspended: false,
            is_closed: false,
        };
        Self { options, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sends a request. It is answered from another thread; at once when the engine is closed.
    pub(super) fn request(&self, request: Request) {
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            return request(Err(Unavailable::Closed.into()));
        }
        let due = Instant::now() + state.random.duration_us(&self.options.read_latency_us);
        let number = state.next_number;
        state.next_number += 1;
        state.requests.insert((due, number), request);
        self.changed.notify_all();
    }

    /// While suspended, requests wait.
    pub(super) fn set_suspended(&self, is_suspended: bool) {
        self.state.lock().is_suspended = is_suspended;
        self.changed.notify_all();
    }

    /// Answers everything with an error from now on.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// The thread.
    pub(super) fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                let left = std::mem::take(&mut state.requests);
                drop(state);
                left.into_values().for_each(|request| request(Err(Unavailable::Closed.into())));
                return;
            }
            let due = state.requests.first_key_value().map(|((due, _), _)| *due);
            match due.filter(|_| !state.is_suspended) {
                None => self.changed.wait(&mut state),
                Some(due) if due > Instant::now() => {
                    self.changed.wait_until(&mut state, due);
                }
                Some(_) => {
                    if let Some((_, request)) = state.requests.pop_first() {
                        parking_lot::MutexGuard::unlocked(&mut state, || request(Ok(())));
                    }
                }
            }
        }
    }
}
