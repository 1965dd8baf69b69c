// SPDX-License-Identifier: Apache-2.0
//! Rate limiters and tables, for Python.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prost::Message;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reverb_base::Error;
use reverb_checkpoint::{to_config, to_message};
use reverb_data::{Counters, RateLimiterConfig, TableConfig, Totals};
use reverb_engine::{Restored, Table as Engine};
use reverb_wire::convert::table_config::{from_limiter, from_selector, to_signature};
use reverb_wire::convert::table_info::{from_table_info, settings_of};
use reverb_wire::generated::PriorityTableCheckpoint;
use reverb_wire::generated::tensorflow::StructuredValue;

use crate::error::OrRaise;
use crate::locks::Visit;
use crate::process::Origin;
use crate::selectors::{ItemSelector, selector_text};

fn rate_limiter_text(config: &RateLimiterConfig) -> String {
    format!(
        "RateLimiter(samples_per_insert={}, min_diff_={}, max_diff={}, min_size_to_sample={})",
        short(config.samples_per_insert),
        short(config.min_diff),
        short(config.max_diff),
        config.min_size_to_sample,
    )
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
        self.engine.visit(|engine| Arc::clone(engine))
    }

    /// Replaces the table by another one of the same name.
    pub(crate) fn replace_engine(&self, engine: &Arc<Engine>) {
        drop(self.engine.visit(|current| std::mem::replace(current, Arc::clone(engine))));
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

/// Settings of a table, without its signature, which those of its rollouts are compared with later.
fn to_settings(message: &PriorityTableCheckpoint) -> PyResult<TableConfig> {
    let without = PriorityTableCheckpoint { rollouts: None, ..message.clone() };
    let config = to_config(&without).or_raise()?;
    Ok(TableConfig { rollouts: settings_of(message.rollouts.as_ref()), ..config })
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (
        name, *, sampler, remover, max_size, max_times_sampled, rate_limiter, signature, seed, options
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
        options: &[u8],
    ) -> PyResult<Self> {
        let limiter = rate_limiter.get();
        if let Some(table) = limiter.table.visit(|table| table.upgrade()) {
            return Err(Error::invalid_argument(format!(
                "rate_limiter already belongs to table '{}'; every table needs its own",
                table.name()
            )))
            .or_raise();
        }
        let options = PriorityTableCheckpoint::decode(options).map_err(|error| {
            Error::invalid_argument(format!("options are no PriorityTableCheckpoint: {error}"))
        });
        let options = options.or_raise()?;
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
        let sampler = sampler.get().take("sampler")?;
        let remover = remover.get().take("remover")?;
        let message = PriorityTableCheckpoint {
            table_name: name,
            sampler: Some(from_selector(sampler)),
            remover: Some(from_selector(remover)),
            max_size,
            max_times_sampled,
            rate_limiter: Some(from_limiter(&limiter.config)),
            ..options
        };
        // The message of a selector is without its seed.
        let config = TableConfig { sampler, remover, signature, seed, ..to_settings(&message)? };
        let engine = Engine::new(config).or_raise()?;
        limiter.table.visit(|table| *table = Arc::downgrade(&engine));
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

    /// Makes the empty table count on from these numbers of inserted and sampled items.
    #[pyo3(signature = (inserts, samples))]
    fn count_from(&self, inserts: u64, samples: u64) -> PyResult<()> {
        if self.served.load(Ordering::Acquire) {
            let text = "a table that was given to a server counts by itself";
            return Err(Error::failed_precondition(text)).or_raise();
        }
        let engine = self.engine()?;
        let counters = Counters { totals: Totals { inserts, samples }, ..Counters::default() };
        engine.install(Restored::new(engine.config().as_ref().clone(), &counters).or_raise()?);
        Ok(())
    }

    /// Checks that a group of servers can have its sampler.
    fn check_in_group(&self) -> PyResult<()> {
        let engine = self.current();
        engine.config().sampler.in_group(engine.name()).map(drop).or_raise()
    }

    /// Reason why samples can never begin, or why the table can stop for good.
    fn why_never(&self) -> Option<String> {
        self.current().config().why_never()
    }

    /// A serialized `PriorityTableCheckpoint` without items.
    fn settings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let message = to_message(&self.engine()?.info());
        Ok(PyBytes::new(py, &message.encode_to_vec()))
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
