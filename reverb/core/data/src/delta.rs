// SPDX-License-Identifier: Apache-2.0
//! Delta encoding of integer columns: each step is stored as its difference from the previous one.

use crate::dtype::DType;

/// Encodes `out[0] = in[0]; out[i] = in[i] - in[i-1]` along the steps, wrapping; `None` if the rule
/// does not apply.
pub(crate) fn encode(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Vec<u8>> {
    let width = dtype.delta_width().filter(|_| shape.len() >= 2)?;
    let row = bytes.len().checked_div(shape[0])?;
    let mut out = bytes.to_vec();
    for at in (row..bytes.len()).step_by(width) {
        let difference = read_uint(&bytes[at..at + width])
            .wrapping_sub(read_uint(&bytes[at - row..at - row + width]));
        out[at..at + width].copy_from_slice(&difference.to_le_bytes()[..width]);
    }
    Some(out)
}

/// Inverse of `encode`, in place.
pub(crate) fn decode(dtype: DType, shape: &[usize], bytes: &mut [u8]) {
    let Some(width) = dtype.delta_width().filter(|_| shape.len() >= 2) else { return };
    let Some(row) = bytes.len().checked_div(shape[0]) else { return };
    if row == 0 {
        return;
    }
    for at in (row..bytes.len()).step_by(width) {
        let sum = read_uint(&bytes[at..at + width])
            .wrapping_add(read_uint(&bytes[at - row..at - row + width]));
        bytes[at..at + width].copy_from_slice(&sum.to_le_bytes()[..width]);
    }
}

fn read_uint(bytes: &[u8]) -> u64 {
    let mut le = [0u8; 8];
    le[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(le)
}
