//! Errors of handlers, and what they mean for the event.

use super::settlement::Settlement;
use std::any::Any;
use std::fmt::{self, Display};
use std::time::Duration;

/// An error of a handler that decides what happens to the event. Handlers may return any error: its text becomes the reason of a nack,
/// and the event is redelivered after the server's backoff. This type can also request a delay, or a dead letter at once.
///
/// Every `std::error::Error` converts into it with `?`, as a plain retry.
///
/// ```
/// use prombus_client::HandlerError;
/// use std::time::Duration;
///
/// fn charge(amount: &str) -> Result<(), HandlerError> {
///     let cents: u64 = amount.parse()?; // retried after the server's backoff
///     if cents == 0 {
///         return Err(HandlerError::reject("nothing to charge")); // a dead letter at once
///     }
///     Err(HandlerError::retry_after(Duration::from_secs(60), "the bank is closed"))
/// }
/// # assert!(charge("x").is_err() && charge("0").is_err() && charge("1").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError {
    reason: String,
    verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Retry(Option<Duration>),
    Reject,
}

impl HandlerError {
    /// The event is redelivered after the server's backoff.
    pub fn retry(reason: impl Display) -> Self {
        Self { reason: reason.to_string(), verdict: Verdict::Retry(None) }
    }

    /// The event is redelivered after a delay, of at most an hour.
    pub fn retry_after(delay: Duration, reason: impl Display) -> Self {
        Self { reason: reason.to_string(), verdict: Verdict::Retry(Some(delay)) }
    }

    /// The event becomes a dead letter at once.
    pub fn reject(reason: impl Display) -> Self {
        Self { reason: reason.to_string(), verdict: Verdict::Reject }
    }
}

impl Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

// `HandlerError` is not a `std::error::Error` itself: this conversion would overlap with `From<T> for T`.
impl<E: std::error::Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

/// The settlement for any error of a handler.
pub(super) fn settlement_of<E: Display + 'static>(error: &E) -> Settlement {
    let Some(HandlerError { reason, verdict }) = (error as &dyn Any).downcast_ref() else {
        return Settlement::nack(&error.to_string(), None);
    };
    match *verdict {
        Verdict::Retry(delay) => Settlement::nack(reason, delay),
        Verdict::Reject => Settlement::give_up(reason),
    }
}

/// The settlement after a panic of a handler.
pub(super) fn settlement_of_panic(panic: &(dyn Any + Send)) -> Settlement {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let reason = format!("the handler panicked: {}", text.unwrap_or("(no message)"));
    Settlement::nack(&reason, None)
}
