// SPDX-License-Identifier: Apache-2.0
//! Slices of chunks, runs of them, and the columns that they make.

use crate::proto_bytes::Reader;

/// Bit of the number of a tensor that says that `times` follows the slice.
pub(super) const REPEATED: u64 = 1;

/// A run of consecutive steps of one tensor of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Position of the chunk in `Trajectory::chunks`.
    pub chunk: usize,
    /// Position of the tensor in the chunk.
    pub tensor: usize,
    /// First step.
    pub offset: usize,
    /// Number of steps.
    pub length: usize,
}

/// A slice, and how many times in a row it is there. Only the padding of a window is there more
/// than once, so stored items have no such run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The slice.
    pub slice: Slice,
    /// At least 1.
    pub times: usize,
}

impl Run {
    /// Number of steps; the largest number if a peer claims more.
    #[inline]
    pub fn num_steps(self) -> usize {
        self.slice.length.saturating_mul(self.times)
    }
}

/// One column. Its content is its runs, concatenated along the steps.
#[derive(Debug, Clone)]
pub struct Column<'a> {
    /// True if the column is a single step without the leading dimension.
    pub squeeze: bool,
    pub(super) num_runs: usize,
    pub(super) reader: Reader<'a>,
}

impl Column<'_> {
    /// The runs in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + use<'_> {
        let mut reader = self.reader.clone();
        (0..self.num_runs).map(move |_| read_run(&mut reader))
    }

    /// The slices in order, each as often as it is there: a short column may have millions.
    pub fn slices(&self) -> impl Iterator<Item = Slice> + use<'_> {
        self.runs().flat_map(|run| std::iter::repeat_n(run.slice, run.times))
    }

    /// The only slice of the column, if it has just one. That is the common case.
    pub fn single_slice(&self) -> Option<Slice> {
        let run = (self.num_runs == 1).then(|| read_run(&mut self.reader.clone()))?;
        (run.times == 1).then_some(run.slice)
    }

    /// Number of steps.
    pub fn num_steps(&self) -> usize {
        self.runs().fold(0, |steps: usize, run| steps.saturating_add(run.num_steps()))
    }
}

#[inline(always)]
#[expect(clippy::inline_always, reason = "a few instructions, called for every column of an item")]
pub(super) fn read_run(reader: &mut Reader<'_>) -> Run {
    if let [chunk, tensor, offset, length, rest @ ..] = reader.rest()
        && (chunk | tensor | offset | length) & 0x80 | tensor & REPEATED as u8 == 0
    {
        *reader = Reader::new(rest);
        let chunk = usize::from(*chunk);
        let tensor = usize::from(*tensor) >> 1;
        let offset = usize::from(*offset);
        let length = usize::from(*length);
        return Run { slice: Slice { chunk, tensor, offset, length }, times: 1 };
    }
    // An item of many chunks: two or three bytes for the chunk, one for each other number.
    if let Some((&word, _)) = reader.rest().split_first_chunk() {
        let word = u64::from_le_bytes(word);
        let bytes_of_chunk = if word & 0x8000 == 0 { 2 } else { 3 };
        let others = word >> (8 * bytes_of_chunk);
        let last_of_chunk = word >> (8 * bytes_of_chunk - 8) & 0xff;
        let is_short = (others & 0x80_8080 | last_of_chunk & 0x80) == 0;
        if word & 0x80 != 0 && is_short && others & REPEATED == 0 {
            let low = word & 0x7f | word >> 1 & 0x3f80;
            let chunk = if bytes_of_chunk == 2 { low } else { low | word >> 2 & 0x1f_c000 };
            *reader = Reader::new(&reader.rest()[bytes_of_chunk + 3..]);
            let [tensor, offset, length] =
                [others, others >> 8, others >> 16].map(|number| (number & 0xff) as usize);
            let slice = Slice { chunk: chunk as usize, tensor: tensor >> 1, offset, length };
            return Run { slice, times: 1 };
        }
    }
    let mut next = || reader.length().expect("the builder wrote this");
    let chunk = next();
    let tensor = next();
    let offset = next();
    let length = next();
    let times = if tensor as u64 & REPEATED == 0 { 1 } else { next() };
    Run { slice: Slice { chunk, tensor: tensor >> 1, offset, length }, times }
}

/// Reads the columns of a trajectory one after another: for each, `column`, and then `run` for each
/// of its runs.
#[derive(Debug)]
pub struct RunReader<'a> {
    /// Number of columns, including those already read.
    pub num_columns: usize,
    pub(super) reader: Reader<'a>,
}

impl RunReader<'_> {
    /// Reads the head of the next column: true if it is squeezed, and its number of runs.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline]
    pub fn column(&mut self) -> (bool, usize) {
        let head = self.reader.varint().expect("the builder wrote this");
        (head & 1 == 1, (head >> 1) as usize)
    }

    /// The next run of the column.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline]
    pub fn run(&mut self) -> Run {
        read_run(&mut self.reader)
    }
}
