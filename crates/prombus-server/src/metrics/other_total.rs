//! Sums counters of names without a label of their own, so that the sum never decreases: Prometheus would read a decrease as a
//! restart of the counter, and count the whole sum again.

use prombus::delivery::GroupCounters;
use std::collections::HashMap;

/// One or several counters.
pub(super) trait Counts: Copy + Default {
    /// Adds the increase from `before` to `now`. A decrease counts as no increase.
    fn add_increase(&mut self, before: &Self, now: &Self);
}

impl Counts for u64 {
    fn add_increase(&mut self, before: &Self, now: &Self) {
        *self += now.saturating_sub(*before);
    }
}

impl Counts for GroupCounters {
    fn add_increase(&mut self, before: &Self, now: &Self) {
        let (mut before, mut now) = (*before, *now);
        for ((sum, before), now) in each(self).into_iter().zip(each(&mut before)).zip(each(&mut now)) {
            sum.add_increase(before, now);
        }
    }
}

/// Each counter of a group.
fn each(counters: &mut GroupCounters) -> [&mut u64; 13] {
    let GroupCounters {
        delivered,
        acked,
        nacked,
        expired,
        lost,
        redelivered_expired,
        redelivered_nacked,
        redelivered_lost,
        redelivered_restarted,
        stale,
        dead_lettered,
        passed_over,
        missed,
    } = counters;
    [
        delivered,
        acked,
        nacked,
        expired,
        lost,
        redelivered_expired,
        redelivered_nacked,
        redelivered_lost,
        redelivered_restarted,
        stale,
        dead_lettered,
        passed_over,
        missed,
    ]
}

/// The sum of the counters of all names that ever had no label of their own. It contains what was counted while they had none,
/// and also while they exist no more.
#[derive(Debug, Default)]
pub(super) struct OtherTotal<C> {
    sum: C,
    /// The value of each name at the last scrape, and the number of that scrape. Only names that exist.
    last: HashMap<String, (C, u64)>,
    scrape: u64,
    /// Whether there ever was such a name.
    has_any: bool,
    /// Whether the values of the first call of [`add`](Self::add) are not counted.
    is_relative: bool,
}

impl<C: Counts> OtherTotal<C> {
    /// For counters that continue after a restart of the process, while the sum begins at zero: it contains only what was counted
    /// since the first call of [`add`](Self::add).
    pub(super) fn relative() -> Self {
        Self { is_relative: true, ..Self::default() }
    }

    /// Adds what the counters of these names, all that have no label of their own, have gained since the last scrape. Returns the
    /// sum; `None` if there never was such a name.
    pub(super) fn add<'a>(&mut self, values: impl Iterator<Item = (&'a str, C)>) -> Option<C> {
        self.scrape += 1;
        let zero = C::default();
        for (name, now) in values {
            match self.last.get_mut(name) {
                Some((before, scrape)) => {
                    self.sum.add_increase(before, &now);
                    (*before, *scrape) = (now, self.scrape);
                }
                None => {
                    let is_base = self.is_relative && self.scrape == 1;
                    self.sum.add_increase(if is_base { &now } else { &zero }, &now);
                    self.last.insert(name.to_owned(), (now, self.scrape));
                    self.has_any = true;
                }
            }
        }
        self.last.retain(|_, (_, scrape)| *scrape == self.scrape);
        self.has_any.then_some(self.sum)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.last.len()
    }
}
