//! Who a response is for.

use super::ApiError;
use crate::live::Standing;

/// The caller of an authenticated request, as an extension of the response. The connection ends if the caller's token is withdrawn
/// before the client has read the response.
#[derive(Clone)]
pub(crate) struct ResponseOwner(pub(crate) Standing);

impl ResponseOwner {
    /// Checks that no reload has withdrawn the caller's token.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        Ok(self.0.clone().check()?)
    }

    /// Whether a reload has withdrawn the caller's token.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.check().is_err()
    }
}
