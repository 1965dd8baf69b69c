// SPDX-License-Identifier: Apache-2.0
//! Cells: the values of one column in one step.

use std::sync::Arc;

use reverb_base::{Error, Result};
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Shape, Tensor};

use super::block::BlockRef;

/// Type and shape of every cell of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellSpec {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape of one cell.
    pub shape: Shape,
}

impl CellSpec {
    /// Bytes of one cell; 0 for strings.
    pub fn num_bytes(&self) -> usize {
        Tensor::num_bytes(self.dtype, &self.shape).unwrap_or(0)
    }

    /// Shape of this many cells, one after another.
    pub(in crate::writer) fn shape_of_rows(&self, num_rows: usize) -> Shape {
        std::iter::once(num_rows).chain(self.shape.iter().copied()).collect()
    }
}

/// One value for one column, still owned by the caller.
#[derive(Debug)]
pub enum CellValue<'a> {
    /// Elements of a fixed size, row-major.
    Bytes {
        /// Type of the elements.
        dtype: DType,
        /// Shape of the cell.
        shape: &'a [usize],
        /// The elements.
        bytes: &'a [u8],
    },
    /// Strings.
    Strings {
        /// Shape of the cell.
        shape: &'a [usize],
        /// The elements.
        strings: Vec<Vec<u8>>,
    },
}

impl CellValue<'_> {
    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        match self {
            CellValue::Bytes { dtype, .. } => *dtype,
            CellValue::Strings { .. } => DType::String,
        }
    }

    /// Shape of the cell.
    pub fn shape(&self) -> &[usize] {
        match self {
            CellValue::Bytes { shape, .. } | CellValue::Strings { shape, .. } => shape,
        }
    }

    /// The spec of a column with this first cell.
    pub fn spec(&self) -> CellSpec {
        CellSpec { dtype: self.dtype(), shape: Shape::from_slice(self.shape()) }
    }

    /// Bytes of the elements.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            CellValue::Bytes { bytes, .. } => bytes.len(),
            CellValue::Strings { strings, .. } => strings.iter().map(Vec::len).sum(),
        }
    }

    /// True if the value has this spec.
    pub(in crate::writer) fn has(&self, spec: &CellSpec) -> bool {
        self.dtype() == spec.dtype && self.shape() == spec.shape.as_slice()
    }

    /// Row `i` of a value whose first dimension is `num_rows`.
    pub fn row(&self, i: usize, num_rows: usize) -> CellValue<'_> {
        match self {
            CellValue::Bytes { dtype, shape, bytes } => {
                let size = bytes.len() / num_rows;
                let bytes = &bytes[i * size..(i + 1) * size];
                CellValue::Bytes { dtype: *dtype, shape: &shape[1..], bytes }
            }
            CellValue::Strings { shape, strings } => {
                let size = strings.len() / num_rows;
                let strings = strings[i * size..(i + 1) * size].to_vec();
                CellValue::Strings { shape: &shape[1..], strings }
            }
        }
    }

    /// Checks the value against its column's spec; `column` names the column in the error.
    pub fn check(&self, spec: &CellSpec, column: &dyn std::fmt::Display) -> Result<()> {
        if self.dtype() != spec.dtype {
            return Err(Error::signature_mismatch(format!(
                "Tensor of wrong dtype provided for column {column}. Got {} but expected {}.",
                self.dtype().name(),
                spec.dtype.name(),
            )));
        }
        if self.shape() != spec.shape.as_slice() {
            return Err(Error::signature_mismatch(format!(
                "Tensor of incompatible shape provided for column {column}. Got {} which is incompatible with {}.",
                shape_text(self.shape()),
                shape_text(&spec.shape),
            )));
        }
        Ok(())
    }
}

/// A reference to one cell. Keeps the cell's block in memory.
#[derive(Debug, Clone)]
pub struct CellRef {
    /// Block of the cell.
    pub block: BlockRef,
    /// Column in the block.
    pub position: u16,
    /// Index in that column.
    pub index: u32,
}

impl CellRef {
    /// The cell.
    pub fn as_cell(&self) -> Cell<'_> {
        Cell { block: &self.block, position: self.position, index: self.index }
    }

    /// Type and shape of the cell.
    pub fn spec(&self) -> &Arc<CellSpec> {
        self.as_cell().spec()
    }

    /// True if the cell has left its writer's history. New items must not use it.
    pub fn is_expired(&self) -> bool {
        self.as_cell().is_expired()
    }

    /// Marks this cell and all earlier ones in its block as expired. Only called by its history.
    pub(in crate::writer) fn expire(&self) {
        self.block.expire_below(usize::from(self.position), self.index + 1);
    }

    /// Records that an item refers to the column.
    pub fn mark_referenced(&self) {
        self.block.columns()[usize::from(self.position)].mark_referenced();
    }

    /// Decodes the cell.
    pub fn read(&self) -> Result<Tensor> {
        let spec = self.spec();
        let data = self.block.cell(usize::from(self.position), self.index as usize)?;
        Ok(Tensor { dtype: spec.dtype, shape: spec.shape.clone(), data })
    }
}

/// A cell of a block that is kept in memory elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct Cell<'a> {
    /// Block of the cell.
    pub block: &'a BlockRef,
    /// Column in the block.
    pub position: u16,
    /// Index in that column.
    pub index: u32,
}

impl<'a> Cell<'a> {
    /// Type and shape of the cell.
    pub fn spec(self) -> &'a Arc<CellSpec> {
        &self.block.columns()[usize::from(self.position)].spec
    }

    /// True if the cell has left its writer's history. New items must not use it.
    pub fn is_expired(self) -> bool {
        self.block.is_expired(usize::from(self.position), self.index)
    }

    /// A reference that keeps the cell's block in memory.
    pub fn to_ref(self) -> CellRef {
        CellRef { block: self.block.clone(), position: self.position, index: self.index }
    }
}
