// SPDX-License-Identifier: Apache-2.0
//! Selectors and their parameters, with their limits.

use reverb_base::{Error, Result};

/// A selector and its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SelectorConfig {
    /// The item that was inserted first.
    Fifo,
    /// The item that was inserted last.
    Lifo,
    /// Every item with the same probability.
    Uniform,
    /// Every step with the same probability: items in proportion to their number of steps.
    UniformOverSteps,
    /// Items in proportion to `priority ^ priority_exponent`; priority 0 weighs nothing.
    Prioritized {
        /// The exponent; 0 makes all items with a priority above 0 equally likely.
        priority_exponent: f64,
        /// How the items of a request depend on each other.
        draw: Draw,
    },
    /// The item of highest priority, or of lowest; ties go to the one inserted or updated first.
    Heap {
        /// Whether the lowest priority is chosen.
        min_heap: bool,
    },
    /// Every item once before any item again, in random order.
    Shuffle {
        /// Makes the order reproducible. If absent, it depends on the seed of the table.
        seed: Option<u64>,
    },
    /// The newest item, or one that was inserted before it: the k-th newest, from 0 on, in
    /// proportion to `(expected_age / (expected_age + 1)) ^ k`.
    Recent {
        /// The mean of `k` in a large table; finite and above 0.
        expected_age: f64,
    },
}

/// How the items of a request to a prioritized sampler depend on each other. Each of them has the
/// same probability in all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draw {
    /// Not at all.
    #[default]
    Independent,
    /// One from each of as many strata of equal weight as items are asked for.
    Stratified,
    /// At equal distances of weight, with one random offset.
    Systematic,
}

impl Draw {
    /// Its name: `stratified`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Independent => "independent",
            Self::Stratified => "stratified",
            Self::Systematic => "systematic",
        }
    }

    /// The one of a name.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if there is none.
    pub fn from_name(name: &str) -> Result<Self> {
        let all = [Self::Independent, Self::Stratified, Self::Systematic];
        all.into_iter().find(|draw| draw.name() == name).ok_or_else(|| {
            Error::invalid_argument(format!(
                "draw must be \"independent\", \"stratified\" or \"systematic\", got \"{name}\"."
            ))
        })
    }
}

impl SelectorConfig {
    /// A prioritized selector that draws independently.
    pub const fn prioritized(priority_exponent: f64) -> Self {
        Self::Prioritized { priority_exponent, draw: Draw::Independent }
    }

    /// The exponent of a prioritized selector.
    pub fn exponent(&self) -> Option<f64> {
        match *self {
            Self::Prioritized { priority_exponent, .. } => Some(priority_exponent),
            _ => None,
        }
    }

    /// Its parameters that can change: `priority_exponent`, `draw` and `expected_age`.
    pub(crate) fn parameters(&self) -> [Option<String>; 3] {
        match *self {
            Self::Prioritized { priority_exponent, draw } => {
                [Some(priority_exponent.to_string()), Some(draw.name().to_owned()), None]
            }
            Self::Recent { expected_age } => [None, None, Some(expected_age.to_string())],
            Self::Fifo
            | Self::Lifo
            | Self::Uniform
            | Self::UniformOverSteps
            | Self::Heap { .. }
            | Self::Shuffle { .. } => [None, None, None],
        }
    }

    /// Whether both differ in their parameters alone.
    pub fn is_of_kind(&self, other: &Self) -> bool {
        self.name() == other.name()
    }

    /// The selector as checkpoints have it: without its seed.
    #[must_use]
    pub fn without_seed(self) -> Self {
        match self {
            Self::Shuffle { .. } => Self::Shuffle { seed: None },
            other => other,
        }
    }

    /// Its name in texts: `min-heap`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Lifo => "lifo",
            Self::Uniform => "uniform",
            Self::UniformOverSteps => "uniform over steps",
            Self::Prioritized { .. } => "prioritized",
            Self::Heap { min_heap: true } => "min-heap",
            Self::Heap { min_heap: false } => "max-heap",
            Self::Shuffle { .. } => "shuffle",
            Self::Recent { .. } => "recent",
        }
    }

    /// Whether the choice depends on the items alone, and not on chance.
    pub fn is_deterministic(&self) -> bool {
        match self {
            Self::Fifo | Self::Lifo | Self::Heap { .. } => true,
            Self::Uniform
            | Self::UniformOverSteps
            | Self::Prioritized { .. }
            | Self::Shuffle { .. }
            | Self::Recent { .. } => false,
        }
    }

    /// How a group of servers samples with it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the table, for a selector that goes by all items of the table:
    /// no shard has them all.
    pub fn in_group(&self, table: &str) -> Result<GroupSampling> {
        let reason = match *self {
            Self::Fifo | Self::Lifo | Self::Heap { .. } => return Ok(GroupSampling::Ordered),
            Self::Uniform => return Ok(GroupSampling::Uniform),
            Self::UniformOverSteps => return Ok(GroupSampling::Steps),
            Self::Prioritized { priority_exponent, .. } => {
                return Ok(GroupSampling::Prioritized { exponent: priority_exponent });
            }
            Self::Shuffle { .. } => "an epoch would end at each shard on its own",
            Self::Recent { .. } => "a shard does not know how old its items are among all",
        };
        Err(Error::invalid_argument(format!(
            "The sampler of table {table} is {}, which a group of servers cannot have: {reason}. \
             Choose Uniform or Prioritized, or use one server.",
            self.name()
        )))
    }

    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the argument, its value and its limit.
    pub fn validate(&self) -> Result<()> {
        let problem = match *self {
            Self::Prioritized { priority_exponent, .. } => (!priority_exponent.is_finite())
                .then(|| format!("priority_exponent must be finite, got {priority_exponent}.")),
            Self::Recent { expected_age } => (!(expected_age > 0.0 && expected_age.is_finite()))
                .then(|| format!("expected_age must be finite and above 0, got {expected_age}.")),
            Self::Fifo
            | Self::Lifo
            | Self::Uniform
            | Self::UniformOverSteps
            | Self::Heap { .. }
            | Self::Shuffle { .. } => None,
        };
        problem.map_or(Ok(()), |text| Err(Error::invalid_argument(text)))
    }
}

/// How the shards of a group are sampled together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GroupSampling {
    /// Every item alike.
    Uniform,
    /// Every step alike.
    Steps,
    /// By `priority ** exponent`.
    Prioritized {
        /// Exponent of the priority.
        exponent: f64,
    },
    /// In some order. Each shard has its own.
    Ordered,
}

impl GroupSampling {
    /// The weight of an item, as far as it depends on the priority.
    pub fn weight(self, priority: f64) -> f64 {
        match self {
            Self::Prioritized { exponent } if priority > 0.0 => priority.powf(exponent),
            Self::Prioritized { .. } => 0.0,
            Self::Uniform | Self::Steps | Self::Ordered => 1.0,
        }
    }
}
