// SPDX-License-Identifier: Apache-2.0
//! Selectors, rate limiters and tables, for Python.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_data::{
    Draw, Error, MaxPriority, MemoryConfig, RateLimiterConfig, SelectorConfig, TableConfig,
    WhenFull,
};
use reverb_engine::Table as Engine;
use reverb_wire::convert::table_config::{from_selector, to_signature};
use reverb_wire::convert::table_info::from_table_info;
use reverb_wire::generated::tensorflow::StructuredValue;

use crate::error::OrRaise;
use crate::process::Origin;

/// A selector of items. Each object serves one purpose in one table.
#[pyclass(frozen, subclass, module = "reverb.core._native")]
pub(crate) struct ItemSelector {
    config: SelectorConfig,
    taken: AtomicBool,
}

impl ItemSelector {
    fn new(config: SelectorConfig) -> Self {
        Self { config, taken: AtomicBool::new(false) }
    }

    fn take(&self, purpose: &str) -> PyResult<SelectorConfig> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid_argument(format!(
                "{purpose} is a selector object that is already in use; every table needs its own for sampling and for \
                 removing. Make a new one: {}",
                self.__repr__()
            )))
            .or_raise();
        }
        Ok(self.config)
    }
}

#[pymethods]
impl ItemSelector {
    fn __repr__(&self) -> String {
        selector_text(self.config)
    }

    /// A serialized `KeyDistributionOptions`.
    fn to_options<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &from_selector(self.config).encode_to_vec())
    }
}

macro_rules! selector_without_arguments {
    ($(#[$doc:meta])* $name:ident, $config:expr) => {
        $(#[$doc])*
        #[pyclass(frozen, extends = ItemSelector, module = "reverb.core._native")]
        pub(crate) struct $name;

        #[pymethods]
        impl $name {
            #[new]
            fn new() -> PyClassInitializer<Self> {
                PyClassInitializer::from(ItemSelector::new($config)).add_subclass(Self)
            }
        }
    };
}

selector_without_arguments!(
    /// Selects the item that was inserted first.
    FifoSelector,
    SelectorConfig::Fifo
);
selector_without_arguments!(
    /// Selects the item that was inserted last.
    LifoSelector,
    SelectorConfig::Lifo
);
selector_without_arguments!(
    /// Selects any item with equal probability.
    UniformSelector,
    SelectorConfig::Uniform
);

/// Selects item i with probability `p_i^e / sum_k p_k^e`.
#[pyclass(frozen, extends = ItemSelector, module = "reverb.core._native")]
pub(crate) struct PrioritizedSelector;

#[pymethods]
impl PrioritizedSelector {
    #[new]
    #[pyo3(signature = (priority_exponent, *, draw = "independent"))]
    fn new(priority_exponent: f64, draw: &str) -> PyResult<PyClassInitializer<Self>> {
        let draw = Draw::from_name(draw).or_raise()?;
        let config = SelectorConfig::Prioritized { priority_exponent, draw };
        config.validate().or_raise()?;
        Ok(PyClassInitializer::from(ItemSelector::new(config)).add_subclass(Self))
    }
}

/// Selects the item with the lowest or the highest priority.
#[pyclass(frozen, extends = ItemSelector, module = "reverb.core._native")]
pub(crate) struct HeapSelector;

#[pymethods]
impl HeapSelector {
    #[new]
    #[pyo3(signature = (min_heap))]
    fn new(min_heap: bool) -> PyClassInitializer<Self> {
        PyClassInitializer::from(ItemSelector::new(SelectorConfig::Heap { min_heap }))
            .add_subclass(Self)
    }
}

/// Selects every item once before any item again.
#[pyclass(frozen, extends = ItemSelector, module = "reverb.core._native")]
pub(crate) struct ShuffleSelector;

#[pymethods]
impl ShuffleSelector {
    #[new]
    #[pyo3(signature = (seed = None))]
    fn new(seed: Option<u64>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(ItemSelector::new(SelectorConfig::Shuffle { seed }))
            .add_subclass(Self)
    }
}

/// Selects newer items more often.
#[pyclass(frozen, extends = ItemSelector, module = "reverb.core._native")]
pub(crate) struct RecentSelector;

#[pymethods]
impl RecentSelector {
    #[new]
    #[pyo3(signature = (expected_age))]
    fn new(expected_age: f64) -> PyResult<PyClassInitializer<Self>> {
        let config = SelectorConfig::Recent { expected_age };
        config.validate().or_raise()?;
        Ok(PyClassInitializer::from(ItemSelector::new(config)).add_subclass(Self))
    }
}

fn selector_text(config: SelectorConfig) -> String {
    match config {
        SelectorConfig::Fifo => "FifoSelector".to_owned(),
        SelectorConfig::Lifo => "LifoSelector".to_owned(),
        SelectorConfig::Uniform => "UniformSelector".to_owned(),
        SelectorConfig::Prioritized { priority_exponent, draw: Draw::Independent } => {
            format!("PrioritizedSelector(priority_exponent={priority_exponent})")
        }
        SelectorConfig::Prioritized { priority_exponent, draw } => {
            let draw = draw.name();
            format!("PrioritizedSelector(priority_exponent={priority_exponent}, draw='{draw}')")
        }
        SelectorConfig::Shuffle { seed: None } => "ShuffleSelector()".to_owned(),
        SelectorConfig::Shuffle { seed: Some(seed) } => format!("ShuffleSelector(seed={seed})"),
        SelectorConfig::Recent { expected_age } => {
            format!("RecentSelector(expected_age={expected_age})")
        }
        SelectorConfig::Heap { min_heap } => {
            format!("HeapSelector(sign={})", if min_heap { 1 } else { -1 })
        }
    }
}

fn rate_limiter_text(config: &RateLimiterConfig) -> String {
    format!(
        "RateLimiter(samples_per_insert={}, min_diff_={}, max_diff={}, min_size_to_sample={})",
        short(config.samples_per_insert),
        short(config.min_diff),
        short(config.max_diff),
        config.min_size_to_sample,
    )
}

fn parse_when_full(word: &str) -> PyResult<WhenFull> {
    match word {
        "remove" => Ok(WhenFull::Remove),
        "wait" => Ok(WhenFull::Wait),
        other => Err(Error::invalid_argument(format!(
            "when_full must be \"remove\" or \"wait\", got \"{other}\""
        )))
        .or_raise(),
    }
}

fn parse_max_priority(word: &str) -> PyResult<MaxPriority> {
    match word {
        "present" => Ok(MaxPriority::Present),
        "ever" => Ok(MaxPriority::Ever),
        other => Err(Error::invalid_argument(format!(
            "max_priority must be \"present\" or \"ever\", got \"{other}\""
        )))
        .or_raise(),
    }
}

/// A number in few digits: "no limit" is the largest double, which has 309 digits.
fn short(value: f64) -> String {
    if value.abs() < 1e15 { value.to_string() } else { format!("{value:.5e}") }
}

/// Conditions under which a table allows inserts and samples.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct RateLimiter {
    config: RateLimiterConfig,
    table: Mutex<Weak<Engine>>,
}

#[pymethods]
impl RateLimiter {
    #[new]
    #[pyo3(signature = (samples_per_insert, min_size_to_sample, min_diff, max_diff))]
    fn new(
        samples_per_insert: f64,
        min_size_to_sample: i64,
        min_diff: f64,
        max_diff: f64,
    ) -> PyResult<Self> {
        let config =
            RateLimiterConfig { samples_per_insert, min_size_to_sample, min_diff, max_diff };
        config.validate().or_raise()?;
        Ok(Self { config, table: Mutex::new(Weak::new()) })
    }

    fn __repr__(&self) -> String {
        rate_limiter_text(&self.config)
    }
}

/// A table of items.
#[pyclass(frozen, module = "reverb.core._native")]
pub(crate) struct Table {
    /// Replaced when a checkpoint is restored with its settings.
    engine: Mutex<Arc<Engine>>,
    /// Set permanently by the server that claims the table: a closed table cannot be reopened.
    served: AtomicBool,
    origin: Origin,
}

impl Table {
    pub(crate) fn engine(&self) -> PyResult<Arc<Engine>> {
        self.origin.check("Table").or_raise()?;
        Ok(self.current())
    }

    fn current(&self) -> Arc<Engine> {
        Arc::clone(&self.engine.lock())
    }

    /// Replaces the table by another one of the same name.
    pub(crate) fn replace_engine(&self, engine: &Arc<Engine>) {
        *self.engine.lock() = Arc::clone(engine);
    }

    /// Claims the table for a server.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if a server has or had it.
    pub(crate) fn claim(&self) -> PyResult<()> {
        if self.served.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid_argument(format!(
                "table '{}' was given to a server before; a table serves once. Make a new one, or an empty copy with \
                 Table.replace().",
                self.current().name()
            )))
            .or_raise();
        }
        Ok(())
    }

    /// Releases the table, because its server could not start.
    pub(crate) fn release(&self) {
        self.served.store(false, Ordering::Release);
    }
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (
        name, *, sampler, remover, max_size, max_times_sampled, rate_limiter, signature, seed,
        max_bytes, when_full, max_priority
    ))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        name: String,
        sampler: &Bound<'_, ItemSelector>,
        remover: &Bound<'_, ItemSelector>,
        max_size: i64,
        max_times_sampled: i32,
        rate_limiter: &Bound<'_, RateLimiter>,
        signature: Option<&[u8]>,
        seed: Option<u64>,
        max_bytes: Option<u64>,
        when_full: &str,
        max_priority: &str,
    ) -> PyResult<Self> {
        let limiter = rate_limiter.get();
        let mut owner = limiter.table.lock();
        if let Some(table) = owner.upgrade() {
            return Err(Error::invalid_argument(format!(
                "rate_limiter already belongs to table '{}'; every table needs its own",
                table.name()
            )))
            .or_raise();
        }
        let signature = match signature {
            None => None,
            Some(encoded) => {
                let value = StructuredValue::decode(encoded).map_err(|error| {
                    Error::invalid_argument(format!(
                        "signature is not a StructuredValue message: {error}"
                    ))
                });
                Some(to_signature(&value.or_raise()?).or_raise()?)
            }
        };
        let config = TableConfig {
            name,
            sampler: sampler.get().take("sampler")?,
            remover: remover.get().take("remover")?,
            max_size,
            max_times_sampled,
            rate_limiter: limiter.config,
            signature,
            seed,
            memory: MemoryConfig { max_bytes, when_full: parse_when_full(when_full)? },
            max_priority: parse_max_priority(max_priority)?,
        };
        let engine = Engine::new(config).or_raise()?;
        *owner = Arc::downgrade(&engine);
        let engine = Mutex::new(engine);
        Ok(Self { engine, served: AtomicBool::new(false), origin: Origin::here() })
    }

    fn name(&self) -> String {
        self.current().name().to_owned()
    }

    #[pyo3(signature = (num_samples))]
    fn can_sample(&self, num_samples: i64) -> PyResult<bool> {
        self.engine()?.can_sample(num_samples).or_raise()
    }

    #[pyo3(signature = (num_inserts))]
    fn can_insert(&self, num_inserts: i64) -> PyResult<bool> {
        self.engine()?.can_insert(num_inserts).or_raise()
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let info = from_table_info(&self.engine()?.info());
        Ok(PyBytes::new(py, &info.encode_to_vec()))
    }

    /// Reason why samples can never begin, or why the table can stop for good.
    fn why_never(&self) -> Option<String> {
        self.current().config().why_never()
    }

    fn max_bytes(&self) -> Option<u64> {
        self.current().config().memory.max_bytes
    }

    fn max_priority(&self) -> &'static str {
        match self.current().config().max_priority {
            MaxPriority::Present => "present",
            MaxPriority::Ever => "ever",
        }
    }

    fn when_full(&self) -> &'static str {
        match self.current().config().memory.when_full {
            WhenFull::Remove => "remove",
            WhenFull::Wait => "wait",
        }
    }

    fn __repr__(&self) -> String {
        let engine = self.current();
        let config = engine.config();
        format!(
            "Table(sampler={}, remover={}, max_size={}, max_times_sampled={}, name={}, rate_limiter={}, signature={})",
            selector_text(config.sampler),
            selector_text(config.remover),
            config.max_size,
            config.max_times_sampled,
            config.name,
            rate_limiter_text(&config.rate_limiter),
            if config.signature.is_some() { "..." } else { "nullptr" },
        )
    }
}
