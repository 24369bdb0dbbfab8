//! Random choices in addition to those that all tests share.

use crate::support::Random;

/// Additional random choices.
pub trait Choices {
    /// True in `percent` of a hundred cases.
    fn chance(&mut self, percent: u64) -> bool;

    /// One of these, if there is one.
    fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T>;

    /// One of these.
    fn one_of<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T;
}

impl Choices for Random {
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        (!choices.is_empty()).then(|| choices[self.below(choices.len() as u64) as usize])
    }

    fn one_of<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.below(N as u64) as usize]
    }
}
