// SPDX-License-Identifier: Apache-2.0
//! Reads a file of records in blocks of whole records.
//!
//! The reader inflates the stream and finds the ends of records, because both are sequential. The
//! consumer of a block checks and parses the data of its records.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};
use reverb_base::{Error, Result};
use reverb_files::masked_crc;

use crate::failure::{damaged, from_io};
use crate::progress::Progress;
use crate::record::{FOOTER_BYTES, HEADER_BYTES, parse_header, record_bytes};

const INPUT_BYTES: usize = 256 * 1024;

/// Minimum size of a block, which ends with the record that reaches it.
const BLOCK_BYTES: usize = 512 * 1024;

/// Memory for a record beyond which at most twice its bytes in the file are allocated, because a
/// damaged length may claim any size.
const MIN_GROWTH_BYTES: usize = 64 << 20;

/// Whole records of a file.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    path: Arc<Path>,
    bytes: Bytes,
    /// Offset in the uncompressed file.
    offset: u64,
    first_record: u64,
}

#[derive(Debug)]
pub(crate) struct Record<'a> {
    block: &'a Block,
    pub(crate) data: &'a [u8],
    offset: u64,
    number: u64,
}

impl Record<'_> {
    pub(crate) fn damaged(&self, what: &str) -> Error {
        damaged(&self.block.path, &position(self.number, self.offset), what)
    }
}

fn position(record: u64, offset: u64) -> String {
    format!("in record {record}, at byte {offset} of its uncompressed content")
}

impl Block {
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its records. Each is checked when it is returned.
    pub(crate) fn records(&self) -> impl Iterator<Item = Result<Record<'_>>> {
        let mut at = 0;
        let mut number = self.first_record;
        std::iter::from_fn(move || {
            let rest = &self.bytes[at..];
            let (header, rest) = rest.split_first_chunk::<HEADER_BYTES>()?;
            let offset = self.offset + at as u64;
            // The reader has checked the lengths already.
            let length = parse_header(header)? as usize;
            let data = &rest[..length];
            let footer = &rest[length..length + FOOTER_BYTES];
            let record = Record { block: self, data, offset, number };
            at += HEADER_BYTES + length + FOOTER_BYTES;
            number += 1;
            if footer == masked_crc(data).to_le_bytes() {
                Some(Ok(record))
            } else {
                Some(Err(record.damaged("the checksum of its data is wrong.")))
            }
        })
    }
}

#[derive(Debug)]
pub(crate) struct Blocks {
    path: Arc<Path>,
    input: Input,
    max_record_bytes: u64,
    /// Beginning of an incomplete record.
    carry: Vec<u8>,
    /// The offset of `carry` in the uncompressed file.
    offset: u64,
    num_records: u64,
}

impl Blocks {
    pub(crate) fn new(
        path: PathBuf,
        file: &Arc<File>,
        encoding: Encoding,
        max_record_bytes: u64,
        progress: &Arc<Progress>,
    ) -> Self {
        let path: Arc<Path> = path.into();
        let inflate = (encoding == Encoding::Zlib).then(|| Decompress::new(true));
        let input = Input {
            path: Arc::clone(&path),
            file: Arc::clone(file),
            progress: Arc::clone(progress),
            buffer: vec![0; INPUT_BYTES],
            filled: 0,
            used: 0,
            file_offset: 0,
            inflate,
            is_over: false,
        };
        Self { path, input, max_record_bytes, carry: Vec::new(), offset: 0, num_records: 0 }
    }

    pub(crate) fn num_records(&self) -> u64 {
        self.num_records
    }

    /// The next block, or `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// `DataLoss` if the stream or the length of a record is damaged, if a record is too long, or
    /// if the file ends too early; `ResourceExhausted` if there is no memory for a record.
    pub(crate) fn next(&mut self) -> Result<Option<Block>> {
        let mut bytes = std::mem::take(&mut self.carry);
        // End of the complete records, and their number.
        let mut end = 0;
        let mut count = 0;
        let mut wanted = BLOCK_BYTES;
        loop {
            if bytes.len() < wanted {
                self.input.read(&mut bytes, wanted)?;
            }
            while let Some(header) = bytes[end..].first_chunk::<HEADER_BYTES>() {
                let Some(length) = parse_header(header) else {
                    return Err(self.damaged(count, end, "the checksum of its length is wrong."));
                };
                if length > self.max_record_bytes {
                    let what = format!(
                        "it has {length} bytes, and a record of this file at most {}.",
                        self.max_record_bytes
                    );
                    return Err(self.damaged(count, end, &what));
                }
                let next = (end as u64).saturating_add(record_bytes(length));
                if next > bytes.len() as u64 {
                    wanted = usize::try_from(next).unwrap_or(usize::MAX);
                    break;
                }
                (end, count) = (next as usize, count + 1);
                wanted = end.max(BLOCK_BYTES);
            }
            if count > 0 || self.input.is_over {
                break;
            }
            wanted = wanted.min(bytes.len() + bytes.len().max(MIN_GROWTH_BYTES));
        }
        if count == 0 && bytes.is_empty() {
            return Ok(None);
        }
        if self.input.is_over && end < bytes.len() {
            return Err(self.damaged(count, end, "the file ends in the middle of it."));
        }
        self.carry = bytes[end..].to_vec();
        bytes.truncate(end);
        let block = Block {
            path: Arc::clone(&self.path),
            bytes: bytes.into(),
            offset: self.offset,
            first_record: self.num_records,
        };
        self.offset += end as u64;
        self.num_records += count;
        Ok(Some(block))
    }

    fn damaged(&self, record: u64, at: usize, what: &str) -> Error {
        let at = position(self.num_records + record, self.offset + at as u64);
        damaged(&self.path, &at, what)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// One zlib stream per file.
    Zlib,
    /// Uncompressed, in checkpoints of early releases of dm-reverb.
    Plain,
}

impl Encoding {
    /// Detects the encoding of a file with at least one record.
    pub(crate) fn from_file(path: &Path, file: &File) -> Result<Self> {
        let mut header = [0; HEADER_BYTES];
        let read = read_at(file, &mut header, 0).map_err(|error| from_io("read", path, &error))?;
        // A header with a correct checksum is no coincidence, even if its bytes are a valid zlib
        // header.
        let is_record = read == HEADER_BYTES && parse_header(&header).is_some();
        Ok(if is_record { Self::Plain } else { Self::Zlib })
    }
}

#[derive(Debug)]
struct Input {
    path: Arc<Path>,
    file: Arc<File>,
    progress: Arc<Progress>,
    buffer: Vec<u8>,
    filled: usize,
    used: usize,
    /// The offset of `buffer` in the file.
    file_offset: u64,
    inflate: Option<Decompress>,
    is_over: bool,
}

impl Input {
    /// Appends to `out` until it is `wanted` bytes long, or the file ends.
    fn read(&mut self, out: &mut Vec<u8>, wanted: usize) -> Result<()> {
        out.try_reserve_exact(wanted.saturating_sub(out.len())).map_err(|_| {
            Error::resource_exhausted(format!(
                "Checkpoint: there is no memory for a record of {wanted} bytes of {}.",
                self.path.display()
            ))
        })?;
        while out.len() < wanted && !self.is_over {
            if self.used == self.filled {
                self.fill()?;
            }
            if self.inflate.is_some() {
                self.inflate_some(out)?;
            } else if self.filled == 0 {
                self.is_over = true;
            } else {
                let take = (wanted - out.len()).min(self.filled - self.used);
                out.extend_from_slice(&self.buffer[self.used..self.used + take]);
                self.used += take;
            }
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        self.file_offset += self.filled as u64;
        self.used = 0;
        self.filled = loop {
            match read_at(&self.file, &mut self.buffer, self.file_offset) {
                Ok(filled) => break filled,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(from_io("read", &self.path, &error)),
            }
        };
        self.progress.add_bytes(self.filled as u64);
        Ok(())
    }

    fn inflate_some(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let Some(inflate) = &mut self.inflate else { return Ok(()) };
        let at = |used: usize| format!("at byte {}", self.file_offset + used as u64);
        if self.filled == 0 {
            let what = "the compressed stream has no end; the file was cut off.";
            return Err(damaged(&self.path, &at(0), what));
        }
        let before_in = inflate.total_in();
        let before_out = inflate.total_out();
        let input = &self.buffer[self.used..self.filled];
        let status = inflate.decompress_vec(input, out, FlushDecompress::None);
        let consumed = (inflate.total_in() - before_in) as usize;
        let status = status.map_err(|error| {
            let what = format!("it is not a valid zlib stream ({error}).");
            damaged(&self.path, &at(self.used + consumed), &what)
        })?;
        self.used += consumed;
        if status == Status::StreamEnd {
            let end = self.file_offset + self.used as u64;
            let rest = read_at(&self.file, &mut [0], end);
            if rest.map_err(|error| from_io("read", &self.path, &error))? > 0 {
                let what = "bytes follow the end of the compressed stream.";
                return Err(damaged(&self.path, &at(self.used), what));
            }
            self.is_over = true;
        } else if consumed == 0 && inflate.total_out() == before_out {
            let what = "the compressed stream makes no progress.";
            return Err(damaged(&self.path, &at(self.used), what));
        }
        Ok(())
    }
}

/// Reads at an offset, independently of other readers of the file.
#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

/// Reads at an offset, independently of other readers of the file.
#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}
