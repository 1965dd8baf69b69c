// SPDX-License-Identifier: Apache-2.0
//! TensorFlow's C API: the functions in use, looked up in the process when ops are registered.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::failure::{Code, Failure, Outcome};
use crate::ops;

/// An object of TensorFlow; only its functions access the content.
pub(crate) type Opaque = *mut c_void;
/// Frees the memory of a tensor. Arguments: data, its length in bytes, and the argument that the
/// tensor was made with.
pub(crate) type Deallocator = extern "C" fn(*mut c_void, usize, *mut c_void);

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// `RTLD_NOW`, the same on Linux and macOS.
const NOW: c_int = 2;
/// `RTLD_NOLOAD`: only a library that is already loaded.
#[cfg(target_os = "macos")]
const NO_LOAD: c_int = 0x10;
#[cfg(not(target_os = "macos"))]
const NO_LOAD: c_int = 4;

/// The library with all functions of the C API, whichever module imported it.
#[cfg(target_os = "macos")]
const LIBRARY: &CStr = c"@rpath/libtensorflow_framework.2.dylib";
#[cfg(not(target_os = "macos"))]
const LIBRARY: &CStr = c"libtensorflow_framework.so.2";

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, named as in TensorFlow's headers `tf_status.h`, `tf_tensor.h`, `ops.h`
        /// and `kernels.h`.
        #[allow(non_snake_case)]
        pub(crate) struct Api { $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Api {
            /// Finds all functions.
            ///
            /// # Safety
            ///
            /// `library` must be a TensorFlow library as `dlopen` returned it.
            unsafe fn find(library: *mut c_void) -> Result<Self, String> {
                Ok(Self { $($name: {
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the name ends with a zero byte, and the caller guarantees the
                    // library.
                    let found = unsafe { dlsym(library, name.as_ptr().cast()) };
                    if found.is_null() {
                        return Err(format!("this TensorFlow has no function {}", stringify!($name)));
                    }
                    // SAFETY: TensorFlow declares the function with this type; the C API does not
                    // change within version 2.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found) }
                },)* })
            }
        }
    };
}

functions! {
    TF_NewStatus: fn() -> Opaque;
    TF_DeleteStatus: fn(Opaque);
    TF_SetStatus: fn(Opaque, c_int, *const c_char);
    TF_GetCode: fn(Opaque) -> c_int;
    TF_Message: fn(Opaque) -> *const c_char;
    TF_NewOpDefinitionBuilder: fn(*const c_char) -> Opaque;
    TF_OpDefinitionBuilderAddAttr: fn(Opaque, *const c_char);
    TF_OpDefinitionBuilderAddInput: fn(Opaque, *const c_char);
    TF_OpDefinitionBuilderAddOutput: fn(Opaque, *const c_char);
    TF_OpDefinitionBuilderSetIsStateful: fn(Opaque, bool);
    TF_OpDefinitionBuilderSetShapeInferenceFunction: fn(Opaque, extern "C" fn(Opaque, Opaque));
    TF_RegisterOpDefinition: fn(Opaque, Opaque);
    TF_ShapeInferenceContextSetUnknownShape: fn(Opaque, Opaque);
    TF_NewKernelBuilder: fn(*const c_char, *const c_char, extern "C" fn(Opaque) -> Opaque, extern "C" fn(Opaque, Opaque), extern "C" fn(Opaque)) -> Opaque;
    TF_RegisterKernelBuilder: fn(*const c_char, Opaque, Opaque);
    TF_OpKernelConstruction_GetNodeDef: fn(Opaque, Opaque) -> *mut Buffer;
    TF_OpKernelConstruction_Failure: fn(Opaque, Opaque);
    TF_OpKernelContext_Failure: fn(Opaque, Opaque);
    TF_NumInputs: fn(Opaque) -> c_int;
    TF_GetInput: fn(Opaque, c_int, *mut Opaque, Opaque);
    TF_SetOutput: fn(Opaque, c_int, Opaque, Opaque);
    TF_NewTensor: fn(c_int, *const i64, c_int, *mut c_void, usize, Deallocator, *mut c_void) -> Opaque;
    TF_DeleteTensor: fn(Opaque);
    TF_TensorType: fn(Opaque) -> c_int;
    TF_NumDims: fn(Opaque) -> c_int;
    TF_Dim: fn(Opaque, c_int) -> i64;
    TF_TensorByteSize: fn(Opaque) -> usize;
    TF_TensorData: fn(Opaque) -> *mut c_void;
    TF_DeleteBuffer: fn(*mut Buffer);
}

/// `TF_Buffer`.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) data: *const c_void,
    pub(crate) length: usize,
    deallocator: Option<unsafe extern "C" fn(*mut c_void, usize)>,
}

static API: OnceLock<Api> = OnceLock::new();

/// The functions. Only ops call this, and ops exist only after the functions were found.
pub(crate) fn api() -> &'static Api {
    API.get().expect("ops are registered after the functions were found")
}

/// A `TF_Status`.
pub(crate) struct Status(Opaque);

impl Status {
    pub(crate) fn new() -> Self {
        // SAFETY: takes nothing; freed by `drop`.
        Self(unsafe { (api().TF_NewStatus)() })
    }

    /// A status with the code and the text of a failure.
    pub(crate) fn from_failure(failure: &Failure) -> Self {
        let status = Self::new();
        // The text ends at its first zero byte.
        let text = failure.message.split('\0').next().unwrap_or_default();
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the status is alive, and the text ends with a zero byte.
        unsafe { (api().TF_SetStatus)(status.0, failure.code as c_int, text.as_ptr()) };
        status
    }

    pub(crate) fn raw(&self) -> Opaque {
        self.0
    }

    /// Fails if a TensorFlow function reported an error.
    pub(crate) fn check(&self) -> Outcome<()> {
        // SAFETY: the status is alive, and its text lives as long.
        unsafe {
            if (api().TF_GetCode)(self.0) == 0 {
                return Ok(());
            }
            let text = CStr::from_ptr((api().TF_Message)(self.0)).to_string_lossy();
            Err(Failure::new(Code::Internal, text))
        }
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and freed only here.
        unsafe { (api().TF_DeleteStatus)(self.0) };
    }
}

/// The address of the function that registers all ops, for the shim.
pub fn register_address() -> usize {
    register as *const () as usize
}

/// Registers all ops in the TensorFlow of this process. Returns 0, 1 if they were registered
/// before, and -1 if it failed; then `error` holds a text of at most `capacity` bytes, the
/// terminating zero byte included.
extern "C" fn register(error: *mut c_char, capacity: usize) -> c_int {
    let registered = std::panic::catch_unwind(register_once)
        .unwrap_or_else(|_| Err("a bug of reverb, please report it".to_owned()));
    match registered {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(text) => {
            if capacity > 0 && !error.is_null() {
                let length = text.len().min(capacity - 1);
                // SAFETY: the caller's memory holds `capacity` bytes, of which `length + 1` are
                // written.
                unsafe {
                    std::ptr::copy_nonoverlapping(text.as_ptr(), error.cast(), length);
                    error.add(length).write(0);
                }
            }
            -1
        }
    }
}

fn register_once() -> Result<bool, String> {
    if API.get().is_some() {
        return Ok(false);
    }
    // SAFETY: the name ends with a zero byte; with these flags nothing is loaded and nothing runs.
    let library = unsafe { dlopen(LIBRARY.as_ptr(), NOW | NO_LOAD) };
    if library.is_null() {
        return Err("no TensorFlow is loaded in this process; import tensorflow first".to_owned());
    }
    // SAFETY: that is TensorFlow's library.
    let api = unsafe { Api::find(library) }?;
    if API.set(api).is_err() {
        return Ok(false);
    }
    ops::register_all().map_err(|failure| failure.message)?;
    Ok(true)
}
