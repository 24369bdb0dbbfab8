//! Samples of the server's memory over time.

use crate::serving::mebibytes;

/// One sample per second.
#[derive(Default)]
pub(super) struct Samples(Vec<u64>);

struct Fifth {
    least: u64,
    median: u64,
    most: u64,
}

impl Samples {
    pub(super) fn add(&mut self, bytes: u64) {
        self.0.push(bytes);
    }

    fn fifths(&self) -> Vec<Fifth> {
        let length = self.0.len().div_ceil(5).max(1);
        let fifths = self.0.chunks(length).map(|samples| {
            let mut sorted = samples.to_vec();
            sorted.sort_unstable();
            Fifth { least: sorted[0], median: sorted[sorted.len() / 2], most: sorted[sorted.len() - 1] }
        });
        fifths.collect()
    }

    pub(super) fn print(&self, peak_bytes: u64) {
        println!("soak: memory of the server, least / median / most of each fifth of the run, in MiB:");
        for Fifth { least, median, most } in self.fifths() {
            println!("soak:   {:.1} / {:.1} / {:.1}", mebibytes(least), mebibytes(median), mebibytes(most));
        }
        println!("soak:   peak {:.1}", mebibytes(peak_bytes));
    }

    /// Checks that memory does not grow after the first fifth, in which caches fill.
    pub(super) fn check_flat(&self) {
        let fifths = self.fifths();
        let (second, last) = (fifths[1].median, fifths[fifths.len() - 1].median);
        assert!(last <= second + second / 4 + (32 << 20), "memory grows: from {second} to {last} bytes");
    }
}
