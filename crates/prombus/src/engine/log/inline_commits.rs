//! Commits and maintenance on the appending thread, for a log in memory, which has no disk to wait for and no threads.

use parking_lot::Mutex;
use prombus_log::{Log, Step};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The maximum number of maintenance steps per call. A batch that needs several segments takes far fewer.
const MAINTENANCE_STEPS_MAX: usize = 256;

#[derive(Default)]
pub(super) struct InlineCommits {
    /// Held by the thread that does the work.
    turn: Mutex<()>,
    /// The number of requests for work. A thread that finds the turn taken leaves its work to the holder, which checks this
    /// number again after it has released the turn.
    requests: AtomicU64,
}

impl InlineCommits {
    /// Commits all appends, prepares segments and frees retired ones. Returns whether there may be room now.
    ///
    /// Returns at once if another thread does the work, or if this thread does it further up the stack: a commit calls the
    /// observer, which may append.
    pub(super) fn run(&self, log: &Log) -> bool {
        self.run_with(|| run_steps(log))
    }

    /// Makes room for an append that found none. Does nothing while another thread works, or while this thread works further up
    /// the stack, because that work makes room already. It does not count as a request: otherwise a refused append of the
    /// observer would make the working thread retry without end.
    pub(super) fn make_room(&self, log: &Log) {
        if !self.turn.is_locked() {
            self.run(log);
        }
    }

    /// Runs `work`, which does everything that was requested before it began and returns whether there was anything to do.
    fn run_with(&self, mut work: impl FnMut() -> bool) -> bool {
        self.requests.fetch_add(1, Ordering::SeqCst);
        // Either this thread finds the turn free, or the holder sees the request.
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

/// Runs one commit, which includes all earlier appends, and maintenance steps until none has work left.
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
            // Reads the requests before the next one is made, like a thread that is at the end of its work.
            done = asked;
            if asked < 3 {
                asked += 1;
                assert!(commits.run_with(|| unreachable!("the turn is taken")), "the holder makes room");
            }
            false
        });
        assert_eq!((asked, done), (3, 3));
    }
}
