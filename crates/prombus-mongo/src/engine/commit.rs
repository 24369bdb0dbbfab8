//! Commits, one bulk at a time. A bulk is one ordered insert of all documents of a commit. Its first document is its fence; if the number
//! of the fence is taken, nothing is inserted. If the response to a bulk was lost, its fence shows what happened:
//!
//! | the fence | the bulk | the next step |
//! |---|---|---|
//! | is missing, no higher number is taken | has not arrived | it is sent again with the same number, so the later of the two is refused |
//! | is this engine's | is whole | its last document is updated on a majority, which then has all of it; then its fence is marked whole |
//! | is this engine's | is cut | its fence is marked void, its documents are removed, and it is sent again with the next number |
//! | is another engine's, or is missing and a higher number is taken | was refused | this engine is deposed |
//!
//! `cut.rs` decides whether a bulk is whole or cut.

use crate::engine::bulk::{BulkCommand, Plan};
use crate::engine::cut::Fate;
use crate::engine::database::MongoDatabase;
use crate::engine::fence::Fence;
use crate::engine::writer::Writer;
use crate::errors::{DUPLICATE_KEY, TOO_LARGE, is_answer, reason};
use mongodb::bson::{Document, RawDocument, RawDocumentBuf};
use mongodb::error::ErrorKind;
use prombus::engine::network::{CommitAnswer, CommitError, PendingCommit};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// If the server does not respond within a bulk's time limit plus this time, the outcome of the bulk is unknown.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest command that the server accepts as one document. Larger bulks are sent as a sequence of documents, which has no time limit
/// on the server. If the server continues to write such a bulk after its fence was voided, a later commit collides with these documents and
/// removes them.
const COMMAND_BYTES_MAX: usize = 15_500_000;
/// The largest message that the server accepts is 48,000,000 bytes.
const MESSAGE_BYTES_MAX: usize = 47_500_000;
/// The maximum number of times that one call of `commit_bulk` sends its commit.
const SENDS_MAX: usize = 5;

/// The outcome of sending a bulk.
enum Sent {
    /// The server confirmed the bulk.
    Applied,
    /// The number of the fence is taken.
    FenceTaken,
    /// The server refused a document after the fence: an older commit has written a document with the same `_id`, or the topic already has
    /// an event with an id that a publisher chose.
    Collided,
    /// The bulk can never be stored.
    Impossible(String),
    /// The outcome is unknown. `is_over`: the server responded, so the bulk is not running any more.
    Unknown { reason: String, is_over: bool },
}

impl MongoDatabase {
    /// Makes a commit durable.
    pub(crate) async fn commit_bulk(
        &self,
        writer: &mut Writer,
        commit: &PendingCommit,
    ) -> Result<CommitAnswer, CommitError> {
        if self.availability.take_failed() {
            self.verify_last_fence(writer).await?;
        }
        let mut is_over = false;
        for _ in 0..SENDS_MAX {
            let plan = match writer.unanswered.take() {
                Some((number, plan)) if number == commit.number => match self.resolve(plan, is_over).await {
                    Ok(Resolved::Applied(plan)) => return self.applied(writer, plan),
                    Ok(Resolved::SendAgain(plan)) => plan,
                    Err((plan, error)) => {
                        writer.unanswered = Some((number, plan));
                        return Err(error);
                    }
                },
                _ => self.plan(writer, commit).await?,
            };
            let sent_at = self.clock.steady_ms();
            match self.send(writer, &plan).await {
                // No process voids a bulk before the time limit of its fence.
                Sent::Applied
                    if self.clock.steady_ms().saturating_sub(sent_at) < plan.fence.max_time_ms.into() =>
                {
                    return self.applied(writer, plan);
                }
                // The response came late: a leader that has taken over may have voided the bulk.
                Sent::Applied => {
                    is_over = true;
                    writer.unanswered = Some((commit.number, plan));
                }
                Sent::FenceTaken => {
                    // The fence may belong to this same bulk, from an earlier attempt that the server is still executing.
                    is_over = false;
                    writer.unanswered = Some((commit.number, plan));
                }
                Sent::Unknown { reason, is_over: over } => {
                    self.availability.failed(&reason);
                    writer.unanswered = Some((commit.number, plan));
                    if !over {
                        // No response: the bulk may still be running. The next call resolves it.
                        return Err(CommitError::Unreachable(reason));
                    }
                    // The server responded, for example that it is not the primary any more, so the bulk is not running. When
                    // the server can be used again, the fence shows the outcome without a further wait.
                    is_over = true;
                    self.availability.wait().await;
                }
                Sent::Collided => {
                    if let Err(error) = self.clear_collision(writer, &plan).await {
                        writer.unanswered = Some((commit.number, plan));
                        return Err(error);
                    }
                }
                Sent::Impossible(reason) => {
                    return Err(CommitError::Stopped(prombus::Unavailable::Poisoned(reason)));
                }
            }
        }
        let reason = format!("a commit was sent {SENDS_MAX} times without success");
        self.availability.failed(&reason);
        Err(CommitError::Unreachable(reason))
    }

    /// Checks after a reconnect, possibly to another server, that this engine's newest commit is stored. If it is missing, the state in
    /// memory differs from the stored state, so the engine steps down. That can only happen with a write concern below a majority, or if
    /// an operator removes documents.
    async fn verify_last_fence(&self, writer: &Writer) -> Result<(), CommitError> {
        let last = writer.next_fence - 1;
        match self.attempt(self.find_fence(last)).await? {
            Some(found) if found.writer == self.writer_token => Ok(()),
            Some(_) => Err(CommitError::Deposed(self.leader_name().await)),
            None => Err(CommitError::Deposed(format!("commit {last} was lost in a failover of MongoDB"))),
        }
    }

    async fn plan(&self, writer: &Writer, commit: &PendingCommit) -> Result<Plan, CommitError> {
        let known = self.known_ids(commit, &writer.catalog).await?;
        let fence = Fence {
            number: writer.next_fence,
            term: self.term,
            writer: self.writer_token,
            ..Fence::default()
        };
        Ok(Plan::new(commit, fence, &writer.catalog, &known))
    }

    fn applied(&self, writer: &mut Writer, plan: Plan) -> Result<CommitAnswer, CommitError> {
        writer.next_fence = plan.fence.number + 1;
        self.usage.added(&plan.fence);
        let touched = writer
            .catalog
            .apply(&plan.fence, &plan.records)
            .map_err(|why| CommitError::Stopped(prombus::Unavailable::Poisoned(why)))?;
        self.derived.touch(touched, &writer.catalog);
        self.snapshots.note_commit(writer, &plan);
        Ok(plan.answer)
    }

    async fn send(&self, writer: &Writer, plan: &Plan) -> Sent {
        let command = BulkCommand {
            collection: self.collections.events.name(),
            write_concern: self.options.write_concern(),
            now_ms: self.clock.wall_ms(),
        };
        let mut bytes = plan.command(&command, &writer.catalog, false);
        if bytes.len() > MESSAGE_BYTES_MAX {
            bytes = plan.command(&command, &writer.catalog, true);
        }
        if bytes.len() > MESSAGE_BYTES_MAX {
            // The driver would split the bulk. Publishes are limited in size, so this does not happen.
            return Sent::Impossible(format!("a commit of {} bytes is too large for MongoDB", bytes.len()));
        }
        let bulk = match RawDocumentBuf::from_bytes(bytes) {
            Ok(bulk) => bulk,
            Err(error) => return Sent::Unknown { reason: error.to_string(), is_over: true },
        };
        self.bytes.fetch_add(bulk.as_bytes().len() as u64, Ordering::Relaxed);
        let sending = async {
            if bulk.as_bytes().len() <= COMMAND_BYTES_MAX {
                self.send_command(bulk).await
            } else {
                self.send_sequence(&bulk).await
            }
        };
        let timeout = ANSWER_TIMEOUT + Duration::from_millis(plan.fence.max_time_ms.into());
        match tokio::time::timeout(timeout, sending).await {
            Ok(sent) => sent,
            Err(_) => {
                let reason = format!("no answer from MongoDB within {} s", timeout.as_secs());
                Sent::Unknown { reason, is_over: false }
            }
        }
    }

    /// Sends a bulk as one document.
    async fn send_command(&self, bulk: RawDocumentBuf) -> Sent {
        match self.collections.database.run_raw_command(bulk).await {
            Ok(answer) => outcome_of(&answer),
            Err(error) => unknown(&error),
        }
    }

    /// Sends a bulk as a sequence of documents, if it does not fit one document.
    async fn send_sequence(&self, bulk: &RawDocument) -> Sent {
        let documents = bulk.get_array("documents").into_iter().flatten();
        let documents = documents.filter_map(|it| Some(it.ok()?.as_document()?.to_owned()));
        let documents: Vec<RawDocumentBuf> = documents.collect();
        let concern = self.options.driver_write_concern();
        let inserted =
            self.collections.events.insert_many(documents).ordered(true).write_concern(concern).await;
        let Err(error) = inserted else { return Sent::Applied };
        if let ErrorKind::InsertMany(failed) = &*error.kind
            && failed.write_concern_error.is_none()
            && let Some(first) = failed.write_errors.iter().flatten().next()
            && first.code == DUPLICATE_KEY
        {
            return if first.index == 0 { Sent::FenceTaken } else { Sent::Collided };
        }
        unknown(&error)
    }

    /// Finds out the outcome of a bulk.
    async fn resolve(&self, plan: Plan, is_over: bool) -> Result<Resolved, (Plan, CommitError)> {
        match self.try_resolve(&plan, is_over).await {
            Ok(Fate::Whole) => Ok(Resolved::Applied(plan)),
            Ok(Fate::NotThere) => Ok(Resolved::SendAgain(plan)),
            Ok(Fate::Void) => {
                let mut plan = plan;
                plan.renumber();
                Ok(Resolved::SendAgain(plan))
            }
            Err(error) => Err((plan, error)),
        }
    }

    async fn try_resolve(&self, plan: &Plan, is_over: bool) -> Result<Fate, CommitError> {
        let number = plan.fence.number;
        tracing::debug!("looking for commit {number}");
        match self.attempt(self.find_fence(number)).await? {
            Some(found) if found.writer == self.writer_token => {}
            Some(_) => return Err(CommitError::Deposed(self.leader_name().await)),
            None => {
                let newest = self.attempt(self.newest_fences(1)).await?;
                if newest.first().is_some_and(|newest| newest.number > number) {
                    return Err(CommitError::Deposed(self.leader_name().await));
                }
                return Ok(Fate::NotThere);
            }
        }
        // If the server may still be writing the bulk, it has the bulk's time limit to finish.
        let patience = if is_over { 0 } else { u64::from(plan.fence.max_time_ms) };
        let limit = removal_limit(&plan.fence) + Duration::from_millis(patience);
        self.attempt_within(limit, self.decide(&plan.fence, !is_over)).await
    }

    /// Resolves a collision with documents of an older commit, or with an id that a publisher chose and that the lookup did not find. Voids
    /// the bulk and removes the documents that older commits left in its ranges. The caller then plans the commit again.
    async fn clear_collision(&self, writer: &mut Writer, plan: &Plan) -> Result<(), CommitError> {
        tracing::warn!("commit {} collided with stored documents; it is sent again", plan.fence.number);
        let limit = removal_limit(&plan.fence);
        match self.attempt_within(limit, self.decide(&plan.fence, false)).await? {
            Fate::Void => {}
            Fate::NotThere => return Err(self.lost("the server changed its primary")),
            // Not possible: the server refused one of the documents, so it did not write the last one.
            Fate::Whole => return Err(self.lost("a refused commit is whole")),
        }
        self.attempt_within(limit, self.remove_strays(&plan.fence)).await?;
        writer.next_fence = plan.fence.number + 1;
        Ok(())
    }

    /// Runs a step of a commit. After a failure, the server counts as unreachable.
    async fn attempt<T>(
        &self,
        step: impl Future<Output = mongodb::error::Result<T>>,
    ) -> Result<T, CommitError> {
        self.attempt_within(ANSWER_TIMEOUT, step).await
    }

    async fn attempt_within<T>(
        &self,
        limit: Duration,
        step: impl Future<Output = mongodb::error::Result<T>>,
    ) -> Result<T, CommitError> {
        match tokio::time::timeout(limit, step).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(self.lost(&reason(&error))),
            Err(_) => Err(self.lost(&format!("no answer from MongoDB within {} s", limit.as_secs()))),
        }
    }

    /// Marks the server as unreachable. The commit is retried when the server can be reached again.
    fn lost(&self, reason: &str) -> CommitError {
        self.availability.failed(reason);
        CommitError::Unreachable(reason.to_owned())
    }
}

/// The result of resolving a bulk.
enum Resolved {
    /// The bulk is whole and durable.
    Applied(Plan),
    /// Nothing of the bulk counts: it must be sent again.
    SendAgain(Plan),
}

/// How long the removal of a commit's documents may take. It needs one delete per topic.
fn removal_limit(fence: &Fence) -> Duration {
    ANSWER_TIMEOUT + Duration::from_millis(20) * u32::try_from(fence.topics.len()).unwrap_or(u32::MAX)
}

/// Classifies an error of the driver, after which the outcome of a bulk is usually unknown.
fn unknown(error: &mongodb::error::Error) -> Sent {
    match &*error.kind {
        // The driver itself refused the command before sending it.
        ErrorKind::InvalidArgument { message, .. } => Sent::Impossible(message.clone()),
        _ => Sent::Unknown { reason: reason(error), is_over: is_answer(error) },
    }
}

/// Reads the response to an `insert` command.
fn outcome_of(answer: &Document) -> Sent {
    let text = |error: &Document| error.get_str("errmsg").unwrap_or("unknown error").to_owned();
    if let Some(error) = answer.get_array("writeErrors").ok().and_then(|errors| errors.first()?.as_document())
    {
        let code = error.get_i32("code").unwrap_or(0);
        return match error.get_i32("index") {
            Ok(0) if code == DUPLICATE_KEY => Sent::FenceTaken,
            Ok(_) if code == DUPLICATE_KEY => Sent::Collided,
            _ if code == TOO_LARGE => Sent::Impossible(text(error)),
            _ => Sent::Unknown { reason: text(error), is_over: true },
        };
    }
    if let Ok(error) = answer.get_document("writeConcernError") {
        return Sent::Unknown { reason: text(error), is_over: true };
    }
    Sent::Applied
}
