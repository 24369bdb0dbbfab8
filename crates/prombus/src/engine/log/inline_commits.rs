//! Commits and maintenance on the thread that appends, for a log in memory: there is no disk to wait for, and no thread.

use parking_lot::Mutex;
use prombus_log::{Log, Step};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Steps of maintenance that one call does at most: a batch that needs several segments is far below it.
const MAINTENANCE_STEPS_MAX: usize = 256;

#[derive(Default)]
pub(super) struct InlineCommits {
    /// Held by the thread that works.
    turn: Mutex<()>,
    /// How often work was asked for. A thread that finds the turn taken leaves its work to the holder, which looks here again
    /// after it has released the turn.
    requests: AtomicU64,
}

impl InlineCommits {
    /// Commits everything that was appended, prepares segments and frees retired ones. Returns whether there may be room now.
    ///
    /// It returns at once if another thread is at work, or this one further up: a commit calls the observer, which may append.
    pub(super) fn run(&self, log: &Log) -> bool {
        self.run_with(|| run_steps(log))
    }

    /// Makes room for an append that found none. It does nothing while another thread is at work, or this one further up: that
    /// makes room, and an append that is refused leaves nothing to do. (If it asked for work here, a refused append of the
    /// observer would have the thread at work try again without end.)
    pub(super) fn make_room(&self, log: &Log) {
        if !self.turn.is_locked() {
            self.run(log);
        }
    }

    /// `work` does everything that was asked for before it began, and returns whether there was anything.
    fn run_with(&self, mut work: impl FnMut() -> bool) -> bool {
        self.requests.fetch_add(1, Ordering::SeqCst);
        // Either this thread sees that the turn is free, or the holder sees the request.
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

/// One commit has everything that was appended before it. Maintenance that did something is followed by a look at the next
/// piece.
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
    fn work_that_comes_while_the_turn_is_taken_is_done_by_its_holder() {
        let commits = InlineCommits::default();
        let (mut asked, mut done) = (1, 0);
        commits.run_with(|| {
            // What was asked for is read before the next append comes, as by a thread that is at the end of its work.
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
