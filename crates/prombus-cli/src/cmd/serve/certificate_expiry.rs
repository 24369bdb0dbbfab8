//! Warns of a certificate that has expired, expires soon, or is not valid yet: at the start, at each reload, and once a day.

use crate::messages::counted;
use crate::time;
use prombus_server::{Certificate, ReloadHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A certificate that expires within this time is reported.
const SOON_MS: i64 = 14 * DAY_MS;
const DAY_MS: i64 = 24 * 3_600_000;

/// Warns now and once a day.
pub fn watch(handle: ReloadHandle) {
    warn(&handle);
    tokio::spawn(async move {
        let day = Duration::from_millis(DAY_MS.unsigned_abs());
        loop {
            tokio::time::sleep(day).await;
            warn(&handle);
        }
    });
}

/// Warns if the current certificate has expired, expires soon, or is not valid yet.
pub fn warn(handle: &ReloadHandle) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    if let Some(line) = handle.certificate().and_then(|certificate| warning(&certificate, now_ms)) {
        tracing::warn!("{line}");
    }
}

fn warning(certificate: &Certificate, now_ms: i64) -> Option<String> {
    let file = certificate.file.display();
    if let Some(from_ms) = certificate.valid_from_ms.filter(|&from_ms| from_ms > now_ms) {
        let from = time::text(from_ms);
        return Some(format!(
            "the TLS certificate {file} is not valid before {from}: clients refuse it until then"
        ));
    }
    let expires_ms = certificate.expires_ms?;
    let left_ms = expires_ms.saturating_sub(now_ms);
    let at = time::text(expires_ms);
    let how = "replace the files and send SIGHUP to the server";
    if left_ms <= 0 {
        Some(format!("the TLS certificate {file} expired at {at}: {how}"))
    } else if left_ms <= SOON_MS {
        // Counted in calendar days (UTC, as `at`), so that "today" is the day of `at`.
        let days = expires_ms.div_euclid(DAY_MS) - now_ms.div_euclid(DAY_MS);
        let when = match u64::try_from(days).unwrap_or(0) {
            0 => "today".to_owned(),
            days => format!("in {}", counted(days, "day")),
        };
        Some(format!("the TLS certificate {file} expires at {at}, {when}: {how}"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_reported_from_14_days_before_it_expires() {
        let expires_ms = 1_804_118_400_000;
        let certificate = Certificate {
            file: "cert.pem".into(),
            valid_from_ms: Some(expires_ms - 2 * SOON_MS),
            expires_ms: Some(expires_ms),
            chain_hash: [0; 32],
        };
        let line = |left_ms| warning(&certificate, expires_ms - left_ms);
        assert_eq!(line(SOON_MS + 1), None);
        let soon = line(SOON_MS).expect("a warning");
        assert!(
            soon.contains("cert.pem expires at 2027-03-04T00:00:00") && soon.contains("in 14 days"),
            "{soon}"
        );
        assert_eq!(line(2 * SOON_MS), None);
        assert!(
            line(2 * SOON_MS + 1).expect("a warning").contains("is not valid before 2027-02-04T00:00:00")
        );
        assert!(line(0).expect("a warning").contains("cert.pem expired at 2027-03-04"));
        assert_eq!(warning(&Certificate { expires_ms: None, ..certificate }, i64::MAX), None);
    }

    #[test]
    fn the_last_days_are_counted_in_words() {
        let hour_ms = DAY_MS / 24;
        // At 04:00.
        let expires_ms = 1_804_118_400_000 + 4 * hour_ms;
        let certificate = Certificate {
            file: "cert.pem".into(),
            valid_from_ms: None,
            expires_ms: Some(expires_ms),
            chain_hash: [0; 32],
        };
        for (hours, when) in [(3, "today"), (5, "in 1 day"), (28, "in 1 day"), (29, "in 2 days")] {
            let line = warning(&certificate, expires_ms - hours * hour_ms).expect("a warning");
            assert!(line.contains(&format!("T04:00:00.000Z, {when}: replace")), "{line}");
        }
    }
}
