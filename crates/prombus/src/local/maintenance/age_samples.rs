//! Determines which events of a topic have at least a certain age, by the steady clock, which never goes back.
//!
//! Commit times come from the wall clock and never decrease. If the wall clock jumps forward and back, new events get the same
//! commit time until the clock has caught up, and that time says nothing about their age. So the newest seq is sampled from time
//! to time: an event that existed when a sample was taken is at least as old as the sample. Samples are in memory only and start
//! over after a restart.

use crate::delivery::Millis;
use std::collections::VecDeque;

/// The number of samples that are taken within the shortest age that is queried.
const SAMPLES_PER_AGE: u64 = 64;

/// The newest seqs of a topic at certain times, by the steady clock.
#[derive(Debug, Default)]
pub(super) struct AgeSamples {
    /// The times and the newest seqs at these times, the oldest first.
    samples: VecDeque<(Millis, u64)>,
}

impl AgeSamples {
    /// Records that the newest seq of the topic is `last_seq` now. Queries will be for ages from `shortest` to `longest`.
    pub(super) fn note(&mut self, now: Millis, last_seq: u64, shortest: Millis, longest: Millis) {
        // Of the samples that are at least as old as the longest queried age, only the newest is needed.
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

    /// The highest seq whose event is known to be at least this old; zero if none is known.
    pub(super) fn seq_of_age(&self, now: Millis, age: Millis) -> u64 {
        let old = self.samples.iter().take_while(|(at, _)| now.saturating_sub(*at) >= age);
        old.last().map_or(0, |&(_, seq)| seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_never_overestimated_and_only_slightly_underestimated() {
        let (age, longest) = (6_400, 20_000);
        let mut samples = AgeSamples::default();
        // One event every 10 ms.
        for now in (0..100_000).step_by(10) {
            let last_seq = now / 10;
            samples.note(now, last_seq, age, longest);
            for age in [age, longest] {
                let exact = now.saturating_sub(age) / 10;
                let known = samples.seq_of_age(now, age);
                assert!(known <= exact, "at {now}: seq {known} is not yet {age} ms old, only up to {exact}");
                assert!(
                    known + 20 >= exact,
                    "at {now}: seq {exact} is {age} ms old, but only {known} is known"
                );
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
