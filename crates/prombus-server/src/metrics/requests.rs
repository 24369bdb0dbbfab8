//! Counts HTTP requests and their durations. The routes are those of the table in `http/routes.rs`; paths as clients send them
//! never become labels.

use super::text::{FamilyKind, MetricsText};
use parking_lot::Mutex;
use prombus::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets for the duration of a request, in seconds.
const SECONDS_BOUNDS: &[f64] =
    &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The statuses that have their own counters.
const STATUSES: &[u16] = &[
    101, 200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 405, 406, 408, 409, 410, 411, 412, 413, 414, 415,
    416, 421, 422, 423, 426, 428, 429, 431, 500, 501, 502, 503, 504, 507,
];

/// The label of requests that belong to no route: unknown paths and methods, preflights, refused hosts and origins.
const UNMATCHED: &str = "unmatched";

/// The counters of all routes.
#[derive(Default)]
pub(crate) struct Requests {
    routes: Mutex<Vec<Arc<RouteMetrics>>>,
}

/// The counters of a route.
pub(crate) struct RouteMetrics {
    /// The template of the path.
    route: &'static str,
    method: &'static str,
    /// By the index of the status in [`STATUSES`]; the additional last one is for all others.
    by_status: [AtomicU64; STATUSES.len() + 1],
    duration_seconds: Histogram,
}

impl Requests {
    /// The counters of a route, which are created by the first call. Callers that serve many requests keep them.
    pub(crate) fn route(&self, route: &'static str, method: &'static str) -> Arc<RouteMetrics> {
        let mut routes = self.routes.lock();
        if let Some(known) = routes.iter().find(|it| it.route == route && it.method == method) {
            return Arc::clone(known);
        }
        let made = Arc::new(RouteMetrics {
            route,
            method,
            by_status: std::array::from_fn(|_| AtomicU64::new(0)),
            duration_seconds: Histogram::new(SECONDS_BOUNDS),
        });
        routes.push(Arc::clone(&made));
        made
    }

    /// The counters of requests that belong to no route.
    pub(crate) fn unmatched(&self, method: &str) -> Arc<RouteMetrics> {
        let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
        self.route(UNMATCHED, known.into_iter().find(|&it| it == method).unwrap_or("other"))
    }

    pub(super) fn put(&self, text: &mut MetricsText) {
        let mut routes = self.routes.lock().clone();
        routes.sort_by_key(|it| (it.route, it.method));
        text.family(
            "prombus_http_requests_total",
            FamilyKind::Counter,
            "HTTP requests, by route, method and status.",
        );
        for it in &routes {
            let codes = STATUSES.iter().map(u16::to_string).chain(["other".to_owned()]);
            for (code, counter) in codes.zip(&it.by_status) {
                match counter.load(Ordering::Relaxed) {
                    0 => {}
                    count => {
                        text.sample(&[("route", it.route), ("method", it.method), ("code", &code)], count);
                    }
                }
            }
        }
        text.family(
            "prombus_http_request_duration_seconds",
            FamilyKind::Histogram,
            "Time from the head of a request to the head of its response.",
        );
        for it in routes {
            let figures = it.duration_seconds.figures();
            if figures.buckets.iter().any(|&count| count > 0) {
                text.histogram(&[("route", it.route), ("method", it.method)], &figures);
            }
        }
    }
}

impl RouteMetrics {
    /// Counts a request.
    pub(crate) fn count(&self, status: u16, took: Duration) {
        let at = STATUSES.binary_search(&status).unwrap_or(STATUSES.len());
        self.by_status[at].fetch_add(1, Ordering::Relaxed);
        self.duration_seconds.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::Format;
    use super::*;

    #[test]
    fn requests_are_counted_by_route_method_and_status() {
        assert!(STATUSES.is_sorted());
        let requests = Requests::default();
        let publish = requests.route("/publish/{topic}", "POST");
        publish.count(200, Duration::from_millis(2));
        requests.route("/publish/{topic}", "POST").count(200, Duration::from_secs(60));
        publish.count(999, Duration::ZERO);
        requests.unmatched("BREW").count(405, Duration::ZERO);
        requests.route("/never", "GET");
        let mut text = MetricsText::new(Format::Text);
        requests.put(&mut text);
        let text = text.finish();
        let counted: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("prombus_http_requests_total")).collect();
        let expected = [
            "{route=\"/publish/{topic}\",method=\"POST\",code=\"200\"} 2",
            "{route=\"/publish/{topic}\",method=\"POST\",code=\"other\"} 1",
            "{route=\"unmatched\",method=\"other\",code=\"405\"} 1",
        ];
        assert_eq!(counted, expected);
        let labels = "route=\"/publish/{topic}\",method=\"POST\"";
        for (le, count) in [("0.001", 1), ("0.0025", 2), ("30", 2), ("+Inf", 3)] {
            let name = "prombus_http_request_duration_seconds_bucket";
            let bucket = format!("{name}{{{labels},le=\"{le}\"}} {count}\n");
            assert!(text.contains(&bucket), "no {bucket} in\n{text}");
        }
        assert!(!text.contains("/never"), "{text}");
    }
}
