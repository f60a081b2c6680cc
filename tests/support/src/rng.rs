//! The random source of the tests that make up their cases, and how many the environment wants.

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// A random source whose whole course is one seed and the number of the case.
#[derive(Debug)]
pub struct Dice(TestRng);

impl Dice {
    /// The source of this case.
    pub fn new(seed: u64, case: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&case.to_le_bytes());
        Dice(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// A number from 0 to `end`, which is not among them.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }

    /// True in so many of a hundred throws.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// Says which case it was if a test goes down with it.
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

/// A number that the environment may set: a seed, or how many cases.
pub fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value:?}")))
}
