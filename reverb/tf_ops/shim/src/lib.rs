// SPDX-License-Identifier: Apache-2.0
//! Library that `tf.load_op_library` loads. Its constructor calls the register function of the
//! native module.
//!
//! Design: `docs/design/tensorflow.md`.
//!
//! TensorFlow makes Python wrappers for the ops that register *while* it loads a library. The
//! kernels are in the native module, which is loaded long before. This second library lets them
//! register at the right time. The two are not linked: `reverb.tf_ops` passes the address of the
//! register function in an environment variable.

// The profile `shim` aborts on a panic, so it does not need the standard library, which would make
// the file fifty times as large. The profiles of lints and tests unwind, and need it.
#![cfg_attr(panic = "abort", no_std)]
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};

/// The environment variable with the address of a [`Register`] in this process, in hexadecimal
/// digits.
const VARIABLE: &CStr = c"REVERB_REPLAY_REGISTER";

/// Registers ops and kernels with the TensorFlow that is loading this library.
///
/// Returns 0 if it registered them, 1 if they were registered before, and a negative number if it
/// failed; then `error` holds a text of less than `capacity` bytes, terminated by a zero.
type Register = extern "C" fn(error: *mut c_char, capacity: usize) -> c_int;

/// Run by the loader while TensorFlow waits for the ops.
#[used]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_os = "macos"), unsafe(link_section = ".init_array"))]
static CONSTRUCTOR: extern "C" fn() = construct;

#[link(name = "c")]
unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn strlen(text: *const c_char) -> usize;
    fn write(file: c_int, bytes: *const c_void, count: usize) -> isize;
}

extern "C" fn construct() {
    let Some(register) = register_function() else {
        print_error(b"import reverb first; it tells this library where its TensorFlow ops are");
        return;
    };
    let mut error = [0_u8; 512];
    if register(error.as_mut_ptr().cast(), error.len()) < 0 {
        print_error(error.split(|&byte| byte == 0).next().unwrap_or_default());
    }
}

/// Finds the function whose address is in the environment, if the variable is set.
fn register_function() -> Option<Register> {
    // SAFETY: the name ends with a zero. The environment does not change meanwhile: `reverb.tf_ops`
    // holds a lock.
    let value = unsafe { getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: `getenv` returns a string that ends with a zero.
    let digits = unsafe { core::slice::from_raw_parts(value.cast::<u8>(), strlen(value)) };
    let address = parse_address(digits)?;
    // SAFETY: the setter of the variable guarantees the address; only `reverb.tf_ops` sets it, and
    // only during the load.
    Some(unsafe { core::mem::transmute::<*const c_void, Register>(address as *const c_void) })
}

/// Parses hexadecimal digits with or without `0x`. `None` for anything else, for zero, and for more
/// digits than an address has.
fn parse_address(digits: &[u8]) -> Option<usize> {
    let mut address = 0_usize;
    for &digit in digits.strip_prefix(b"0x").unwrap_or(digits) {
        let value = char::from(digit).to_digit(16)?;
        address = address.checked_mul(16)? | value as usize;
    }
    (address != 0).then_some(address)
}

/// Writes one line to standard error, in one call.
fn print_error(message: &[u8]) {
    let text = b"reverb: no TensorFlow ops were registered: ".iter().chain(message).chain(b"\n");
    let mut line = [0_u8; 1024];
    let mut length = 0;
    for (slot, &byte) in line.iter_mut().zip(text) {
        *slot = byte;
        length += 1;
    }
    // SAFETY: `line` has that many bytes. A failed write is ignored.
    unsafe { write(2, line.as_ptr().cast(), length) };
}

/// Required without a standard library; nothing here panics.
#[cfg(panic = "abort")]
#[panic_handler]
fn stop(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        safe fn abort() -> !;
    }
    abort()
}
