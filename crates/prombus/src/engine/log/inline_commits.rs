//! Runs commits and maintenance of a log in memory on the thread that appends. Such a log has no threads of its own, because it
//! never waits for a disk.

use parking_lot::Mutex;
use prombus_log::{Log, Step};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The maximum number of maintenance steps per call. Even a batch that needs several segments takes far fewer.
const MAINTENANCE_STEPS_MAX: usize = 256;

#[derive(Default)]
pub(super) struct InlineCommits {
    /// Held by the thread that does the work.
    turn: Mutex<()>,
    /// The number of requests for work. A thread that finds `turn` locked leaves its work to the thread that holds the lock,
    /// which checks this number again after it has released the lock.
    requests: AtomicU64,
}

impl InlineCommits {
    /// Commits all appends, prepares new segments, and frees those that are no longer needed. Returns whether there may be room
    /// now.
    ///
    /// Returns at once if another thread is doing this work, or if this thread is doing it further up the call stack: a commit
    /// calls the observer, which may append.
    pub(super) fn run(&self, log: &Log) -> bool {
        self.run_with(|| run_steps(log))
    }

    /// Makes room for an append that found none. Does nothing if another thread is doing the work, or this thread further up
    /// the call stack, because that work makes room already. In that case it does not count as a request: otherwise an append
    /// of the observer that is refused would make the working thread repeat its work without end.
    pub(super) fn make_room(&self, log: &Log) {
        if !self.turn.is_locked() {
            self.run(log);
        }
    }

    /// Runs `work` until no request is left. `work` does everything that was requested before it began, and returns whether
    /// there was anything to do.
    fn run_with(&self, mut work: impl FnMut() -> bool) -> bool {
        self.requests.fetch_add(1, Ordering::SeqCst);
        // With this fence, either this thread finds `turn` free, or the thread that holds it sees the request.
        fence(Ordering::SeqCst);
        let mut has_worked = false;
        loop {
            let Some(turn) = self.turn.try_lock() else { return true };
            let requests = self.requests.load(Ordering::SeqCst);
            has_worked |= work();
            drop(turn);
            fence(Ordering::SeqCst);
            if self.requests.load(Ordering::SeqCst) == requests {
                return has_worked;
            }
        }
    }
}

/// Runs one commit, which includes all earlier appends, and then maintenance steps until there is nothing left to do.
fn run_steps(log: &Log) -> bool {
    let mut has_worked = log.step_commit() == Step::Worked;
    for _ in 0..MAINTENANCE_STEPS_MAX {
        if log.step_housekeeping() != Step::Worked {
            break;
        }
        has_worked = true;
    }
    has_worked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_the_turn_does_the_work_that_others_request() {
        let commits = InlineCommits::default();
        let (mut asked, mut done) = (1, 0);
        commits.run_with(|| {
            // Like a thread at the end of its work: it has done all requests so far, and then another request is made.
            done = asked;
            if asked < 3 {
                asked += 1;
                assert!(
                    commits.run_with(|| unreachable!("the turn is taken")),
                    "the thread that holds the turn makes room"
                );
            }
            false
        });
        assert_eq!((asked, done), (3, 3));
    }
}
