//! The way of a publish into the store, and the line in which it waits when there is no room.

use super::{LINE_BYTES_MAX, Local, PublishRefused};
use crate::error::Unavailable;
use crate::local::quiet::Quiet;
use crate::publish::{Line, Place, PublishBatch, Publishing};
use crate::store::CommitWatch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Line for Local {
    fn enter(self: Arc<Self>, batch: PublishBatch) -> Publishing {
        if self.is_closed() {
            return Publishing::done(Err(Unavailable::Closed.into()));
        }
        if batch.is_empty() {
            return Publishing::done(Ok(Vec::new()));
        }
        if !self.has_line() {
            match self.append(&batch) {
                Ok((number, outcomes)) => {
                    self.keep(batch);
                    return Publishing::committing(number, outcomes, Arc::clone(&self.watch));
                }
                Err(PublishRefused::Busy) => {}
                Err(PublishRefused::Failed(error)) => return Publishing::done(Err(error)),
            }
        }
        let mut line = self.line.lock();
        if !line.places.is_empty() && line.bytes + batch.byte_count() > LINE_BYTES_MAX {
            drop(line);
            return Publishing::outside(batch, self);
        }
        line.bytes += batch.byte_count();
        let place = Arc::new(Place::new(batch));
        line.places.push_back(Arc::clone(&place));
        self.line_length.store(line.places.len(), Ordering::SeqCst);
        drop(line);
        // For those that nobody awaits.
        self.timer.arm_flush(self.clock.steady_ms());
        Publishing::queued(place, self)
    }

    fn advance(&self) {
        if !self.has_line() {
            return;
        }
        let _quiet = Quiet::enter();
        // One at a time, in order; who finds it taken leaves it to the one who has it.
        let Some(_turn) = self.line_turn.try_lock() else { return };
        loop {
            let Some(place) = self.line.lock().places.front().cloned() else { return };
            let Some(batch) = place.take_batch() else { return };
            let result = match self.append(&batch) {
                Err(PublishRefused::Busy) => {
                    place.put_back(batch);
                    return;
                }
                Ok(appended) => Ok(appended),
                Err(PublishRefused::Failed(error)) => Err(error),
            };
            let mut line = self.line.lock();
            line.places.pop_front();
            line.bytes -= batch.byte_count();
            self.line_length.store(line.places.len(), Ordering::SeqCst);
            drop(line);
            self.keep(batch);
            place.finish(result);
        }
    }

    fn watch(&self) -> &Arc<CommitWatch> {
        &self.watch
    }
}
