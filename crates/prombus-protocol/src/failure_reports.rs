//! The failures of one handler: the last of them, the callbacks that receive all of them, and how many are logged. The library
//! and the client do the logging, and have the clock.

use crate::handler_failure::HandlerFailure;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After a log line, further failures of the same handler are only counted for this long.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// A function that is called for each failure.
type Callback = Arc<dyn Fn(&HandlerFailure) + Send + Sync>;

/// The failures of one handler.
#[derive(Default)]
pub struct FailureReports {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<HandlerFailure>,
    count: u64,
    callbacks: Vec<Callback>,
    pace: Pace,
}

/// Decides which failures are logged.
#[derive(Default)]
struct Pace {
    logged_at: Option<Instant>,
    /// Failures since the last line.
    left_out: u64,
}

/// How a failure was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The number of failures so far, including this one.
    pub count: u64,
    /// Whether a callback received it.
    pub has_callback: bool,
    /// Whether it should be logged: at most one failure a second is. Contains the number of failures since the last one that was
    /// logged.
    pub to_log: Option<u64>,
}

impl FailureReports {
    /// Adds a callback for later failures. If there was a failure before, the callback is called with the last one at once.
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        let callback: Callback = Arc::new(callback);
        let last = {
            let mut state = self.state();
            state.callbacks.push(Arc::clone(&callback));
            state.last.clone()
        };
        if let Some(last) = last {
            call(&callback, &last);
        }
    }

    /// The last failure, if any. A later success does not remove it.
    pub fn last(&self) -> Option<HandlerFailure> {
        self.state().last.clone()
    }

    /// Keeps a failure as the last one and calls the callbacks. A callback that panics does not stop the handler.
    pub fn report(&self, failure: &HandlerFailure, now: Instant) -> Reported {
        let (callbacks, count, to_log) = {
            let mut state = self.state();
            state.last = Some(failure.clone());
            state.count += 1;
            (state.callbacks.clone(), state.count, state.pace.next_line(now))
        };
        callbacks.iter().for_each(|callback| call(callback, failure));
        Reported { count, has_callback: !callbacks.is_empty(), to_log }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pace {
    /// The number of failures that were left out before this one, if this one is to be logged.
    fn next_line(&mut self, now: Instant) -> Option<u64> {
        if self.logged_at.is_some_and(|at| now.saturating_duration_since(at) < LOG_EVERY) {
            self.left_out += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

fn call(callback: &Callback, failure: &HandlerFailure) {
    // The panic hook has already printed the message of the panic.
    let _ = catch_unwind(AssertUnwindSafe(|| callback(failure)));
}

impl fmt::Debug for FailureReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("FailureReports").field("count", &state.count).field("last", &state.last).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler_failure::{AfterFailure, FailedEvent};
    use crate::topic_name::Topic;
    use std::sync::mpsc::channel;
    use uuid::Uuid;

    fn failure(seq: u64) -> HandlerFailure {
        let topic = Topic::new("orders").unwrap();
        let event = FailedEvent { topic, seq, id: Uuid::nil(), attempt: 1, max_attempts: 5 };
        HandlerFailure::of_event(event, "boom", AfterFailure::Retry)
    }

    #[test]
    fn a_callback_gets_the_last_failure_before_it_and_all_after_it() {
        let reports = FailureReports::default();
        assert_eq!(reports.last(), None);
        let first = reports.report(&failure(1), Instant::now());
        assert_eq!(first, Reported { count: 1, has_callback: false, to_log: Some(0) });
        reports.report(&failure(2), Instant::now());
        let (sender, received) = channel();
        reports.on_error(move |failure| sender.send(failure.event.as_ref().unwrap().seq).unwrap());
        let third = reports.report(&failure(3), Instant::now());
        assert_eq!((third.count, third.has_callback), (3, true));
        assert_eq!(received.try_iter().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(reports.last(), Some(failure(3)));
    }

    #[test]
    fn a_callback_that_panics_or_reports_does_not_break_the_reports() {
        let reports = Arc::new(FailureReports::default());
        let inner = Arc::clone(&reports);
        reports.on_error(move |_| {
            assert!(inner.last().is_some(), "the reports are not locked during a callback");
            panic!("a bug in the callback");
        });
        reports.report(&failure(1), Instant::now());
        assert_eq!(reports.report(&failure(2), Instant::now()).count, 2);
    }

    #[test]
    fn one_line_a_second_says_how_many_failures_it_stands_for() {
        let (reports, start) = (FailureReports::default(), Instant::now());
        let logged = |ms| reports.report(&failure(1), start + Duration::from_millis(ms)).to_log;
        assert_eq!(logged(0), Some(0));
        assert_eq!((logged(1), logged(999)), (None, None));
        assert_eq!((logged(1000), logged(2000)), (Some(2), Some(0)));
    }

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(failure(7).to_string(), "orders seq 7 (attempt 1 of 5): boom; it will be retried");
        let row = HandlerFailure::of_row("order-17", "too large", AfterFailure::DeadLetter);
        assert_eq!(row.to_string(), "row order-17: too large; it becomes a dead letter");
        let general = HandlerFailure::general("the bus failed", AfterFailure::Stop);
        assert_eq!(general.to_string(), "the bus failed; the handler has stopped");
    }
}
