//! Writes the OK and ERR frames of a WebSocket. No other module writes such frames.

use super::send_buffer::SendBuffer;
use prombus::{PublishError, Published, Unavailable};
use prombus_protocol::{ErrorCode, OkFrame, RawValue};

/// An OK with only `corr` and the ignored fields.
pub(super) fn put_ok(out: &mut SendBuffer, corr: Option<&str>, ignored: &[String]) {
    out.put_text(60, |into| {
        prombus_protocol::put_ok(into, corr);
        prombus_protocol::put_ignored(into, ignored);
    });
}

/// An OK with further fields, which `of` adds.
pub(super) fn put_ok_with(
    out: &mut SendBuffer,
    corr: Option<&str>,
    ignored: Vec<String>,
    of: impl FnOnce(OkFrame) -> OkFrame,
) {
    let corr = corr.and_then(|corr| RawValue::from_string(corr.to_owned()).ok());
    let ok = of(OkFrame { corr, ignored, ..OkFrame::default() });
    out.put_text(120, |into| ok.put(into));
}

pub(super) fn put_err(out: &mut SendBuffer, corr: Option<&str>, code: ErrorCode, msg: &str) {
    out.put_text(100, |into| prombus_protocol::put_err(into, corr, code, msg, None));
}

/// The ERR of a publish that exceeds a rate.
pub(super) fn put_rate_limited(out: &mut SendBuffer, corr: Option<&str>, msg: &str, retry_after_ms: u64) {
    out.put_text(120, |into| {
        prombus_protocol::put_err(into, corr, ErrorCode::RateLimited, msg, Some(retry_after_ms));
    });
}

/// The ERR for a frame before AUTH.
pub(super) fn put_unauthorized(out: &mut SendBuffer, corr: Option<&str>) {
    put_err(out, corr, ErrorCode::Unauthorized, "Call AUTH first.");
}

/// The ERR of a failed publish.
pub(super) fn put_not_published(out: &mut SendBuffer, corr: Option<&str>, error: &PublishError) {
    put_err(out, corr, error.code(), &error.to_string());
}

/// The OK of a publish.
#[inline]
pub(super) fn put_published(
    out: &mut SendBuffer,
    corr: Option<&str>,
    published: &Published,
    ignored: &[String],
) {
    out.put_text(100, |into| {
        prombus_protocol::put_published(into, corr, published.id, published.seq, published.duplicate);
        if !ignored.is_empty() {
            prombus_protocol::put_ignored(into, ignored);
        }
    });
}

/// The OK or ERR of an ACK or NACK.
pub(super) fn put_settled(
    out: &mut SendBuffer,
    corr: Option<&str>,
    ignored: &[String],
    stale: bool,
    failed: Option<&Unavailable>,
) {
    match failed {
        Some(reason) => put_err(out, corr, reason.code(), &reason.to_string()),
        None => put_ok_with(out, corr, ignored.to_vec(), |ok| OkFrame { stale, ..ok }),
    }
}

/// The OK of an ACK or NACK for an id that is not in flight. Without `corr` there is no OK.
pub(super) fn put_stale(out: &mut SendBuffer, corr: Option<&str>, ignored: &[String]) {
    if corr.is_some() {
        put_settled(out, corr, ignored, true, None);
    }
}
