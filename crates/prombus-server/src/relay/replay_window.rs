//! Remembers used prefaces: a window of counters for each follower.

use super::preface::{Nonce, PrefaceRefused};
use std::collections::HashMap;

/// An unused counter is accepted if it is above the highest used counter minus this number. It need not be the highest, because
/// connections that are opened at the same time arrive in any order. If a counter is too low, the follower retries with a new
/// one.
const WINDOW: u64 = 4096;
const WORDS: usize = (WINDOW / 64) as usize;
/// Maximum number of remembered followers. Only holders of the secret are remembered; each has a new id after a restart and in
/// each term. Beyond the maximum, the follower whose last preface is the oldest is forgotten.
const FOLLOWERS_MAX: usize = 1024;

/// The counters of all followers of a term.
#[derive(Default)]
pub(super) struct ReplayWindows {
    followers: HashMap<[u8; 16], FollowerWindow>,
    /// Counts prefaces, to find the follower whose last preface is the oldest.
    prefaces: u64,
}

struct FollowerWindow {
    /// The highest counter that was used.
    highest: u64,
    /// One bit for each counter of the window, at the counter modulo [`WINDOW`].
    used: Box<[u64; WORDS]>,
    /// The value of [`ReplayWindows::prefaces`] at the follower's last preface.
    last_preface: u64,
}

impl ReplayWindows {
    /// Marks a nonce as used. Refuses a nonce that was already used, or whose counter is below the window.
    pub(super) fn use_once(&mut self, nonce: Nonce) -> Result<(), PrefaceRefused> {
        self.prefaces += 1;
        if !self.followers.contains_key(&nonce.follower) && self.followers.len() >= FOLLOWERS_MAX {
            let silent = self.followers.iter().min_by_key(|(_, window)| window.last_preface);
            if let Some(silent) = silent.map(|(follower, _)| *follower) {
                self.followers.remove(&silent);
            }
        }
        let window = self.followers.entry(nonce.follower).or_insert_with(FollowerWindow::new);
        window.last_preface = self.prefaces;
        window.use_once(nonce.counter)
    }
}

impl FollowerWindow {
    fn new() -> Self {
        Self { highest: 0, used: Box::new([0; WORDS]), last_preface: 0 }
    }

    fn use_once(&mut self, counter: u64) -> Result<(), PrefaceRefused> {
        if self.highest.saturating_sub(counter) >= WINDOW {
            return Err(PrefaceRefused::TooOld);
        }
        if counter > self.highest {
            // The counters that enter the window reuse the bits of those that leave it.
            let entering = (counter - self.highest).min(WINDOW);
            (0..entering).for_each(|back| self.set(counter - back, false));
            self.highest = counter;
        }
        if self.is_set(counter) {
            return Err(PrefaceRefused::Replayed);
        }
        self.set(counter, true);
        Ok(())
    }

    fn place(counter: u64) -> (usize, u64) {
        let at = counter % WINDOW;
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn is_set(&self, counter: u64) -> bool {
        let (word, bit) = Self::place(counter);
        self.used[word] & bit != 0
    }

    fn set(&mut self, counter: u64, is_used: bool) {
        let (word, bit) = Self::place(counter);
        if is_used {
            self.used[word] |= bit;
        } else {
            self.used[word] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn nonce(follower: u32, counter: u64) -> Nonce {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&follower.to_be_bytes());
        Nonce { follower: id, counter }
    }

    #[test]
    fn a_counter_works_once_in_any_order_within_the_window() {
        let mut windows = ReplayWindows::default();
        for counter in [0, 5, 3, WINDOW, 1, 4, WINDOW + 2] {
            assert_eq!(windows.use_once(nonce(1, counter)), Ok(()), "{counter}");
            assert_eq!(windows.use_once(nonce(1, counter)), Err(PrefaceRefused::Replayed), "{counter}");
        }
        assert_eq!(windows.use_once(nonce(1, 2)), Err(PrefaceRefused::TooOld));
        assert_eq!(windows.use_once(nonce(2, 2)), Ok(()), "another follower");
        assert_eq!(windows.use_once(nonce(1, u64::MAX)), Ok(()));
        assert_eq!(windows.use_once(nonce(1, u64::MAX)), Err(PrefaceRefused::Replayed));
        assert_eq!(windows.use_once(nonce(1, WINDOW + 3)), Err(PrefaceRefused::TooOld));
    }

    #[test]
    fn the_window_agrees_with_a_set_of_all_counters() {
        let seed = std::env::var("PROMBUS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(17u64);
        println!("PROMBUS_SEED={seed}");
        let mut state = seed | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let (mut windows, mut used, mut highest) = (ReplayWindows::default(), HashSet::new(), 0u64);
        for _ in 0..100_000 {
            let jump = if random(50) == 0 { 3 * WINDOW } else { 8 };
            let counter = (highest + random(jump)).saturating_sub(random(WINDOW + 100));
            let is_in_window = highest.saturating_sub(counter) < WINDOW;
            let expected = match (is_in_window, used.contains(&counter)) {
                (false, _) => Err(PrefaceRefused::TooOld),
                (true, true) => Err(PrefaceRefused::Replayed),
                (true, false) => Ok(()),
            };
            assert_eq!(windows.use_once(nonce(1, counter)), expected, "{counter} after {highest}");
            used.insert(counter);
            highest = highest.max(counter);
        }
    }

    #[test]
    fn the_number_of_followers_is_bounded_and_silent_ones_are_forgotten() {
        let mut windows = ReplayWindows::default();
        for follower in 0..3 * FOLLOWERS_MAX as u32 {
            assert_eq!(windows.use_once(nonce(follower, 1)), Ok(()));
            assert_eq!(windows.use_once(nonce(0, u64::from(follower) + 2)), Ok(()), "it is never silent");
        }
        assert_eq!(windows.followers.len(), FOLLOWERS_MAX);
        assert_eq!(windows.use_once(nonce(0, 2)), Err(PrefaceRefused::Replayed));
    }
}
