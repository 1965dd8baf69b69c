// SPDX-License-Identifier: Apache-2.0
//! Strings in TensorFlow's memory layout (`TF_TString` of `ctstring_internal.h`).
//!
//! A string takes 24 bytes. The two lowest bits of the first byte encode its kind: 0 `SMALL`, at
//! most 22 bytes in place; 1 `LARGE`, on the heap of the C library; 2 `OFFSET`, behind it in the
//! same memory; 3 `VIEW`, anywhere. All kinds are read. Only the first two are written, because
//! TensorFlow copies the others without the bytes that they point to.

#![allow(unsafe_code)]

use std::ffi::c_void;

/// Size of a string in a tensor, in bytes.
pub(crate) const SIZE: usize = 24;
/// The longest string without heap memory.
const MAX_SMALL: usize = 22;
const LARGE: u8 = 1;
const OFFSET: u8 = 2;
const VIEW: u8 = 3;

unsafe extern "C" {
    // TensorFlow may free and grow strings itself, so they must come from its allocator.
    fn malloc(bytes: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

/// Writes a string into 24 bytes that hold no string.
pub(crate) fn write(place: &mut [u8; SIZE], string: &[u8]) {
    // Newer versions use the last word, so it must not keep its old content.
    place.fill(0);
    let length = string.len();
    if length <= MAX_SMALL {
        place[0] = (length as u8) << 2;
        place[1..=length].copy_from_slice(string);
        return;
    }
    let capacity = (length + 1).next_multiple_of(16) - 1;
    // SAFETY: the memory holds `capacity + 1` bytes, of which `length + 1` are written.
    let start = unsafe {
        let start = malloc(capacity + 1).cast::<u8>();
        assert!(!start.is_null(), "out of memory for a string of {length} bytes");
        std::ptr::copy_nonoverlapping(string.as_ptr(), start, length);
        start.add(length).write(0);
        start
    };
    place[0..8].copy_from_slice(&(length << 2 | usize::from(LARGE)).to_ne_bytes());
    place[8..16].copy_from_slice(&capacity.to_ne_bytes());
    place[16..24].copy_from_slice(&(start as usize).to_ne_bytes());
}

/// Frees a string that `write` allocated, or that TensorFlow put there instead.
///
/// # Safety
///
/// `place` must hold a string of a tensor that is not used any more.
pub(crate) unsafe fn release(place: &mut [u8; SIZE]) {
    if place[0] & 3 == LARGE {
        // SAFETY: strings of this kind own memory of the C library.
        unsafe { free(word(place, 16) as *mut c_void) };
    }
    place.fill(0);
}

/// The bytes of a string.
///
/// # Safety
///
/// `place` must be in the memory of a tensor of strings that lives as long as the result is used.
pub(crate) unsafe fn read(place: &[u8; SIZE]) -> &[u8] {
    let (start, length) = match place[0] & 3 {
        LARGE => (word(place, 16) as *const u8, word(place, 0) >> 2),
        VIEW => (word(place, 8) as *const u8, word(place, 0) >> 2),
        OFFSET => {
            let length = half_word(place, 0) >> 2;
            let offset = half_word(place, 4);
            (place.as_ptr().wrapping_add(offset as usize), length as usize)
        }
        _ => {
            let length = usize::from(place[0] >> 2);
            return &place[1..=length.min(SIZE - 1)];
        }
    };
    if length == 0 {
        return &[];
    }
    // SAFETY: TensorFlow keeps strings valid as long as their tensor; see `# Safety`.
    unsafe { std::slice::from_raw_parts(start, length) }
}

fn word(place: &[u8; SIZE], at: usize) -> usize {
    usize::from_ne_bytes(place[at..at + 8].try_into().expect("eight bytes"))
}

fn half_word(place: &[u8; SIZE], at: usize) -> u32 {
    u32::from_ne_bytes(place[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_any_length_come_back() {
        for length in [0, 1, 21, 22, 23, 24, 31, 32, 5000] {
            let string: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let mut place = [0xff; SIZE];
            write(&mut place, &string);
            assert_eq!(place[0] & 3, u8::from(length > MAX_SMALL));
            // SAFETY: the place holds a string, and nothing else uses it.
            unsafe {
                assert_eq!(read(&place), string);
                release(&mut place);
            }
            assert_eq!(place, [0; SIZE]);
        }
    }

    #[test]
    fn views_and_offsets_are_read() {
        let text = b"some text that lies elsewhere";
        let mut view = [0; SIZE];
        view[0..8].copy_from_slice(&(text.len() << 2 | usize::from(VIEW)).to_ne_bytes());
        view[8..16].copy_from_slice(&(text.as_ptr() as usize).to_ne_bytes());
        // SAFETY: the text is alive.
        assert_eq!(unsafe { read(&view) }, text);

        let mut places = [[0; SIZE]; 2];
        places[1][..4].copy_from_slice(b"near");
        places[0][0..4].copy_from_slice(&(4u32 << 2 | u32::from(OFFSET)).to_ne_bytes());
        places[0][4..8].copy_from_slice(&(SIZE as u32).to_ne_bytes());
        // SAFETY: the text is directly behind the string, in the same array.
        assert_eq!(unsafe { read(&places[0]) }, b"near");
    }
}
