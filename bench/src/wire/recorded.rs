//! Helpers for tests of protocols on recorded bytes.

use prombus_bench::stamp::{Payload, Stamp};
use prombus_bench::wire::{Received, Wire};

/// A payload whose stamp has this number.
pub fn payload(bytes: usize, number: u64) -> Vec<u8> {
    Payload::new(bytes).stamped(Stamp { publisher: 0, number, due_ns: 5 }).to_vec()
}

/// Calls a test with the bytes split in two at every possible position.
pub fn cut_everywhere<W: Wire>(bytes: &[u8], test: impl Fn(&dyn Fn(&mut W) -> Received)) {
    for cut in 0..=bytes.len() {
        test(&|wire: &mut W| {
            let mut received = Received::default();
            let taken = wire.take(&bytes[..cut], &mut received).expect("the first part is fine");
            assert!(taken <= cut);
            let rest = wire.take(&bytes[taken..], &mut received).expect("the rest is fine");
            assert_eq!(taken + rest, bytes.len(), "all bytes are parsed when split at {cut}");
            received
        });
    }
}
