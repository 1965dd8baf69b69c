// SPDX-License-Identifier: Apache-2.0
//! Selectors: choose the item to sample next, and the item to evict from a full table.
//!
//! A selector works on handles, the small numbers that address the items of a table.
//! `CONTRIBUTING.md` has the recipe for adding one.

use rand::rngs::SmallRng;
use reverb_base::{Error, Result};
use reverb_data::SelectorConfig;

mod at_end;
mod heap;
mod insertion_order;
mod ordered;
mod prioritized;
mod recent;
mod shuffle;
mod steps;
mod uniform;

use at_end::{Fifo, Lifo};
use heap::Heap;
use ordered::Ordered;
pub(crate) use prioritized::NewWeights;
use prioritized::Prioritized;
use recent::Recent;
pub(crate) use shuffle::Shuffle;
use steps::Steps;
use uniform::Uniform;

/// The address of an item in its table. Handles of removed items are reused.
pub(crate) type Handle = u32;

/// Checks a priority before it changes anything.
///
/// # Errors
///
/// `InvalidArgument` for NaN with every selector, and for a priority without a finite weight with
/// `Prioritized`.
pub(crate) fn check_priority(config: &SelectorConfig, priority: f64) -> Result<()> {
    if priority.is_nan() {
        return Err(Error::invalid_argument("Priority must not be NaN."));
    }
    match *config {
        SelectorConfig::Prioritized { priority_exponent, .. } => {
            prioritized::check_priority(priority, priority_exponent)
        }
        SelectorConfig::Fifo
        | SelectorConfig::Lifo
        | SelectorConfig::Uniform
        | SelectorConfig::UniformOverSteps
        | SelectorConfig::Heap { .. }
        | SelectorConfig::Shuffle { .. }
        | SelectorConfig::Recent { .. } => Ok(()),
    }
}

/// The item that a selector chose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pick {
    pub(crate) handle: Handle,
    /// Probability of this choice.
    pub(crate) probability: f64,
    /// Number of complete passes over all items, for a selector that makes passes.
    pub(crate) epoch: i64,
}

impl Pick {
    /// A choice with probability 1.
    fn certain(handle: Handle) -> Self {
        Self { handle, probability: 1.0, epoch: 0 }
    }
}

/// Item of the largest priority among the present items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Largest {
    /// The item with this handle.
    Item(Handle),
    /// No item has a priority above 0.
    Zero,
    /// Unknown without a search.
    Unknown,
}

/// Data that a selector needs to put a removed item back. Opaque to its callers.
pub(crate) type RestorePoint = u64;

/// The operations of a selector. Priorities were checked with [`check_priority`].
trait Select {
    /// Bytes of an item in this selector.
    const ITEM_BYTES: u64;

    /// Whether another choice is likely to be another item.
    const REPEATS: bool;

    /// Adds an item that is not present yet.
    fn insert(&mut self, handle: Handle, priority: f64);

    /// Removes an item that is present.
    fn remove(&mut self, handle: Handle);

    /// Data that [`Select::put_back`] needs to undo the removal of an item.
    fn restore_point(&self, _handle: Handle) -> RestorePoint {
        0
    }

    /// Undoes the last `remove`, without other operations in between. Several are undone in
    /// reverse.
    fn put_back(&mut self, handle: Handle, priority: f64, point: RestorePoint);

    /// Gives an item that is present a new priority, perhaps the same one again.
    fn update(&mut self, handle: Handle, priority: f64);

    /// Applies several updates in order.
    fn update_many(&mut self, updates: &[(Handle, f64)]) {
        for &(handle, priority) in updates {
            self.update(handle, priority);
        }
    }

    /// Chooses `count` times. Chooses nothing if there are no items.
    fn pick_many(&mut self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>);

    /// Takes the last choice back, for selectors with a memory. Several are taken back in reverse
    /// order. The item must be present.
    fn unpick(&mut self, _pick: Pick) {}

    /// The probability that one choice is this item, which is present.
    fn probability_of(&self, handle: Handle) -> f64;

    /// Smallest probability of an item now; 0 if weights should not be made relative to it, or if
    /// there are no items.
    fn min_probability(&self) -> f64;
}

/// Any selector. An enum, because it is called for every item and should be inlined.
#[derive(Debug)]
pub(crate) enum Selector {
    Fifo(Fifo),
    Lifo(Lifo),
    Uniform(Uniform),
    Steps(Steps),
    Prioritized(Prioritized),
    Heap(Heap),
    Shuffle(Shuffle),
    Recent(Recent),
    Ordered(Ordered),
}

/// Weights by which a selector chooses; those by age change with every insert.
enum Weights<'a> {
    OfPriorities(&'a Prioritized),
    OfSteps(&'a Steps),
    Equal,
    ByAge,
    InOrder,
}

macro_rules! dispatch {
    ($self:expr, $selector:ident => $call:expr) => {
        match $self {
            Selector::Fifo($selector) => $call,
            Selector::Lifo($selector) => $call,
            Selector::Uniform($selector) => $call,
            Selector::Steps($selector) => $call,
            Selector::Prioritized($selector) => $call,
            Selector::Heap($selector) => $call,
            Selector::Shuffle($selector) => $call,
            Selector::Recent($selector) => $call,
            Selector::Ordered($selector) => $call,
        }
    };
}

impl Selector {
    pub(crate) fn new(config: &SelectorConfig) -> Self {
        match *config {
            SelectorConfig::Fifo => Self::Fifo(Fifo::default()),
            SelectorConfig::Lifo => Self::Lifo(Lifo::default()),
            SelectorConfig::Uniform => Self::Uniform(Uniform::default()),
            SelectorConfig::UniformOverSteps => Self::Steps(Steps::default()),
            SelectorConfig::Prioritized { priority_exponent, draw } => {
                Self::Prioritized(Prioritized::new(priority_exponent, draw))
            }
            SelectorConfig::Heap { min_heap } => Self::Heap(Heap::new(min_heap)),
            SelectorConfig::Shuffle { seed } => Self::Shuffle(Shuffle::new(seed)),
            SelectorConfig::Recent { expected_age } => Self::Recent(Recent::new(expected_age)),
        }
    }

    /// The selector of a table whose items leave for a while: `Fifo` and `Lifo` go by order
    /// numbers.
    pub(crate) fn by_order(config: &SelectorConfig) -> Self {
        match config {
            SelectorConfig::Fifo => Self::Ordered(Ordered::new(false)),
            SelectorConfig::Lifo => Self::Ordered(Ordered::new(true)),
            other => Self::new(other),
        }
    }

    /// True if it gets order numbers instead of priorities.
    pub(crate) fn is_by_order(&self) -> bool {
        matches!(self, Self::Ordered(_))
    }

    /// Bytes of an item in this selector.
    pub(crate) fn item_bytes(&self) -> u64 {
        fn item_bytes<S: Select>(_: &S) -> u64 {
            S::ITEM_BYTES
        }
        dispatch!(self, selector => item_bytes(selector))
    }

    pub(crate) fn insert(&mut self, handle: Handle, priority: f64) {
        dispatch!(self, selector => selector.insert(handle, priority));
    }

    pub(crate) fn remove(&mut self, handle: Handle) {
        dispatch!(self, selector => selector.remove(handle));
    }

    /// The next choices in order, if each is removed. Empty where they are not known cheaply.
    pub(crate) fn upcoming(&self) -> impl Iterator<Item = Handle> {
        let known = match self {
            Self::Fifo(selector) => Some(selector.in_order()),
            Self::Lifo(_)
            | Self::Uniform(_)
            | Self::Steps(_)
            | Self::Prioritized(_)
            | Self::Heap(_)
            | Self::Shuffle(_)
            | Self::Recent(_)
            | Self::Ordered(_) => None,
        };
        known.into_iter().flatten()
    }

    pub(crate) fn restore_point(&self, handle: Handle) -> RestorePoint {
        dispatch!(self, selector => selector.restore_point(handle))
    }

    pub(crate) fn put_back(&mut self, handle: Handle, priority: f64, point: RestorePoint) {
        dispatch!(self, selector => selector.put_back(handle, priority, point));
    }

    pub(crate) fn update(&mut self, handle: Handle, priority: f64) {
        dispatch!(self, selector => selector.update(handle, priority));
    }

    pub(crate) fn update_many(&mut self, updates: &[(Handle, f64)]) {
        dispatch!(self, selector => selector.update_many(updates));
    }

    /// The selector that makes passes over all items, if it is one.
    pub(crate) fn as_shuffle(&mut self) -> Option<&mut Shuffle> {
        match self {
            Self::Shuffle(selector) => Some(selector),
            Self::Fifo(_)
            | Self::Lifo(_)
            | Self::Uniform(_)
            | Self::Steps(_)
            | Self::Prioritized(_)
            | Self::Heap(_)
            | Self::Recent(_)
            | Self::Ordered(_) => None,
        }
    }

    /// The weights by which it chooses.
    #[inline]
    fn weights(&self) -> Weights<'_> {
        match self {
            Self::Prioritized(selector) => Weights::OfPriorities(selector),
            Self::Steps(selector) => Weights::OfSteps(selector),
            Self::Uniform(_) => Weights::Equal,
            Self::Recent(_) => Weights::ByAge,
            Self::Fifo(_) | Self::Lifo(_) | Self::Heap(_) | Self::Shuffle(_) | Self::Ordered(_) => {
                Weights::InOrder
            }
        }
    }

    /// Sum of the weights of all items, if the selector has weights.
    pub(crate) fn mass(&self) -> Option<f64> {
        match self.weights() {
            Weights::OfPriorities(selector) => Some(selector.mass()),
            Weights::OfSteps(selector) => Some(selector.mass()),
            Weights::Equal | Weights::ByAge | Weights::InOrder => None,
        }
    }

    /// The item of the largest priority, if the selector knows it without a search.
    pub(crate) fn largest(&self) -> Largest {
        match self.weights() {
            Weights::OfPriorities(selector) => selector.largest(),
            Weights::OfSteps(_) | Weights::Equal | Weights::ByAge | Weights::InOrder => {
                Largest::Unknown
            }
        }
    }

    /// Sets other parameters of the same kind of selector. A prioritized selector keeps its
    /// weights, which [`Self::swap_weights`] exchanges.
    pub(crate) fn configure(&mut self, config: &SelectorConfig) {
        match (self, config) {
            (Self::Prioritized(selector), SelectorConfig::Prioritized { draw, .. }) => {
                selector.set_draw(*draw);
            }
            (Self::Recent(selector), SelectorConfig::Recent { expected_age }) => {
                selector.set_expected_age(*expected_age);
            }
            (Self::Prioritized(_) | Self::Recent(_), _) => debug_assert!(false, "another kind"),
            // They have no parameter that can change.
            (
                Self::Fifo(_)
                | Self::Lifo(_)
                | Self::Uniform(_)
                | Self::Steps(_)
                | Self::Heap(_)
                | Self::Shuffle(_)
                | Self::Ordered(_),
                _,
            ) => {}
        }
    }

    /// True if it weighs items by their numbers of steps, which it gets instead of priorities.
    pub(crate) fn is_over_steps(&self) -> bool {
        matches!(self.weights(), Weights::OfSteps(_))
    }

    /// True if an item's weight changes only with the item, or with [`Self::weights_version`].
    pub(crate) fn has_own_weights(&self) -> bool {
        !matches!(self.weights(), Weights::ByAge | Weights::InOrder)
    }

    /// Changes whenever the weights of all items change at once.
    pub(crate) fn weights_version(&self) -> u64 {
        match self.weights() {
            Weights::OfPriorities(selector) => selector.weights_version(),
            Weights::OfSteps(_) | Weights::Equal | Weights::ByAge | Weights::InOrder => 0,
        }
    }

    /// Weight of a present item that has this many windows, if the selector has own weights.
    #[inline]
    pub(crate) fn weight_for_windows(&self, handle: Handle, num_windows: u32) -> f64 {
        match self.weights() {
            Weights::OfPriorities(selector) => selector.weight_of(handle),
            Weights::OfSteps(_) => f64::from(num_windows),
            Weights::Equal | Weights::ByAge | Weights::InOrder => 1.0,
        }
    }

    /// True if the next choice is certain, or one of an order: nothing else can be chosen instead.
    pub(crate) fn is_ordered(&self) -> bool {
        matches!(self.weights(), Weights::InOrder)
    }

    /// True if the items of a request depend on their number, so they are chosen in one call.
    pub(crate) fn chooses_together(&self) -> bool {
        matches!(self.weights(), Weights::OfPriorities(selector) if selector.chooses_together())
    }

    pub(crate) fn unpick(&mut self, pick: Pick) {
        dispatch!(self, selector => selector.unpick(pick));
    }

    pub(crate) fn probability_of(&self, handle: Handle) -> f64 {
        dispatch!(self, selector => selector.probability_of(handle))
    }

    /// True if another choice is likely to be another item.
    pub(crate) fn repeats(&self) -> bool {
        fn repeats<S: Select>(_: &S) -> bool {
            S::REPEATS
        }
        dispatch!(self, selector => repeats(selector))
    }

    pub(crate) fn min_probability(&self) -> f64 {
        dispatch!(self, selector => selector.min_probability())
    }

    /// Exchanges the weights of a prioritized selector; returns the old ones for freeing.
    pub(crate) fn swap_weights(&mut self, new: NewWeights) -> NewWeights {
        let Self::Prioritized(selector) = self else { return new };
        selector.swap_weights(new)
    }

    pub(crate) fn pick_many(&mut self, rng: &mut SmallRng, count: usize, picks: &mut Vec<Pick>) {
        dispatch!(self, selector => selector.pick_many(rng, count, picks));
    }
}

/// Grows a list of per-handle entries so that it includes `handle`.
fn ensure<T: Clone>(entries: &mut Vec<T>, handle: Handle, fill: T) {
    let needed = handle as usize + 1;
    if entries.len() < needed {
        entries.resize(needed, fill);
    }
}
