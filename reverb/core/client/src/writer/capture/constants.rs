// SPDX-License-Identifier: Apache-2.0
//! Constants: values of an item that are in no history, such as the version of a policy.

use std::sync::Arc;

use reverb_base::Result;
use reverb_data::{DType, Tensor, TensorData};
use smallvec::SmallVec;

use super::block::{Block, BlockColumns, BlockRef};
use super::cell::{CellRef, CellValue};
use super::history::History;

/// Size of constants up to which the next item may share their chunk: comparing larger ones would
/// cost more than it saves.
const MAX_SHARED_BYTES: usize = 4096;

/// Cells of the constants of one history's items.
///
/// The constants of an item are one step of one chunk, beside the chunks of the history. An item
/// with the same constants as the one before it, in the same episode, has the same chunk.
#[derive(Debug, Default)]
pub(in crate::writer) struct Constants {
    latest: Option<Latest>,
}

/// The constants of the latest item.
#[derive(Debug)]
struct Latest {
    episode_id: u64,
    values: Vec<Tensor>,
    cells: ConstantCells,
}

/// A cell for each constant of an item.
pub(in crate::writer) type ConstantCells = SmallVec<[CellRef; 2]>;

impl Constants {
    /// The cells of these values, for an item over `history`.
    pub(in crate::writer) fn cells(
        &mut self,
        history: &History,
        values: &mut [CellValue<'_>],
    ) -> Result<ConstantCells> {
        if values.is_empty() {
            return Ok(ConstantCells::new());
        }
        let episode_id = history.episode_id();
        let is_like = |latest: &&Latest| {
            latest.episode_id == episode_id
                && latest.values.len() == values.len()
                && latest.values.iter().zip(&*values).all(|(known, value)| is_same(known, value))
        };
        if let Some(latest) = self.latest.as_ref().filter(is_like) {
            return Ok(latest.cells.clone());
        }
        let columns =
            values.iter().map(|value| (Arc::new(value.spec()), Arc::default())).collect::<Vec<_>>();
        let num_bytes: usize = values.iter().map(CellValue::num_bytes).sum();
        let block = Block::new(
            &Arc::new(BlockColumns::new(columns, history.encoding())),
            episode_id,
            false,
        );
        let step = i32::try_from(history.episode_steps()).unwrap_or(i32::MAX);
        let mut placed: Vec<(usize, &mut CellValue<'_>)> = values.iter_mut().enumerate().collect();
        block.append(step, &mut placed, 1, |_, _| {});
        let cell =
            |position| CellRef { block: BlockRef::Own(Arc::clone(&block)), position, index: 0 };
        let cells: ConstantCells = (0..values.len() as u16).map(cell).collect();
        self.latest = None;
        if num_bytes <= MAX_SHARED_BYTES {
            let values = cells.iter().map(CellRef::read).collect::<Result<_>>()?;
            self.latest = Some(Latest { episode_id, values, cells: cells.clone() });
        }
        Ok(cells)
    }
}

/// A value of items that is in no history.
#[derive(Debug)]
pub enum BatchedConstant {
    /// The same for all environments.
    ForAll(Tensor),
    /// `[B, ...]`: a row for each environment.
    Rows(Tensor),
}

impl BatchedConstant {
    /// The value of an environment.
    pub(in crate::writer) fn of_row(&self, row: usize, num_rows: usize) -> CellValue<'_> {
        match self {
            Self::ForAll(value) => view(value),
            Self::Rows(values) => match &values.data {
                TensorData::Strings(strings) => {
                    let size = strings.len() / num_rows;
                    let strings = strings[row * size..(row + 1) * size].to_vec();
                    CellValue::Strings { shape: &values.shape[1..], strings }
                }
                TensorData::Bytes(bytes) => {
                    let size = bytes.len() / num_rows;
                    let bytes = &bytes[row * size..(row + 1) * size];
                    CellValue::Bytes { dtype: values.dtype, shape: &values.shape[1..], bytes }
                }
            },
        }
    }
}

fn view(value: &Tensor) -> CellValue<'_> {
    match &value.data {
        TensorData::Strings(strings) => {
            CellValue::Strings { shape: &value.shape, strings: strings.clone() }
        }
        TensorData::Bytes(bytes) => {
            CellValue::Bytes { dtype: value.dtype, shape: &value.shape, bytes }
        }
    }
}

fn is_same(known: &Tensor, value: &CellValue<'_>) -> bool {
    known.shape.as_slice() == value.shape()
        && match (&known.data, value) {
            (TensorData::Bytes(known_bytes), CellValue::Bytes { dtype, bytes, .. }) => {
                known.dtype == *dtype && known_bytes == bytes
            }
            (TensorData::Strings(known_strings), CellValue::Strings { strings, .. }) => {
                known.dtype == DType::String && known_strings == strings
            }
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(bytes: &[u8]) -> CellValue<'_> {
        CellValue::Bytes { dtype: DType::Int32, shape: &[], bytes }
    }

    fn text(text: &str) -> CellValue<'_> {
        CellValue::Strings { shape: &[], strings: vec![text.into()] }
    }

    fn value(cell: &CellRef) -> Tensor {
        cell.read().unwrap()
    }

    #[test]
    fn equal_constants_of_an_episode_share_a_block() {
        let mut history = History::new(1);
        let mut constants = Constants::default();
        let three = 3i32.to_le_bytes();
        let four = 4i32.to_le_bytes();
        let first = constants.cells(&history, &mut [int(&three), text("a")]).unwrap();
        assert_eq!(value(&first[0]).data, TensorData::Bytes(three.to_vec()));
        assert_eq!(value(&first[1]).data, TensorData::Strings(vec![b"a".to_vec()]));
        let mut same = |history: &History, values: &mut [CellValue<'_>]| {
            constants.cells(history, values).unwrap()[0].block.is_same(&first[0].block)
        };
        assert!(same(&history, &mut [int(&three), text("a")]));
        assert!(!same(&history, &mut [int(&three), text("b")]));
        assert!(!same(&history, &mut [int(&three), text("a")]), "only the latest are kept");
        let again = constants.cells(&history, &mut [int(&four)]).unwrap();
        history.end_episode(true);
        let next = constants.cells(&history, &mut [int(&four)]).unwrap();
        assert!(!again[0].block.is_same(&next[0].block), "chunks belong to one episode");
        assert!(!again[0].is_expired(), "no history forgets them");
    }

    #[test]
    fn dtypes_and_shapes_count() {
        let history = History::new(1);
        let mut constants = Constants::default();
        let bytes = 3i32.to_le_bytes();
        let others = [
            int(&bytes),
            CellValue::Bytes { dtype: DType::Float32, shape: &[], bytes: &bytes },
            CellValue::Bytes { dtype: DType::Float32, shape: &[1], bytes: &bytes },
        ];
        for other in others {
            let expected = other.spec();
            let cells = constants.cells(&history, &mut [other]).unwrap();
            assert_eq!(**cells[0].spec(), expected);
        }
        assert!(constants.cells(&history, &mut []).unwrap().is_empty());
    }

    #[test]
    fn large_constants_are_not_compared() {
        let history = History::new(1);
        let mut constants = Constants::default();
        let bytes = vec![7u8; MAX_SHARED_BYTES + 1];
        let shape = [bytes.len()];
        let mut cells = || {
            let value = CellValue::Bytes { dtype: DType::UInt8, shape: &shape, bytes: &bytes };
            constants.cells(&history, &mut [value]).unwrap()
        };
        let one = cells();
        let two = cells();
        assert!(!one[0].block.is_same(&two[0].block));
        assert_eq!(value(&two[0]).data, TensorData::Bytes(bytes.clone()));
    }
}
