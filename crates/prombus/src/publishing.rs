//! [`Publishing`]: the future of a published batch, which resolves when the batch is durable.

use crate::box_future::BoxFuture;
use crate::commit_watch::CommitWatch;
use crate::deferred_wakes::wake;
use crate::engine::{Appended, LateOutcomes, Published};
use crate::error::{PublishError, Unavailable};
use crate::publish::PublishBatch;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The outcome of a publish: one entry per event.
pub(crate) type PublishResult = Result<Vec<Published>, PublishError>;

/// A batch that is being published. It is queued and becomes durable whether or not this future is awaited. The exception is
/// a full queue ([`is_in_line`](Self::is_in_line) is false): then the batch enters the queue only while this future is
/// awaited, and is not published if the future is dropped, which is logged.
#[must_use = "awaiting it waits until the events are durable"]
pub struct Publishing {
    stage: Stage,
}

enum Stage {
    Done(Option<PublishResult>),
    Committing {
        appended: AppendedEvents,
        commits: Arc<CommitWatch>,
    },
    /// In the queue, which advances when the engine has room.
    Queued {
        place: Arc<PlaceInLine>,
        line: Arc<dyn PublishLine>,
    },
    /// Not in the queue, because the queue is full.
    Outside {
        batch: PublishBatch,
        line: Arc<dyn PublishLine>,
    },
    Other(BoxFuture<'static, PublishResult>),
}

/// Events that the engine accepted.
#[derive(Debug)]
pub(crate) struct AppendedEvents {
    commit: u64,
    outcomes: Vec<Published>,
    late: Option<LateOutcomes>,
}

impl AppendedEvents {
    pub(crate) fn new(appended: Appended, outcomes: Vec<Published>) -> Self {
        Self { commit: appended.commit, outcomes, late: appended.late }
    }

    /// Takes the outcomes. Called when the commit has been reported as durable.
    fn take_outcomes(&mut self) -> PublishResult {
        match self.late.take() {
            Some(late) => {
                let outcomes = late.take();
                debug_assert!(
                    outcomes.is_ok(),
                    "a commit was reported although its events are not stored: {outcomes:?}"
                );
                Ok(outcomes?)
            }
            None => Ok(std::mem::take(&mut self.outcomes)),
        }
    }
}

/// A batch that waits in the queue.
#[derive(Debug)]
pub(crate) struct PlaceInLine {
    state: Mutex<PlaceState>,
}

#[derive(Debug)]
struct PlaceState {
    batch: Option<PublishBatch>,
    /// The events that the engine accepted, or why it refused them.
    result: Option<Result<AppendedEvents, PublishError>>,
    waker: Option<Waker>,
}

impl PlaceInLine {
    pub(crate) fn new(batch: PublishBatch) -> Self {
        Self { state: Mutex::new(PlaceState { batch: Some(batch), result: None, waker: None }) }
    }

    /// Takes the batch, for the thread that advances the queue.
    pub(crate) fn take_batch(&self) -> Option<PublishBatch> {
        self.state.lock().batch.take()
    }

    /// Puts the batch back, because the engine had no room for it.
    pub(crate) fn put_back(&self, batch: PublishBatch) {
        self.state.lock().batch = Some(batch);
    }

    pub(crate) fn finish(&self, result: Result<AppendedEvents, PublishError>) {
        let mut state = self.state.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    fn poll(&self, context: &Context<'_>) -> Option<Result<AppendedEvents, PublishError>> {
        let mut state = self.state.lock();
        if state.result.is_none() {
            state.waker = Some(context.waker().clone());
        }
        state.result.take()
    }
}

/// The queue in which batches wait for room in the engine.
pub(crate) trait PublishLine: Send + Sync {
    /// Appends a batch to the engine, or adds it to the queue if other batches wait or the engine has no room.
    fn enter(self: Arc<Self>, batch: PublishBatch) -> Publishing;
    /// Appends queued batches to the engine as long as it has room.
    fn advance(&self);
    /// Like [`advance`](Self::advance), but if another thread is advancing the queue, waits for it. Returns true if the
    /// queue is empty, and false if the engine has no room.
    fn append_line(&self) -> bool;
    fn commits(&self) -> &Arc<CommitWatch>;
}

impl Publishing {
    /// A publish that is done.
    pub fn done(result: Result<Vec<Published>, PublishError>) -> Self {
        Self { stage: Stage::Done(Some(result)) }
    }

    /// A publish of a backend in another crate.
    pub fn new(future: BoxFuture<'static, Result<Vec<Published>, PublishError>>) -> Self {
        Self { stage: Stage::Other(future) }
    }

    pub(crate) fn committing(appended: AppendedEvents, commits: Arc<CommitWatch>) -> Self {
        Self { stage: Stage::Committing { appended, commits } }
    }

    pub(crate) fn queued(place: Arc<PlaceInLine>, line: Arc<dyn PublishLine>) -> Self {
        Self { stage: Stage::Queued { place, line } }
    }

    pub(crate) fn outside(batch: PublishBatch, line: Arc<dyn PublishLine>) -> Self {
        Self { stage: Stage::Outside { batch, line } }
    }

    /// Whether the batch is in the queue, so that its order relative to later publishes is fixed. Otherwise it enters the
    /// queue while this future is awaited.
    pub fn is_in_line(&self) -> bool {
        !matches!(self.stage, Stage::Outside { .. })
    }

    /// The outcomes, if the engine has assigned them. They may be known before the events are durable.
    pub fn outcomes(&self) -> Option<&[Published]> {
        match &self.stage {
            Stage::Committing { appended, .. } if appended.late.is_none() => Some(&appended.outcomes),
            Stage::Done(Some(Ok(outcomes))) => Some(outcomes),
            _ => None,
        }
    }
}

impl Future for Publishing {
    type Output = PublishResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.stage {
                Stage::Done(result) => {
                    return Poll::Ready(result.take().unwrap_or(Err(Unavailable::Closed.into())));
                }
                Stage::Committing { appended, commits } => {
                    return commits.poll_durable(appended.commit, context).map(|durable| match durable {
                        Ok(()) => appended.take_outcomes(),
                        Err(reason) => Err(reason.into()),
                    });
                }
                Stage::Queued { place, line } => {
                    // Register first, then try: room that appears in between is not missed.
                    line.commits().register_for_room(context);
                    line.advance();
                    match place.poll(context) {
                        None => return Poll::Pending,
                        Some(Err(error)) => return Poll::Ready(Err(error)),
                        Some(Ok(appended)) => {
                            let commits = Arc::clone(line.commits());
                            self.stage = Stage::Committing { appended, commits };
                        }
                    }
                }
                Stage::Outside { batch, line } => {
                    line.commits().register_for_room(context);
                    line.advance();
                    let batch = std::mem::replace(batch, PublishBatch::new(0, 0));
                    let line = Arc::clone(line);
                    let mut next = line.enter(batch);
                    std::mem::swap(&mut self.stage, &mut next.stage);
                    // The replaced stage holds an empty batch; prevent the warning of `drop`.
                    next.stage = Stage::Done(None);
                    if matches!(self.stage, Stage::Outside { .. }) {
                        return Poll::Pending;
                    }
                }
                Stage::Other(future) => return future.as_mut().poll(context),
            }
        }
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        if let Stage::Outside { batch, .. } = &self.stage
            && !batch.is_empty()
        {
            tracing::warn!(
                "{} events were not published: the publish queue was full, and their future was dropped",
                batch.len()
            );
        }
    }
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Publishing({:?})", self.outcomes())
    }
}
