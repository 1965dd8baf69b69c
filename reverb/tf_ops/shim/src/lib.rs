// SPDX-License-Identifier: Apache-2.0
//! The library that `tf.load_op_library` opens. Its constructor calls the register function of the
//! native module.
//!
//! TensorFlow makes Python wrappers for the ops that register *while* it opens a library. The
//! kernels live in the native module, which is loaded long before; this second library gives them
//! their moment. The two are not linked: `reverb.tf_ops` hands over the address of the register
//! function in an environment variable.

// The profile `shim` aborts on a panic, and so needs nothing of the standard library, which would
// make the file fifty times as large. Other profiles, those of lints and tests, unwind, and cannot
// do without it.
#![cfg_attr(panic = "abort", no_std)]
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};

/// The address of a [`Register`] in this process, in hexadecimal digits.
const VARIABLE: &CStr = c"REVERB_REPLAY_REGISTER";

/// Registers ops and kernels with the TensorFlow that is being told to load this library.
///
/// Returns 0 when it did, 1 when it had done so before, and a negative number when it could not;
/// then `error` holds a text of less than `capacity` bytes, ended by a zero.
type Register = extern "C" fn(error: *mut c_char, capacity: usize) -> c_int;

/// Run by the loader, with TensorFlow waiting for the ops.
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
        say(b"import reverb first; it tells this library where its TensorFlow ops are");
        return;
    };
    let mut error = [0_u8; 512];
    if register(error.as_mut_ptr().cast(), error.len()) < 0 {
        say(error.split(|&byte| byte == 0).next().unwrap_or_default());
    }
}

/// Finds the function that the environment names. `None` when it names none.
fn register_function() -> Option<Register> {
    // SAFETY: the name ends with a zero. Nobody changes the environment meanwhile: `reverb.tf_ops`
    // holds a lock.
    let value = unsafe { getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: what `getenv` returns is a string that ends with a zero.
    let digits = unsafe { core::slice::from_raw_parts(value.cast::<u8>(), strlen(value)) };
    let address = parse_address(digits)?;
    // SAFETY: whoever sets the variable vouches for the address; only `reverb.tf_ops` does, for the
    // time of the load.
    Some(unsafe { core::mem::transmute::<*const c_void, Register>(address as *const c_void) })
}

/// Reads hexadecimal digits with or without `0x`. `None` for anything else, for zero, and for more
/// than an address.
fn parse_address(digits: &[u8]) -> Option<usize> {
    let mut address = 0_usize;
    for &digit in digits.strip_prefix(b"0x").unwrap_or(digits) {
        let value = char::from(digit).to_digit(16)?;
        address = address.checked_mul(16)? | value as usize;
    }
    (address != 0).then_some(address)
}

/// Writes one line to the standard error, in one piece.
fn say(message: &[u8]) {
    let text = b"reverb: no TensorFlow ops were registered: ".iter().chain(message).chain(b"\n");
    let mut line = [0_u8; 1024];
    let mut length = 0;
    for (place, &byte) in line.iter_mut().zip(text) {
        *place = byte;
        length += 1;
    }
    // SAFETY: `line` has that many bytes. A line that cannot be written is nothing to act upon.
    unsafe { write(2, line.as_ptr().cast(), length) };
}

/// Obligatory without a standard library; nothing here panics.
#[cfg(panic = "abort")]
#[panic_handler]
fn stop(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        safe fn abort() -> !;
    }
    abort()
}
