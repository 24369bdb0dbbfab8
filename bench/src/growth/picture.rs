//! The results as a picture.

use super::results::Growth;

/// The picture.
#[must_use]
pub fn picture(_growth: &Growth) -> String {
    String::new()
}
