//! Remembers origins whose pages were refused, so that each is logged once and a hostile client cannot fill the log.

use parking_lot::Mutex;
use std::collections::HashSet;

/// Maximum number of origins that are logged; further ones get one line for all of them.
const ORIGINS_MAX: usize = 100;

/// The origins that were logged.
#[derive(Debug, Default)]
pub(super) struct RefusedOrigins {
    seen: Mutex<HashSet<String>>,
}

/// The log line for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Names the origin.
    Origin,
    /// Says that further origins are not logged.
    NoMoreNames,
    /// No line: the origin was already logged, or too many were.
    Nothing,
}

impl RefusedOrigins {
    /// Logs a warning for an origin that was not refused before.
    pub(super) fn note(&self, origin: &str) {
        match self.line(origin) {
            Line::Origin => tracing::warn!(
                "refused pages of origin {origin:?}: to allow them, add it to http.cors_origins \
                 (PROMBUS_HTTP_CORS_ORIGINS)"
            ),
            Line::NoMoreNames => tracing::warn!(
                "refused pages of more than {ORIGINS_MAX} origins: further ones are not logged; \
                 http.cors_origins lists those that are allowed"
            ),
            Line::Nothing => {}
        }
    }

    fn line(&self, origin: &str) -> Line {
        let mut seen = self.seen.lock();
        if seen.len() > ORIGINS_MAX || seen.contains(origin) {
            return Line::Nothing;
        }
        seen.insert(origin.to_owned());
        if seen.len() > ORIGINS_MAX { Line::NoMoreNames } else { Line::Origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_origin_is_logged_once_and_their_number_is_bounded() {
        let refused = RefusedOrigins::default();
        assert_eq!(refused.line("https://a.example"), Line::Origin);
        assert_eq!(refused.line("https://a.example"), Line::Nothing);
        for number in 1..ORIGINS_MAX {
            assert_eq!(refused.line(&format!("https://{number}.example")), Line::Origin);
        }
        assert_eq!(refused.line("https://b.example"), Line::NoMoreNames);
        assert_eq!(refused.line("https://c.example"), Line::Nothing);
        assert!(refused.seen.lock().len() <= ORIGINS_MAX + 1);
    }
}
