// SPDX-License-Identifier: Apache-2.0
//! Keys of items, chunks and episodes: independent uniform random numbers, drawn without
//! coordination.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Draws keys in `[0, 2^64 - 2]`, seeded by the operating system.
#[derive(Debug)]
pub struct KeyGenerator(SmallRng);

impl KeyGenerator {
    /// A generator with its own seed.
    pub fn new() -> Self {
        Self(SmallRng::from_os_rng())
    }

    /// The next key.
    pub fn next_key(&mut self) -> u64 {
        self.0.random_range(0..u64::MAX)
    }
}

impl Default for KeyGenerator {
    fn default() -> Self {
        Self::new()
    }
}
