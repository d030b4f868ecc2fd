//! Memory of the host for this library's own lists, which is the system's: what gives the program its own may call the driver,
//! and have a lock meanwhile for which a thread would wait that has those of the lists. In the child of a fork of a process
//! that has counted there is none, as another thread may have been in the middle of a change.

use std::alloc::{GlobalAlloc, Layout};
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, PoisonError};

struct System;

#[global_allocator]
static SYSTEM: System = System;

/// What is larger is mapped alone.
const LARGEST: usize = 1 << 15;
/// What is mapped at once for the others.
const AT_ONCE: usize = 1 << 16;
/// The least has room for the address of the next one.
const LEAST: usize = 16;
/// Memory is aligned to no more.
const PAGE: usize = 4096;

struct Free {
    /// The first free block of each power of two, which has the address of the next in it.
    first: [usize; LARGEST.trailing_zeros() as usize + 1],
    /// What has been no block yet.
    fresh: Range<usize>,
}

static FREE: Mutex<Free> = Mutex::new(Free { first: [0; LARGEST.trailing_zeros() as usize + 1], fresh: 0..0 });

/// Returns whether nobody is in the middle of a change.
pub(crate) fn is_free() -> bool {
    FREE.try_lock().is_ok()
}

/// Returns how long the block for something is.
fn length(layout: Layout) -> usize {
    layout.size().max(layout.align()).max(LEAST).next_power_of_two()
}

/// Returns so many new bytes; 0 where there are none. By the system's own call: the C library's function may be another's.
fn map(bytes: usize) -> usize {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: what is mapped anew is nobody's.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, 0_usize, bytes, access, kind, usize::MAX, 0_usize) };
    if mapped == -1 { 0 } else { mapped as usize }
}

// SAFETY: a block is as long and aligned as is asked for, and nobody else's until it is given back.
unsafe impl GlobalAlloc for System {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let length = length(layout);
        if layout.align() > PAGE {
            return ptr::null_mut();
        }
        if length > LARGEST {
            return map(layout.size()) as *mut u8;
        }
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let first = free.first[length.trailing_zeros() as usize];
        if first != 0 {
            // SAFETY: a free block has the address of the next one.
            free.first[length.trailing_zeros() as usize] = unsafe { *(first as *const usize) };
            return first as *mut u8;
        }
        let mut start = free.fresh.start.next_multiple_of(length.min(PAGE));
        if start + length > free.fresh.end {
            start = map(AT_ONCE);
            if start == 0 {
                return ptr::null_mut();
            }
            free.fresh.end = start + AT_ONCE;
        }
        free.fresh.start = start + length;
        start as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let length = length(layout);
        if length > LARGEST {
            // SAFETY: it was mapped alone.
            unsafe { libc::syscall(libc::SYS_munmap, block, layout.size()) };
            return;
        }
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let first = &mut free.first[length.trailing_zeros() as usize];
        // SAFETY: the block is long enough, and nobody else's from now on.
        unsafe { *block.cast::<usize>() = *first };
        *first = block as usize;
    }
}
