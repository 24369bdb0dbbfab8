//! The results as a page of tables.

use super::results::Growth;

/// The page.
#[must_use]
pub fn page(_growth: &Growth, _raw: &str) -> String {
    String::new()
}
