//! The parameters that `/topics` and `/groups` share: prefix, limit and the start of the page. Both list names in order.

use super::ApiError;
use super::query::Query;

const LIMIT_DEFAULT: i64 = 1_000;
const LIMIT_MAX: i64 = 10_000;
/// Number of names that are processed before the task yields.
pub(super) const NAMES_AT_ONCE: usize = 1_000;

/// The requested part of a list.
pub(super) struct ListQuery<'a> {
    pub(super) prefix: &'a str,
    /// The last name on the previous page; `None` for the first page.
    pub(super) next: Option<&'a str>,
    pub(super) limit: usize,
}

impl<'a> ListQuery<'a> {
    pub(super) fn of(query: &'a Query) -> Result<Self, ApiError> {
        let limit = query.whole("limit", 1, LIMIT_MAX)?.unwrap_or(LIMIT_DEFAULT);
        let next = query.one("next")?;
        Ok(Self { prefix: query.one("prefix")?.unwrap_or(""), next, limit: limit.unsigned_abs() as usize })
    }
}
