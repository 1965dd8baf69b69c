// SPDX-License-Identifier: Apache-2.0
//! Input and output tensors.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use reverb_base::Error;
use reverb_base::memory::Memory;
use reverb_client::CellValue;
use reverb_data::tensor::shape_text;
use reverb_data::{DType, Shape, Tensor, TensorData};

use crate::api::{Opaque, api};
use crate::failure::{Failure, Outcome};
use crate::strings;

/// An input tensor of an op.
pub(crate) struct Input {
    raw: Opaque,
    dtype: DType,
    shape: Shape,
}

// SAFETY: a `TF_Tensor` is a counted reference to memory that never changes.
unsafe impl Send for Input {}
// SAFETY: as above.
unsafe impl Sync for Input {}

impl Input {
    /// Takes over a reference.
    pub(crate) fn new(raw: Opaque) -> Outcome<Self> {
        // SAFETY: `raw` is a tensor that `Input` owns from now on.
        let (number, shape) = unsafe {
            let rank = (api().TF_NumDims)(raw);
            let shape = (0..rank).map(|i| (api().TF_Dim)(raw, i) as usize).collect();
            ((api().TF_TensorType)(raw), shape)
        };
        match DType::from_number(number) {
            Ok(dtype) => Ok(Self { raw, dtype, shape }),
            Err(error) => {
                // SAFETY: as above; it is not used any more.
                unsafe { (api().TF_DeleteTensor)(raw) };
                Err(error.into())
            }
        }
    }

    pub(crate) fn raw(&self) -> Opaque {
        self.raw
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Bytes of the elements.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory belongs to the tensor, which lives as long as `self`. Without elements
        // its length is 0, and the address may be null.
        unsafe {
            let length = (api().TF_TensorByteSize)(self.raw);
            let start = (api().TF_TensorData)(self.raw).cast::<u8>();
            if length == 0 || start.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(start, length)
        }
    }

    /// The strings of a tensor of strings.
    pub(crate) fn strings(&self) -> Vec<&[u8]> {
        let (places, _) = self.bytes().as_chunks::<{ strings::SIZE }>();
        // SAFETY: the places hold the strings of this tensor, which lives as long as `self`.
        places.iter().map(|place| unsafe { strings::read(place) }).collect()
    }

    /// The value of a scalar string.
    pub(crate) fn text(&self) -> Outcome<String> {
        match (self.dtype, self.shape(), self.strings().first()) {
            (DType::String, [], Some(text)) => Ok(String::from_utf8_lossy(text).into_owned()),
            _ => Err(self.unexpected("a scalar of dtype string")),
        }
    }

    /// The value of a tensor of one string with any rank.
    pub(crate) fn one_text(&self, what: &str) -> Outcome<String> {
        match (self.dtype, &self.strings()[..]) {
            (DType::String, [text]) => Ok(String::from_utf8_lossy(text).into_owned()),
            _ => Err(Failure::invalid_argument(format!(
                "{what} must be one string, got dtype {} and shape {}",
                self.dtype.name(),
                shape_text(&self.shape),
            ))),
        }
    }

    /// The value of a scalar `int64`.
    pub(crate) fn int(&self) -> Outcome<i64> {
        match (self.dtype, self.shape(), <[u8; 8]>::try_from(self.bytes())) {
            (DType::Int64, [], Ok(bytes)) => Ok(i64::from_ne_bytes(bytes)),
            _ => Err(self.unexpected("a scalar of dtype int64")),
        }
    }

    /// The value of a scalar `bool`.
    pub(crate) fn bool(&self) -> Outcome<bool> {
        match (self.dtype, self.shape(), self.bytes()) {
            (DType::Bool, [], [value]) => Ok(*value != 0),
            _ => Err(self.unexpected("a scalar of dtype bool")),
        }
    }

    /// The values of a vector of eight-byte elements.
    pub(crate) fn vector(
        &self,
        what: &str,
        dtype: DType,
    ) -> Outcome<impl Iterator<Item = [u8; 8]>> {
        if self.dtype != dtype || self.shape.len() != 1 {
            return Err(Failure::invalid_argument(format!(
                "{what} must be a tensor of rank 1 and dtype {}, got dtype {} and shape {}",
                dtype.name(),
                self.dtype.name(),
                shape_text(&self.shape),
            )));
        }
        let (elements, _) = self.bytes().as_chunks::<8>();
        Ok(elements.iter().copied())
    }

    /// The tensor as the value of a cell.
    pub(crate) fn cell(&self) -> CellValue<'_> {
        if self.dtype == DType::String {
            let strings = self.strings().into_iter().map(<[u8]>::to_vec).collect();
            return CellValue::Strings { shape: &self.shape, strings };
        }
        CellValue::Bytes { dtype: self.dtype, shape: &self.shape, bytes: self.bytes() }
    }

    fn unexpected(&self, wanted: &str) -> Failure {
        Failure::invalid_argument(format!(
            "the op needs {wanted}, got dtype {} and shape {}",
            self.dtype.name(),
            shape_text(&self.shape),
        ))
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        // SAFETY: taken over by `new`, and freed only here.
        unsafe { (api().TF_DeleteTensor)(self.raw) };
    }
}

/// An output tensor of an op. TensorFlow takes over its memory.
pub(crate) struct Output {
    dtype: DType,
    shape: Shape,
    contents: Contents,
}

/// The memory of a tensor.
struct Contents {
    /// `None` only while it is being dropped.
    memory: Option<Memory>,
    /// Number of bytes of the elements.
    length: usize,
    holds_strings: bool,
    /// Runs on any thread when the last tensor that shares the memory is freed. Must not block.
    on_release: Option<Box<dyn FnOnce() + Send>>,
}

impl Contents {
    /// `ResourceExhausted` if there is no memory.
    fn new(length: usize, holds_strings: bool) -> Result<Self, Error> {
        let memory = Memory::take(length).ok_or_else(|| {
            Error::resource_exhausted(format!("There is no memory for a tensor of {length} bytes."))
        })?;
        let mut contents = Self { memory: Some(memory), length, holds_strings, on_release: None };
        if holds_strings {
            // Zeroed, because the old content is not a string.
            contents.bytes_mut().fill(0);
        }
        Ok(contents)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let memory = self.memory.as_mut().expect("taken by drop only");
        memory.bytes_mut(self.length)
    }

    fn places_mut(&mut self) -> &mut [[u8; strings::SIZE]] {
        self.bytes_mut().as_chunks_mut().0
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        if self.holds_strings {
            for place in self.places_mut() {
                // SAFETY: the tensor was freed or never made, so its strings are not used any more.
                unsafe { strings::release(place) };
            }
        }
        if let Some(memory) = self.memory.take() {
            memory.recycle();
        }
        if let Some(action) = self.on_release.take() {
            action();
        }
    }
}

impl Output {
    /// A tensor of fixed-size elements with any content, to be written with `bytes_mut`.
    pub(crate) fn new(dtype: DType, shape: Shape) -> Outcome<Self> {
        let length =
            Tensor::num_bytes(dtype, &shape).filter(|&length| length <= isize::MAX as usize / 2);
        let length = length.ok_or_else(|| {
            Failure::invalid_argument(format!(
                "a tensor of dtype {} and shape {} does not fit into memory",
                dtype.name(),
                shape_text(&shape)
            ))
        })?;
        Ok(Self { dtype, shape, contents: Contents::new(length, false)? })
    }

    /// A tensor of strings.
    pub(crate) fn strings<S: AsRef<[u8]>>(shape: Shape, values: &[S]) -> Outcome<Self> {
        if Tensor::num_elements(&shape) != Some(values.len()) {
            return Err(Failure::internal(format!(
                "{} strings do not make a tensor of shape {}",
                values.len(),
                shape_text(&shape)
            )));
        }
        let mut contents = Contents::new(values.len() * strings::SIZE, true)?;
        for (place, value) in contents.places_mut().iter_mut().zip(values) {
            strings::write(place, value.as_ref());
        }
        Ok(Self { dtype: DType::String, shape, contents })
    }

    /// A tensor without elements, for an output that the caller does not read.
    pub(crate) fn placeholder(dtype: DType) -> Outcome<Self> {
        if dtype == DType::String {
            return Self::strings(Shape::from_slice(&[0]), &[] as &[&[u8]]);
        }
        Self::new(dtype, Shape::from_slice(&[0]))
    }

    /// A scalar or a vector of numbers, given as bytes.
    pub(crate) fn numbers<const N: usize>(
        dtype: DType,
        shape: Shape,
        values: impl Iterator<Item = [u8; N]>,
    ) -> Outcome<Self> {
        let mut output = Self::new(dtype, shape)?;
        let (places, _) = output.bytes_mut().as_chunks_mut::<N>();
        for (place, value) in places.iter_mut().zip(values) {
            *place = value;
        }
        Ok(output)
    }

    /// A scalar `int64`.
    pub(crate) fn int(value: i64) -> Outcome<Self> {
        Self::numbers(DType::Int64, Shape::new(), std::iter::once(value.to_ne_bytes()))
    }

    /// A scalar `bool`.
    pub(crate) fn bool(value: bool) -> Outcome<Self> {
        Self::numbers(DType::Bool, Shape::new(), std::iter::once([u8::from(value)]))
    }

    /// A decoded tensor with a new shape of the same number of elements.
    pub(crate) fn from_tensor(tensor: &Tensor, shape: Shape) -> Outcome<Self> {
        match &tensor.data {
            TensorData::Strings(values) => Self::strings(shape, values),
            TensorData::Bytes(bytes) => {
                let mut output = Self::new(tensor.dtype, shape)?;
                if output.contents.length != bytes.len() {
                    return Err(Failure::internal(
                        "a tensor has another number of elements than its shape says",
                    ));
                }
                output.bytes_mut().copy_from_slice(bytes);
                Ok(output)
            }
        }
    }

    /// The elements, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.contents.bytes_mut()
    }

    /// Keeps only the first rows of a tensor of fixed-size elements.
    pub(crate) fn truncate(&mut self, rows: usize) {
        if let Some(first) = self.shape.first_mut()
            && rows < *first
        {
            self.contents.length = self.contents.length / *first * rows;
            *first = rows;
        }
    }

    /// Runs `action` when the last tensor that shares the memory is freed.
    pub(crate) fn on_release(mut self, action: impl FnOnce() + Send + 'static) -> Self {
        self.contents.on_release = Some(Box::new(action));
        self
    }

    /// A `TF_Tensor` that owns the memory.
    pub(crate) fn into_tensor(mut self) -> Outcome<Opaque> {
        let dims: Dims = self.shape.iter().map(|&dim| dim as i64).collect();
        let number = self.dtype.number();
        let length = self.contents.length;
        let start = self.contents.bytes_mut().as_mut_ptr();
        let contents = Box::into_raw(Box::new(self.contents));
        // SAFETY: the memory lives until TensorFlow calls the deallocator with `contents`. It calls
        // it once, also if it copies the data at once.
        let tensor = unsafe {
            (api().TF_NewTensor)(
                number,
                dims.as_ptr(),
                dims.len() as c_int,
                start.cast(),
                length,
                release,
                contents.cast(),
            )
        };
        if tensor.is_null() {
            return Err(Failure::internal("TensorFlow made no tensor"));
        }
        Ok(tensor)
    }
}

type Dims = smallvec::SmallVec<[i64; 6]>;

/// Called on any thread when the last tensor that shares the memory is freed.
extern "C" fn release(_data: *mut c_void, _length: usize, contents: *mut c_void) {
    // SAFETY: `into_tensor` made it, and TensorFlow calls this once.
    let contents = unsafe { Box::from_raw(contents.cast::<Contents>()) };
    // A panic must not cross into TensorFlow, and cannot be reported.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(contents)));
}
