// SPDX-License-Identifier: Apache-2.0
//! Pattern engine behind an iterator of a pattern dataset.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use reverb_base::{Error, Result};
use reverb_client::Configs;
use reverb_client::PatternItem;
use reverb_client::{CellValue, PatternEngine};
use reverb_data::{DType, Tensor, TensorData};

use crate::failure::{Failure, Outcome};
use crate::handles::Handles;
use crate::tensor::Output;

static ENGINES: Handles<Patterns> = Handles::new("pattern engine");

/// Patterns applied to the steps of one iterator.
pub(crate) struct Patterns(Mutex<State>);

struct State {
    engine: PatternEngine,
    /// Items that were not popped yet.
    queue: VecDeque<Item>,
}

/// The columns of an item, each `[T, ...]`, or `[...]` if it is squeezed.
type Item = Vec<Tensor>;

/// Checks configurations. Each pattern also requires a history that is long enough for it and for
/// those before it, as in dm-reverb's datasets.
pub(crate) fn parse_configs(serialized: &[Vec<u8>]) -> Outcome<Configs> {
    let mut configs = Configs::decode(serialized)?;
    let mut longest = 0;
    for config in &mut configs.configs {
        longest = longest.max(config.history());
        config.require_buffer_length(longest);
    }
    Ok(configs)
}

/// Makes an engine and returns its handle.
pub(crate) fn open(configs: Configs) -> i64 {
    let state = State { engine: PatternEngine::new(configs), queue: VecDeque::new() };
    ENGINES.add(Arc::new(Patterns(Mutex::new(state))))
}

/// The engine of a handle.
pub(crate) fn get(handle: i64) -> Outcome<Arc<Patterns>> {
    ENGINES.get(handle)
}

/// Frees an engine.
pub(crate) fn close(handle: i64) {
    ENGINES.remove(handle);
}

impl Patterns {
    /// Appends a step; returns the number of queued items. With `clear_after_episode`, the end of
    /// an episode clears the history.
    pub(crate) fn append(
        &self,
        step: Vec<CellValue<'_>>,
        end_of_episode: bool,
        clear_after_episode: bool,
    ) -> Result<usize> {
        let mut state = self.0.lock();
        let State { engine, queue } = &mut *state;
        let mut take = |item: &PatternItem<'_>| {
            queue.push_back(read(item)?);
            Ok(())
        };
        engine.append(step.into_iter().map(Some).collect(), false, &mut take)?;
        if end_of_episode {
            engine.apply_at_end(&mut take)?;
            engine.end_episode(clear_after_episode);
        }
        Ok(queue.len())
    }

    /// The oldest item; its columns are the outputs.
    pub(crate) fn pop(&self, dtypes: &[DType]) -> Outcome<Vec<Output>> {
        let item = self.0.lock().queue.pop_front();
        let item = item.ok_or_else(|| Failure::internal("no item of the patterns is waiting"))?;
        check_dtypes(&item, dtypes)?;
        item.iter().map(|column| Output::from_tensor(column, column.shape.clone())).collect()
    }

    /// All items stacked: columns become `[number of items, T, ...]`.
    pub(crate) fn pop_all(&self, dtypes: &[DType]) -> Outcome<Vec<Output>> {
        let items = std::mem::take(&mut self.0.lock().queue);
        let Some(first) = items.front() else {
            return dtypes.iter().map(|&dtype| Output::placeholder(dtype)).collect();
        };
        check_dtypes(first, dtypes)?;
        let stacked = (0..first.len()).map(|column| {
            let stacked = stack(items.iter().map(|item| &item[column]))?;
            Output::from_tensor(&stacked, stacked.shape.clone())
        });
        stacked.collect()
    }
}

/// Copies the data of an item, because its cells may expire later.
fn read(item: &PatternItem<'_>) -> Result<Item> {
    let columns = item.columns.iter().map(|column| {
        let cells =
            column.cells.iter().map(reverb_client::CellRef::read).collect::<Result<Vec<_>>>()?;
        let mut stacked = stack(cells.iter())?;
        if column.squeeze {
            stacked.shape.remove(0);
        }
        Ok(stacked)
    });
    columns.collect()
}

/// Stacks tensors of one shape along a new leading dimension.
fn stack<'a>(tensors: impl ExactSizeIterator<Item = &'a Tensor>) -> Result<Tensor> {
    let count = tensors.len();
    let mut stacked: Option<Tensor> = None;
    for tensor in tensors {
        let Some(all) = &mut stacked else {
            let mut first = tensor.clone();
            first.shape.insert(0, count);
            stacked = Some(first);
            continue;
        };
        if all.dtype != tensor.dtype || all.shape[1..] != tensor.shape[..] {
            return Err(Error::internal("items of different shapes cannot be stacked"));
        }
        match (&mut all.data, &tensor.data) {
            (TensorData::Bytes(all), TensorData::Bytes(more)) => all.extend_from_slice(more),
            (TensorData::Strings(all), TensorData::Strings(more)) => all.extend_from_slice(more),
            _ => return Err(Error::internal("strings and numbers cannot be stacked")),
        }
    }
    stacked.ok_or_else(|| Error::internal("a column of an item has no cells"))
}

fn check_dtypes(item: &[Tensor], dtypes: &[DType]) -> Outcome<()> {
    if item.iter().map(|column| &column.dtype).eq(dtypes) {
        return Ok(());
    }
    let names = |dtypes: &mut dyn Iterator<Item = DType>| {
        dtypes.map(DType::name).collect::<Vec<_>>().join(", ")
    };
    Err(Failure::invalid_argument(format!(
        "the patterns make items with columns of dtypes [{}], but [{}] are expected",
        names(&mut item.iter().map(|column| column.dtype)),
        names(&mut dtypes.iter().copied()),
    )))
}

#[cfg(test)]
mod tests {
    use reverb_data::Shape;

    use super::*;

    fn tensor(shape: &[usize], bytes: &[u8]) -> Tensor {
        Tensor {
            dtype: DType::UInt8,
            shape: Shape::from_slice(shape),
            data: TensorData::Bytes(bytes.to_vec()),
        }
    }

    #[test]
    fn tensors_of_one_shape_are_stacked() {
        let stacked = stack([tensor(&[2], &[1, 2]), tensor(&[2], &[3, 4])].iter()).unwrap();
        assert_eq!(stacked, tensor(&[2, 2], &[1, 2, 3, 4]));
        assert!(stack([tensor(&[2], &[1, 2]), tensor(&[1], &[3])].iter()).is_err());
        assert!(stack([].iter()).is_err());
    }
}
