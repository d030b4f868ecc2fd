//! What the C library exports: one function, which returns the table of all others.
//!
//! Its name stays, and the table only grows, so a program that was linked against an older gpupool runs with a newer one.
//! The library's name, libgpupool.so.0, changes when that cannot be kept. The Python module exports the same under the same
//! name, so that what is linked against the library shares its memory once `import gpupool` has loaded it.

use std::ptr;

use super::{Api, C_API, VERSION};
use crate::memory;

/// Returns the table of functions that `gpupool.h` declares; null if this gpupool knows no such version of it.
// SAFETY: the name begins with that of this library, and no other defines it.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gpupool_get_api(version: u64) -> *const Api {
    memory::begin();
    if version <= VERSION { &raw const C_API } else { ptr::null() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_for_its_version_and_older_ones() {
        for version in 0..=VERSION {
            assert!(ptr::eq(gpupool_get_api(version), &raw const C_API));
        }
        assert!(gpupool_get_api(VERSION + 1).is_null());
    }
}
