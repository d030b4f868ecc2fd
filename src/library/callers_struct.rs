//! A handle that is a struct of the caller's, as cuSPARSELt's: `int init(struct *)` fills it and `int destroy(struct *)`
//! empties it. Its calls take the address, which is the handle that a pool hands out.

use std::ffi::c_void;
use std::ptr::NonNull;

/// As large as the largest struct of any version, whose names and files do not tell its size: cuSPARSELt 0.6 has 13072 bytes,
/// 0.7 has 1024, and later versions 512. Aligned as they ask for.
#[repr(C, align(16))]
#[derive(Debug)]
pub(super) struct CallersStruct([u8; 16384]);

impl CallersStruct {
    /// Returns the address of a new one, of zeros, which stays until it is freed.
    pub(super) fn allocate() -> NonNull<c_void> {
        NonNull::from(Box::leak(Box::new(Self([0; 16384])))).cast()
    }

    /// Frees one.
    ///
    /// # Safety
    /// [`CallersStruct::allocate`] returned the address, nobody uses it, and it is freed once.
    pub(super) unsafe fn free(address: NonNull<c_void>) {
        // SAFETY: by the caller's promise it is the box that `allocate` leaked, and nobody else's.
        drop(unsafe { Box::from_raw(address.cast::<Self>().as_ptr()) });
    }
}
