// SPDX-License-Identifier: Apache-2.0
//! Selectors as Python sees them.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

use prost::Message;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_base::Error;
use reverb_data::{Draw, SelectorConfig};
use reverb_wire::convert::table_config::from_selector;

use crate::error::OrRaise;

/// Adds every class of this file to the module.
pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ItemSelector>()?;
    module.add_class::<FifoSelector>()?;
    module.add_class::<LifoSelector>()?;
    module.add_class::<UniformSelector>()?;
    module.add_class::<PrioritizedSelector>()?;
    module.add_class::<HeapSelector>()?;
    module.add_class::<ShuffleSelector>()?;
    module.add_class::<RecentSelector>()?;
    Ok(())
}

/// How a table selects items. Each object serves one purpose in one table.
#[pyclass(frozen, subclass, module = "reverb.pybind")]
pub(crate) struct ItemSelector {
    config: SelectorConfig,
    taken: AtomicBool,
}

impl ItemSelector {
    fn new(config: SelectorConfig) -> Self {
        Self { config, taken: AtomicBool::new(false) }
    }

    pub(crate) fn take(&self, purpose: &str) -> PyResult<SelectorConfig> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid_argument(format!(
                "{purpose} is a selector object that is already in use; every table needs its own for sampling and for \
                 removing. Make a new one, for example reverb.selectors.Fifo(); this one is a {}",
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
        #[pyclass(frozen, extends = ItemSelector, module = "reverb.pybind")]
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
/// Selects any item, or any step, with equal probability.
#[pyclass(frozen, extends = ItemSelector, module = "reverb.pybind")]
pub(crate) struct UniformSelector;

#[pymethods]
impl UniformSelector {
    #[new]
    #[pyo3(signature = (*, over = "items"))]
    fn new(over: &str) -> PyResult<PyClassInitializer<Self>> {
        let config = match over {
            "items" => SelectorConfig::Uniform,
            "steps" => SelectorConfig::UniformOverSteps,
            _ => {
                let text = format!("over must be \"items\" or \"steps\", got \"{over}\".");
                return Err(Error::invalid_argument(text)).or_raise();
            }
        };
        Ok(PyClassInitializer::from(ItemSelector::new(config)).add_subclass(Self))
    }
}

/// Selects item i with probability `p_i^e / sum_k p_k^e`.
#[pyclass(frozen, extends = ItemSelector, module = "reverb.pybind")]
pub(crate) struct PrioritizedSelector;

#[pymethods]
impl PrioritizedSelector {
    #[new]
    #[pyo3(signature = (priority_exponent, *, draw = "independent"))]
    fn new(
        py: Python<'_>,
        priority_exponent: f64,
        draw: &str,
    ) -> PyResult<PyClassInitializer<Self>> {
        let draw = Draw::from_name(draw).or_raise()?;
        let config = SelectorConfig::Prioritized { priority_exponent, draw };
        config.validate().or_raise()?;
        if priority_exponent < 0.0 {
            // dm-reverb takes it, and a remover may need it.
            let text = format!(
                "priority_exponent should be at least 0, got {priority_exponent:?}: the lower the priority of an item, \
                 the more often it is selected, and never one of priority 0 while others are positive. To sample high \
                 priorities more often, pass {:?}.",
                -priority_exponent
            );
            let text = CString::new(text).expect("numbers have no zero byte");
            PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)?;
        }
        Ok(PyClassInitializer::from(ItemSelector::new(config)).add_subclass(Self))
    }
}

/// Selects the item with the lowest or the highest priority.
#[pyclass(frozen, extends = ItemSelector, module = "reverb.pybind")]
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
#[pyclass(frozen, extends = ItemSelector, module = "reverb.pybind")]
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
#[pyclass(frozen, extends = ItemSelector, module = "reverb.pybind")]
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

pub(crate) fn selector_text(config: SelectorConfig) -> String {
    match config {
        SelectorConfig::Fifo => "FifoSelector".to_owned(),
        SelectorConfig::Lifo => "LifoSelector".to_owned(),
        SelectorConfig::Uniform => "UniformSelector".to_owned(),
        SelectorConfig::UniformOverSteps => "UniformSelector(over='steps')".to_owned(),
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
