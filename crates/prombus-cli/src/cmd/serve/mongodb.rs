//! Connects to a MongoDB store, if this binary was built with the feature `mongodb`.

use crate::config::{BusSettings, StoreUrl};
use prombus::OpenError;
use prombus::engine::SharedStore;
use std::sync::Arc;

/// Connects to the database.
///
/// # Errors
/// [`OpenError`], without credentials.
#[cfg(feature = "mongodb")]
pub async fn connect(url: &StoreUrl, settings: &BusSettings) -> Result<Arc<dyn SharedStore>, OpenError> {
    let mongodb = settings.mongodb.clone();
    let options = prombus_mongo::MongoOptions {
        database: mongodb.database,
        prefix: mongodb.prefix,
        readable: mongodb.readable,
        write_concern: mongodb.write_concern,
        dedupe_ms: u64::try_from(settings.log.dedupe_ms).unwrap_or_default(),
        tail_bytes: settings.log.tail_bytes,
        max_payload_bytes: settings.limits.max_payload_bytes,
        ..prombus_mongo::MongoOptions::new(url.with_password())
    };
    Ok(Arc::new(prombus_mongo::MongoStore::connect(options).await?))
}

/// Refuses: this binary was built without the feature.
///
/// # Errors
/// Always.
#[cfg(not(feature = "mongodb"))]
#[expect(clippy::unused_async, reason = "the same signature as with MongoDB")]
pub async fn connect(url: &StoreUrl, _settings: &BusSettings) -> Result<Arc<dyn SharedStore>, OpenError> {
    let _ = url.with_password();
    Err(OpenError::Store("this prombus was built without MongoDB support (feature mongodb)".to_owned()))
}
