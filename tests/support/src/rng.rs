//! The random source of the tests that generate their cases, and the settings for them in the
//! environment.

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// A random source that is determined by a seed and the number of the case.
#[derive(Debug)]
pub struct Dice(TestRng);

impl Dice {
    /// Creates the random source of this case.
    pub fn new(seed: u64, case: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&case.to_le_bytes());
        Dice(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// Returns a number from 0 to `end`, exclusive.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// Returns true with a probability of `percent`.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns one of these values.
    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Prints the seed and the case when it is dropped during a panic.
#[derive(Debug)]
pub struct Shown {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the case.
    pub case: u64,
}

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, case {}", self.seed, self.case);
        }
    }
}

/// Returns a number from an environment variable, if it is set: a seed, or the number of cases.
pub fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}
