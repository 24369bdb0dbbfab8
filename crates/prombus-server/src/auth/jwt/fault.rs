//! Why a JWT is refused. The log names the rule that failed; the client learns only that the token is not valid.

use crate::auth::error::AuthRefused;
use parking_lot::Mutex;
use thiserror::Error;

/// Minimum time between two log lines about the same rule.
const LOG_EVERY_MS: i64 = 10_000;

/// The rule that a token violates. No text contains anything of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(in crate::auth) enum JwtFault {
    #[error("it is longer than 8 KiB")]
    TooLong,
    #[error("it does not have three parts")]
    Parts,
    #[error("the header cannot be read, or names an unsupported algorithm")]
    Header,
    #[error("the header requires an extension (crit)")]
    Critical,
    #[error("no configured key has the algorithm (alg) of the header")]
    Algorithm,
    #[error("no configured key has the key id (kid) of the header")]
    KeyId,
    #[error("the signature does not match a configured key")]
    Signature,
    #[error("the claims are not a JSON object")]
    Claims,
    #[error("the issuer (iss) is not the configured one")]
    Issuer,
    #[error("the audience (aud) does not contain the configured one")]
    Audience,
    #[error("the expiry (exp) is missing")]
    NoExpiry,
    #[error("a date (exp, nbf) is not a number")]
    Date,
    #[error("the subject (sub) is not a name")]
    Subject,
    #[error("it has expired (exp)")]
    Expired,
    #[error("it is not valid yet (nbf)")]
    NotYetValid,
}

impl From<JwtFault> for AuthRefused {
    fn from(fault: JwtFault) -> Self {
        match fault {
            JwtFault::Expired => Self::Expired,
            JwtFault::NotYetValid => Self::NotYetValid,
            _ => Self::Bad,
        }
    }
}

/// Logs refused tokens: at most one line per rule in 10 s.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    /// The rules that were logged. There are few, so a list is enough.
    logged: Mutex<Vec<LoggedFault>>,
}

#[derive(Debug)]
struct LoggedFault {
    /// The text of the line, without the count.
    what: String,
    at_ms: i64,
    /// How many lines were left out since.
    left_out: u64,
}

impl RefusalLog {
    pub(super) fn refused(&self, fault: JwtFault, now_ms: i64) {
        if let Some(line) = self.line(format!("a JWT was refused: {fault}"), now_ms) {
            tracing::warn!("{line}");
        }
    }

    /// Logs a token that is valid but allows nothing.
    pub(super) fn without_scopes(&self, now_ms: i64) {
        let what =
            "a JWT was accepted but allows nothing: the claims scope and scopes contain no scope of prombus";
        if let Some(line) = self.line(what.to_owned(), now_ms) {
            tracing::warn!("{line}");
        }
    }

    /// The texts that were logged.
    #[cfg(test)]
    pub(super) fn logged(&self) -> Vec<String> {
        self.logged.lock().iter().map(|it| it.what.clone()).collect()
    }

    /// The line to log, if one is due.
    fn line(&self, what: String, now_ms: i64) -> Option<String> {
        let mut logged = self.logged.lock();
        let Some(known) = logged.iter_mut().find(|known| known.what == what) else {
            logged.push(LoggedFault { what: what.clone(), at_ms: now_ms, left_out: 0 });
            return Some(what);
        };
        // A clock that was set back must not silence the log.
        if (known.at_ms..known.at_ms.saturating_add(LOG_EVERY_MS)).contains(&now_ms) {
            known.left_out += 1;
            return None;
        }
        known.at_ms = now_ms;
        match std::mem::take(&mut known.left_out) {
            0 => Some(what),
            more => Some(format!("{what} ({more} more since the last such line)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_logged_once_in_10_seconds_with_the_count_of_the_others() {
        let log = RefusalLog::default();
        let line = |what: &str, now_ms| log.line(what.to_owned(), now_ms);
        assert_eq!(line("a", 1_000).as_deref(), Some("a"));
        assert_eq!(line("b", 1_001).as_deref(), Some("b"));
        assert_eq!((line("a", 1_002), line("a", 10_999)), (None, None));
        assert_eq!(line("a", 11_000).as_deref(), Some("a (2 more since the last such line)"));
        assert_eq!(line("a", 21_000).as_deref(), Some("a"));
        assert_eq!(line("a", 500).as_deref(), Some("a"));
    }
}
