//! The future that the methods of backends return.

use std::pin::Pin;

/// A future that can be kept and sent.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
