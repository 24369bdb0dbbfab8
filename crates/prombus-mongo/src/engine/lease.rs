//! The leader lease: one document that gateways change with compare-and-set. The leader's secret, which it contains, is stored nowhere
//! else.

use crate::engine::collections::Collections;
use crate::errors::{DUPLICATE_KEY, is_code, reason};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};
use mongodb::options::WriteConcern;
use prombus::BoxFuture;
use prombus::engine::{LeaseError, LeaseRecord, LeaseStore};
use std::time::Duration;

/// The timeout of a request. The lease lasts only seconds, so a later response would be useless.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The `_id` of the document.
const LEASE: &str = "lease";

/// The leader lease of a store.
pub(crate) struct MongoLease {
    collections: Collections,
}

impl MongoLease {
    pub(crate) fn new(collections: Collections) -> Self {
        Self { collections }
    }

    async fn read_record(&self) -> Result<Option<LeaseRecord>, LeaseError> {
        let found = self.collections.leader.find_one(doc! { "_id": LEASE }).await;
        let Some(found) = found.map_err(|error| LeaseError(reason(&error)))? else { return Ok(None) };
        parse(&found).map(Some).ok_or_else(|| LeaseError("the lease record cannot be read".to_owned()))
    }

    async fn write_record(&self, expected: Option<u64>, record: &LeaseRecord) -> Result<bool, LeaseError> {
        let leader = &self.collections.leader;
        // Always a majority: a lease that a failover can remove is worthless.
        let concern =
            WriteConcern::builder().w(mongodb::options::Acknowledgment::Majority).journal(true).build();
        let failed = |error| LeaseError(reason(&error));
        match expected {
            Some(revision) => {
                let filter = doc! { "_id": LEASE, "revision": revision as i64 };
                let written = leader.replace_one(filter, document(record)).write_concern(concern).await;
                Ok(written.map_err(failed)?.matched_count == 1)
            }
            None => match leader.insert_one(document(record)).write_concern(concern).await {
                Ok(_) => Ok(true),
                Err(error) if is_code(&error, DUPLICATE_KEY) => Ok(false),
                Err(error) => Err(failed(error)),
            },
        }
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, LeaseError>>) -> Result<T, LeaseError> {
    let late = |_| Err(LeaseError(format!("no answer from MongoDB within {} s", TIMEOUT.as_secs())));
    tokio::time::timeout(TIMEOUT, work).await.unwrap_or_else(late)
}

impl LeaseStore for MongoLease {
    fn read(&self) -> BoxFuture<'_, Result<Option<LeaseRecord>, LeaseError>> {
        Box::pin(in_time(self.read_record()))
    }

    fn compare_and_set(
        &self,
        expected: Option<u64>,
        record: LeaseRecord,
    ) -> BoxFuture<'_, Result<bool, LeaseError>> {
        Box::pin(in_time(async move { self.write_record(expected, &record).await }))
    }
}

fn binary(bytes: &[u8]) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() })
}

fn document(record: &LeaseRecord) -> Document {
    doc! {
        "_id": LEASE,
        "term": record.term as i64,
        "revision": record.revision as i64,
        "leader_id": &record.leader_id,
        "address": &record.address,
        "cert_hash": record.cert_hash.map_or(Bson::Null, |hash| binary(&hash)),
        "secret": binary(&record.secret),
    }
}

fn parse(document: &Document) -> Option<LeaseRecord> {
    let bytes = |name: &str| -> Option<[u8; 32]> {
        document.get_binary_generic(name).ok()?.as_slice().try_into().ok()
    };
    Some(LeaseRecord {
        term: document.get_i64("term").ok()? as u64,
        revision: document.get_i64("revision").ok()? as u64,
        leader_id: document.get_str("leader_id").ok()?.to_owned(),
        address: document.get_str("address").ok()?.to_owned(),
        cert_hash: bytes("cert_hash"),
        secret: bytes("secret")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut record = LeaseRecord {
            term: 3,
            revision: u64::MAX >> 1,
            leader_id: "a".to_owned(),
            address: "10.0.0.1:8090".to_owned(),
            cert_hash: Some([7; 32]),
            secret: [1; 32],
        };
        assert_eq!(parse(&document(&record)), Some(record.clone()));
        record.cert_hash = None;
        assert_eq!(parse(&document(&record)), Some(record));
        assert_eq!(parse(&doc! { "_id": LEASE }), None);
    }
}
