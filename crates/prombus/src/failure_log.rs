//! Makes the failures of a handler visible: to callbacks, to the log, and once on stderr if the program has no log.

use prombus_protocol::{AfterFailure, FailureReports, HandlerFailure};
use std::io::Write as _;
use tokio::time::Instant;

/// The failures of one handler, projector, drainer or changefeed. Every failure goes to the callbacks. If the program has set a
/// tracing subscriber, failures are logged, at most one line a second for each handler; a line says how many were left out before
/// it. Without a subscriber and without a callback, the first failure is written to stderr.
///
/// Helpers outside this crate use it, so that their handles have `on_error` and `last_error` too.
#[derive(Debug)]
pub struct FailureLog {
    /// What fails, as log lines name it.
    name: String,
    reports: FailureReports,
}

impl FailureLog {
    /// For a handler that log lines call by this name, such as `handler of orders in group billing`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), reports: FailureReports::default() }
    }

    /// Adds a callback; see [`HandlerHandle::on_error`](crate::HandlerHandle::on_error).
    pub fn on_error(&self, callback: impl Fn(&HandlerFailure) + Send + Sync + 'static) {
        self.reports.on_error(callback);
    }

    /// The last failure, if any.
    pub fn last_error(&self) -> Option<HandlerFailure> {
        self.reports.last()
    }

    /// Reports a failure.
    pub fn report(&self, failure: &HandlerFailure) {
        let reported = self.reports.report(failure, Instant::now().into_std());
        let name = &self.name;
        if !tracing::dispatcher::has_been_set() {
            if reported.count == 1 && !reported.has_callback {
                // If stderr is closed, there is nowhere to write to.
                let _ = writeln!(
                    std::io::stderr(),
                    "prombus: {name}: {failure}. Later failures are not printed: use on_error or last_error of the handle, or set a tracing subscriber"
                );
            }
            return;
        }
        match reported.to_log {
            _ if failure.next == AfterFailure::Stop => tracing::error!("{name}: {failure}"),
            None => {}
            Some(0) => tracing::warn!("{name}: {failure}"),
            Some(count) => tracing::warn!("{name}: {failure} (and {count} failures before, not logged)"),
        }
    }
}
