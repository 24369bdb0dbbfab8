//! What `/topics` and `/groups` have in common: names in order, a prefix, pages.

use super::ApiError;
use super::query::Query;

const LIMIT_DEFAULT: i64 = 1_000;
const LIMIT_MAX: i64 = 10_000;
/// Names that are looked at before others have their turn.
pub(super) const NAMES_AT_ONCE: usize = 1_000;

/// Which part of a list is asked for.
pub(super) struct ListQuery<'a> {
    pub(super) prefix: &'a str,
    /// Where the page before ended.
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
