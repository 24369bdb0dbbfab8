//! How old the events of a topic are at least, by a clock that never goes back.
//!
//! Commit times come from the wall clock and never fall. After the wall clock jumped forward and back, they stand still until it has
//! caught up, and say nothing of an event's age meanwhile. So the newest seq is noted from time to time: an event that was there when
//! a sample was taken is at least as old as the sample. Samples are in memory only; after a restart they begin again.

use crate::delivery::Millis;
use std::collections::VecDeque;

/// A sample is taken this many times within the shortest age of interest.
const SAMPLES_PER_AGE: u64 = 64;

/// The newest seqs of a topic at some times, by the steady clock.
#[derive(Debug, Default)]
pub(super) struct AgeSamples {
    samples: VecDeque<(Millis, u64)>,
}

impl AgeSamples {
    /// Notes that the newest seq of the topic is `last_seq` now. Ages from `shortest` to `longest` will be asked for.
    pub(super) fn note(&mut self, now: Millis, last_seq: u64, shortest: Millis, longest: Millis) {
        // Of those that are old enough for every question, the newest one answers.
        while let Some(&(at, _)) = self.samples.get(1)
            && now.saturating_sub(at) >= longest
        {
            self.samples.pop_front();
        }
        let is_due = self.samples.back().is_none_or(|&(at, seq)| {
            seq < last_seq && now.saturating_sub(at) >= (shortest / SAMPLES_PER_AGE).max(1)
        });
        if is_due {
            self.samples.push_back((now, last_seq));
        }
    }

    /// The newest seq that is known to be at least this old; zero when none is.
    pub(super) fn seq_of_age(&self, now: Millis, age: Millis) -> u64 {
        let old = self.samples.iter().take_while(|(at, _)| now.saturating_sub(*at) >= age);
        old.last().map_or(0, |&(_, seq)| seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_event_is_taken_for_older_than_it_is_and_none_for_much_younger() {
        let (age, longest) = (6_400, 20_000);
        let mut samples = AgeSamples::default();
        // One event every 10 ms.
        for now in (0..100_000).step_by(10) {
            let last_seq = now / 10;
            samples.note(now, last_seq, age, longest);
            for age in [age, longest] {
                let exact = now.saturating_sub(age) / 10;
                let known = samples.seq_of_age(now, age);
                assert!(known <= exact, "{known} at {now}, but {exact} is the oldest of {age} ms");
                assert!(known + 20 >= exact, "{known} at {now}, {exact} is {age} ms old");
            }
            assert!(samples.samples.len() < 300, "{} samples", samples.samples.len());
        }
    }

    #[test]
    fn a_topic_without_new_events_has_one_sample() {
        let mut samples = AgeSamples::default();
        (0..1_000).for_each(|now| samples.note(now * 1_000, 5, 60_000, 60_000));
        assert_eq!((samples.samples.len(), samples.seq_of_age(999_000, 60_000)), (1, 5));
        assert_eq!(samples.seq_of_age(50_000, 60_000), 0);
    }
}
