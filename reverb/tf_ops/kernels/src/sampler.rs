// SPDX-License-Identifier: Apache-2.0
//! Sampler behind an iterator of a dataset.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reverb_base::Result;
use reverb_client::{Client, Sampler, SamplerOptions, TakeOutcome};
use reverb_data::{DType, Sampled};
use reverb_wire::Capability;

use crate::failure::{Failure, Outcome};
use crate::handles::Handles;
use crate::row_specs::RowSpecs;
use crate::rows::Rows;
use crate::timesteps::StepQueue;
use crate::waiting::Notifier;
use crate::windows::WINDOW_DTYPES;

/// Time that an iterator waits for the signature of its table before it continues without it.
const SIGNATURE_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest number of steps per requested row, if the number of rows need not be exact. Many items
/// are longer than one step, and a call costs as much for one step as for a few.
const MAX_STEPS_PER_ROW: usize = 16;

static OPEN: Handles<OpenSampler> = Handles::new("sampler");

/// A sampler, and the fetched items that TensorFlow has not taken.
pub(crate) struct OpenSampler {
    sampler: Sampler,
    specs: Arc<RowSpecs>,
    /// Notified when the sampler may have new items or has ended.
    notifier: Arc<Notifier>,
    /// Items taken from the sampler that were too few, or too many, for a batch.
    held: Mutex<Vec<Sampled>>,
    /// Steps taken from the sampler, if rows are steps.
    held_steps: Mutex<StepQueue>,
}

/// Number and form of the rows that an op requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRequest {
    pub(crate) rows: usize,
    /// True if the op waits for all rows.
    pub(crate) exact: bool,
    /// True if an incomplete batch at the end is dropped.
    pub(crate) drop_remainder: bool,
}

impl RowRequest {
    /// Maximum number of steps per call.
    fn steps(self) -> usize {
        if self.exact { self.rows } else { self.rows.saturating_mul(MAX_STEPS_PER_ROW) }
    }
}

/// Starts a sampler and returns its handle.
pub(crate) fn open(client: &Arc<Client>, specs: RowSpecs, options: SamplerOptions) -> i64 {
    let specs = Arc::new(specs);
    let notifier = Arc::new(Notifier::default());
    let before = learn_signature(Arc::clone(client), Arc::clone(&specs), Arc::clone(&notifier));
    let on_ready = {
        let notifier = Arc::clone(&notifier);
        move || notifier.notify()
    };
    let sampler = Sampler::start(client, &specs.table, options, before, on_ready);
    let held = Mutex::default();
    let held_steps = Mutex::default();
    OPEN.add(Arc::new(OpenSampler { sampler, specs, notifier, held, held_steps }))
}

/// The sampler of a handle.
pub(crate) fn get(handle: i64) -> Outcome<Arc<OpenSampler>> {
    OPEN.get(handle)
}

/// Closes a sampler; returns true if it was open.
pub fn close(handle: i64) -> bool {
    let Some(sampler) = OPEN.remove(handle) else { return false };
    sampler.sampler.close();
    true
}

/// Compares the specs with the signature of the table, if it is available. Returns true if the
/// table removes sampled items. Fails if the server does not know windows and the specs have one.
async fn learn_signature(
    client: Arc<Client>,
    specs: Arc<RowSpecs>,
    notifier: Arc<Notifier>,
) -> Result<bool> {
    let table = specs.table.clone();
    let lookup = async {
        let info = client.server_info().await?;
        if specs.window.is_some() {
            info.capabilities.require(Capability::Windows, client.address())?;
        }
        let info = info.tables.iter().find(|info| info.name == table);
        Ok((client.signatures().await?, info.is_some_and(|info| info.max_times_sampled > 0)))
    };
    let Ok(signatures) = tokio::time::timeout(SIGNATURE_TIMEOUT, lookup).await else {
        tracing::warn!(
            table,
            "No server answered at {} for {} s; reading the table without comparing it with its signature.",
            client.address(),
            SIGNATURE_TIMEOUT.as_secs(),
        );
        let _ = specs.signature.set(None);
        return Ok(false);
    };
    let (signatures, removes_sampled) = signatures?;
    let signature = signatures.get(&table).cloned();
    if signature.is_none() {
        // One of several servers may have the table. Otherwise the first sample fails with "not
        // found".
        tracing::warn!(table, "The server at {} has no such table.", client.address());
    }
    let signature = signature.flatten();
    if let Some(signature) = &signature {
        specs.check_signature(signature)?;
    }
    let _ = specs.signature.set(signature);
    notifier.notify();
    Ok(removes_sampled)
}

impl OpenSampler {
    /// The next rows, or none if too few arrived within about `limit`.
    pub(crate) fn next(&self, request: RowRequest, limit: Duration) -> Outcome<Rows> {
        if self.specs.timesteps {
            return self.next_steps(request, limit);
        }
        let mut held = self.held.lock();
        let found = self.notifier.wait(limit, || self.collect(request, &mut held).transpose());
        match found.transpose()? {
            None => return Rows::none(&self.specs),
            Some(TakeOutcome::End)
                if held.is_empty() || (request.exact && request.drop_remainder) =>
            {
                // Dropped items are compared too, because the check precedes the stacking.
                let last = std::mem::take(&mut *held);
                last.iter().try_for_each(|item| self.specs.check_item(&item.trajectory))?;
                return Err(Failure::end_of_sequence());
            }
            Some(_) => {}
        }
        let rows = Rows::of_items(&held, &self.specs, request.exact);
        match &rows {
            Ok(rows) => drop(held.drain(..rows.num_items)),
            // Items that cannot be stacked are dropped; otherwise every later call would fail.
            Err(_) if request.exact => held.clear(),
            Err(_) => drop(held.remove(0)),
        }
        rows
    }

    /// Like `next`, if rows are steps; a call may stop in the middle of an item.
    fn next_steps(&self, request: RowRequest, limit: Duration) -> Outcome<Rows> {
        let mut held = self.held_steps.lock();
        let found =
            self.notifier.wait(limit, || self.collect_steps(request, &mut held).transpose());
        match found.transpose()? {
            None => Rows::none(&self.specs),
            Some(TakeOutcome::End)
                if held.is_empty() || (request.exact && request.drop_remainder) =>
            {
                let last = std::mem::take(&mut *held);
                last.check(&self.specs)?;
                Err(Failure::end_of_sequence())
            }
            Some(_) => held.take(request.steps(), &self.specs, request.exact),
        }
    }

    /// Checks that an op's outputs match the sampler's specs.
    pub(crate) fn check_outputs(&self, dtypes: &[DType], of_window: &[DType]) -> Outcome<()> {
        if !self.specs.columns.iter().map(|(dtype, _)| dtype).eq(dtypes) {
            return Err(Failure::invalid_argument(
                "Toutput_list must hold the dtypes with which the sampler was created",
            ));
        }
        let expected = self.specs.window.map_or(&[][..], |_| &WINDOW_DTYPES);
        if of_window != expected {
            return Err(Failure::invalid_argument(
                "Twindow_list must be [int32, int32, bool] if the sampler was created with a \
                 window, else empty",
            ));
        }
        Ok(())
    }

    /// Takes items from the sampler; `None` if there are not enough yet.
    fn collect(&self, request: RowRequest, held: &mut Vec<Sampled>) -> Result<Option<TakeOutcome>> {
        if !held.is_empty() && (!request.exact || held.len() >= request.rows) {
            return Ok(Some(TakeOutcome::Some));
        }
        let missing = request.rows - held.len();
        let taken = self.sampler.take(missing, request.exact, held)?;
        Ok(match taken {
            TakeOutcome::End => Some(TakeOutcome::End),
            TakeOutcome::Some if !request.exact || held.len() >= request.rows => {
                Some(TakeOutcome::Some)
            }
            TakeOutcome::Some | TakeOutcome::Nothing => None,
        })
    }

    /// Like `collect`, if rows are steps.
    fn collect_steps(
        &self,
        request: RowRequest,
        held: &mut StepQueue,
    ) -> Result<Option<TakeOutcome>> {
        let mut items = Vec::new();
        let mut lacking = false;
        while !held.is_ready(request.rows, request.exact) {
            let missing = held.num_missing_items(request.steps()).min(request.rows);
            let taken = self.sampler.take(missing, request.exact, &mut items)?;
            lacking = request.exact && items.len() < missing;
            for sampled in items.drain(..) {
                held.push(sampled, &self.specs);
            }
            match taken {
                TakeOutcome::Some => {}
                TakeOutcome::Nothing => return Ok(None),
                TakeOutcome::End => return Ok(Some(TakeOutcome::End)),
            }
        }
        if lacking {
            // Some items were longer than earlier ones, so fewer are needed. If the sampler failed
            // meanwhile, the next call reports it.
            let _ = self.sampler.take(0, true, &mut items);
        }
        Ok(Some(TakeOutcome::Some))
    }

    /// Waits for about `limit` for the check of the table's signature. Returns true if it was
    /// compared.
    pub(crate) fn check(&self, limit: Duration) -> Outcome<bool> {
        let checked = self.notifier.wait(limit, || match self.specs.signature.get() {
            Some(_) => Some(Ok(true)),
            None => self.sampler.failure().map(|error| Err(Failure::from(error))),
        });
        checked.unwrap_or(Ok(false))
    }
}

/// Options from op attributes: -1 means the default.
pub(crate) fn options(
    max_in_flight_samples_per_worker: i64,
    num_workers: i64,
    max_samples_per_stream: i64,
    rate_limiter_timeout_ms: i64,
    max_samples: i64,
    batch_size: i64,
) -> Outcome<SamplerOptions> {
    let defaults = SamplerOptions::default();
    let positive = |name: &str, value: i64| match value {
        -1 => Ok(None),
        1.. => Ok(Some(value as u64)),
        _ => {
            Err(Failure::invalid_argument(format!("{name} must be -1 or at least 1, got {value}")))
        }
    };
    let per_worker =
        usize::try_from(max_in_flight_samples_per_worker).ok().filter(|&count| count > 0);
    let per_worker = per_worker.ok_or_else(|| {
        Failure::invalid_argument(format!(
            "max_in_flight_samples_per_worker must be at least 1, got {max_in_flight_samples_per_worker}"
        ))
    })?;
    Ok(SamplerOptions {
        max_samples: positive("max_samples", max_samples)?,
        max_in_flight_samples_per_worker: per_worker,
        num_workers: positive("num_workers_per_iterator", num_workers)?
            .map_or(defaults.num_workers, |number| number as usize),
        max_samples_per_stream: positive("max_samples_per_stream", max_samples_per_stream)?
            .unwrap_or(defaults.max_samples_per_stream),
        rate_limiter_timeout: u64::try_from(rate_limiter_timeout_ms)
            .ok()
            .map(Duration::from_millis),
        batch_size: usize::try_from(batch_size).ok().filter(|&size| size > 0),
        window: None,
    })
}
