//! Claims rows for drainers, and settles them. A claimed row is updated only if it still has the token of its claim. All times are those of
//! the server's clock.

use super::row::{parse_row, row_name};
use crate::server_abilities::majority;
use futures_util::TryStreamExt as _;
use mongodb::Collection;
use mongodb::bson::{Bson, Document, doc};
use mongodb::error::Result as MongoResult;
use mongodb::options::ReturnDocument;
use parking_lot::Mutex;
use prombus::Uuid;
use prombus::outbox::{ClaimedRow, Failed, FailedRow};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The maximum number of attempts to claim rows, if other drainers claim them first.
const CLAIM_ATTEMPTS: u32 = 5;
/// A longer error text is cut to this length.
const ERROR_CHARS_MAX: usize = 1_000;

/// The rows of an outbox. This is a handle; clones share their claimed rows.
#[derive(Clone)]
pub(super) struct Rows {
    pub(super) rows: Collection<Document>,
    /// How long sent rows are kept.
    pub(super) keep_sent_ms: u64,
    /// The number of failed attempts after which a row is given up.
    pub(super) max_attempts: u32,
    pub(super) claims: Arc<Claims>,
}

/// The rows that drainers of this process hold, by worker and row name.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Mutex<HashMap<(String, String), Held>>,
}

/// A row that is held.
#[derive(Clone, Debug)]
struct Held {
    /// The `_id` of the row.
    id: Bson,
    /// The token of the claim.
    token: String,
}

impl Claims {
    /// Removes the rows that a worker settles or releases, and returns their ids by token.
    fn take<'a>(&self, worker: &str, rows: impl Iterator<Item = &'a String>) -> BTreeMap<String, Vec<Bson>> {
        let mut held = self.held.lock();
        let mut by_token: BTreeMap<String, Vec<Bson>> = BTreeMap::new();
        for row in rows {
            if let Some(Held { id, token }) = held.remove(&(worker.to_owned(), row.clone())) {
                by_token.entry(token).or_default().push(id);
            }
        }
        by_token
    }
}

/// The condition that the time in a field has passed.
fn has_passed(field: &str) -> Document {
    doc! { "$lte": [format!("${field}"), "$$NOW"] }
}

/// This many milliseconds from now, by the server's clock.
fn from_now(ms: u64) -> Document {
    doc! { "$add": ["$$NOW", i64::try_from(ms).unwrap_or(i64::MAX / 2)] }
}

/// The fields that a claim sets.
fn claim_fields() -> Bson {
    Bson::from(vec!["worker", "claim", "lease_until"])
}

/// A filter for the rows of a claim that still have its token.
fn still_held(ids: &[Bson], token: &str) -> Document {
    doc! { "_id": { "$in": ids }, "status": "claimed", "claim": token }
}

impl Rows {
    pub(super) async fn claim(&self, worker: &str, rows: u32, lease_ms: u64) -> MongoResult<Vec<ClaimedRow>> {
        for attempt in 0..CLAIM_ATTEMPTS {
            // After a lost race, each drainer begins at a random place, so that they do not compete for the same rows.
            let token = Uuid::new_v4();
            let skip = if attempt == 0 { 0 } else { token.as_u128() as u64 % u64::from(rows * attempt * 2) };
            let ids = self.due(rows, skip).await?;
            if ids.is_empty() && attempt == 0 {
                break;
            }
            let token = token.to_string();
            let filter = doc! { "_id": { "$in": &ids }, "status": { "$in": ["pending", "error"] } };
            let set = doc! { "$set": {
                "status": "claimed", "worker": worker, "claim": &token, "lease_until": from_now(lease_ms),
            } };
            let update = self.rows.update_many(filter, vec![set]).write_concern(majority());
            if update.await?.modified_count > 0 {
                return self.claimed(worker, &ids, &token).await;
            }
        }
        Ok(Vec::new())
    }

    /// Ids of rows that are due: first rows to retry, then new rows, both in the order of `ts`. Skips the first `skip` new rows.
    async fn due(&self, rows: u32, skip: u64) -> MongoResult<Vec<Bson>> {
        let mut ids = Vec::new();
        let failed = doc! { "status": "error", "$expr": has_passed("lease_until") };
        for (filter, skip) in [(failed, 0), (doc! { "status": "pending" }, skip)] {
            let room = i64::from(rows) - ids.len() as i64;
            if room > 0 {
                let find = self.rows.find(filter).sort(doc! { "ts": 1 }).limit(room).skip(skip);
                let mut found = find.projection(doc! { "_id": 1 }).await?;
                while let Some(mut row) = found.try_next().await? {
                    ids.extend(row.remove("_id"));
                }
            }
        }
        Ok(ids)
    }

    async fn claimed(&self, worker: &str, ids: &[Bson], token: &str) -> MongoResult<Vec<ClaimedRow>> {
        let find = self.rows.find(still_held(ids, token)).sort(doc! { "ts": 1 });
        let rows: Vec<Document> = find.await?.try_collect().await?;
        let mut held = self.claims.held.lock();
        let mut claimed = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(id) = row.get("_id") else { continue };
            let name = row_name(id);
            held.insert((worker.to_owned(), name.clone()), Held { id: id.clone(), token: token.to_owned() });
            claimed.push(ClaimedRow { row: name, record: parse_row(&row) });
        }
        Ok(claimed)
    }

    pub(super) async fn sent(&self, worker: &str, rows: &[String]) -> MongoResult<u64> {
        let mut count = 0;
        for (token, ids) in self.claims.take(worker, rows.iter()) {
            let filter = still_held(&ids, &token);
            if self.keep_sent_ms == 0 {
                count += self.rows.delete_many(filter).write_concern(majority()).await?.deleted_count;
                continue;
            }
            let set = doc! { "$set": {
                "status": "sent", "sent_at": "$$NOW", "expireAt": from_now(self.keep_sent_ms),
            } };
            let unset = doc! { "$unset": ["worker", "claim", "lease_until", "last_err"] };
            let update = self.rows.update_many(filter, vec![set, unset]).write_concern(majority());
            count += update.await?.modified_count;
        }
        Ok(count)
    }

    pub(super) async fn failed(&self, worker: &str, rows: &[FailedRow]) -> MongoResult<Failed> {
        let mut failed = Failed::default();
        for failed_row in rows {
            for (token, ids) in self.claims.take(worker, [&failed_row.row].into_iter()) {
                let max_attempts = if failed_row.is_permanent { 0 } else { i64::from(self.max_attempts) };
                let change = failure(&failed_row.error, max_attempts, &token);
                let update = self.rows.find_one_and_update(still_held(&ids, &token), change);
                let after = update.return_document(ReturnDocument::After).write_concern(majority()).await?;
                match after.as_ref().and_then(|row| row.get_str("status").ok()) {
                    Some("dead") => failed.dead.push(failed_row.row.clone()),
                    Some(_) => failed.retried += 1,
                    None => {}
                }
            }
        }
        Ok(failed)
    }

    pub(super) async fn give_back(&self, worker: &str, rows: &[String], why: &str) -> MongoResult<()> {
        for (token, ids) in self.claims.take(worker, rows.iter()) {
            let set = doc! { "$set": { "status": "pending", "last_err": { "$literal": shortened(why) } } };
            let update = vec![set, doc! { "$unset": claim_fields() }];
            self.rows.update_many(still_held(&ids, &token), update).write_concern(majority()).await?;
        }
        Ok(())
    }

    pub(super) async fn requeue(&self) -> MongoResult<u64> {
        let filter = doc! { "status": "claimed", "$expr": has_passed("lease_until") };
        let update = vec![doc! { "$set": { "status": "pending" } }, doc! { "$unset": claim_fields() }];
        Ok(self.rows.update_many(filter, update).write_concern(majority()).await?.modified_count)
    }

    pub(super) async fn purge(&self) -> MongoResult<u64> {
        let filter =
            doc! { "expireAt": { "$exists": true }, "status": "sent", "$expr": has_passed("expireAt") };
        Ok(self.rows.delete_many(filter).await?.deleted_count)
    }
}

/// The update of a row that failed: the row is given up after `max_attempts` attempts, otherwise retried after a backoff of 100 ms that
/// doubles up to 30 s, with ±20 % of jitter.
fn failure(error: &str, max_attempts: i64, token: &str) -> Vec<Document> {
    // The token is random, so it serves as the source of the jitter.
    let jitter = 0.8 + f64::from(token.bytes().map(u32::from).sum::<u32>() % 41) / 100.0;
    let doublings = doc! { "$min": [{ "$subtract": ["$attempts", 1] }, 16] };
    let full = doc! { "$min": [30_000, { "$multiply": [100, { "$pow": [2, doublings] }] }] };
    let wait = doc! { "$toLong": { "$multiply": [full, jitter] } };
    let is_dead = doc! { "$gte": ["$attempts", max_attempts] };
    vec![
        doc! { "$set": {
            "attempts": { "$add": [{ "$ifNull": ["$attempts", 0] }, 1] },
            "last_err": { "$literal": shortened(error) },
        } },
        doc! { "$set": {
            "status": { "$cond": [&is_dead, "dead", "error"] },
            "lease_until": { "$cond": [&is_dead, "$$REMOVE", { "$add": ["$$NOW", wait] }] },
        } },
        doc! { "$unset": ["worker", "claim"] },
    ]
}

fn shortened(error: &str) -> String {
    error.chars().take(ERROR_CHARS_MAX).collect()
}
