//! What the operating system maps for simulated memory: bytes of a device's file, or nothing, at addresses of ours. Under
//! Miri, which maps no files, addresses are numbers without memory.

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::system_error;
use super::virtual_memory::PAGE;
use crate::error::Result;

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Returns the system's error, if the status of its call is one.
fn checked(function: &str, status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(system_error(function, &io::Error::last_os_error())) }
}

/// Under Miri, the next free address, far from real ones.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1 << 46);

/// What `mmap` puts at addresses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
    /// Nothing: the addresses are only kept from others.
    Nothing,
    /// Bytes of a file from an offset on, without access.
    Closed(RawFd, u64),
    /// Such bytes, to read and write.
    Open(RawFd, u64),
}

/// Calls `mmap` at free addresses, or over these.
///
/// # Safety
/// Nothing uses what is at `over` now.
pub(super) unsafe fn map(function: &str, over: Option<u64>, bytes: u64, behind: Behind) -> Result<u64> {
    if cfg!(miri) {
        return Ok(over.unwrap_or_else(|| NEXT_NUMBER.fetch_add(bytes + PAGE, Ordering::Relaxed)));
    }
    const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (protection, flags, file, offset) = match behind {
        Behind::Nothing => (libc::PROT_NONE, ANONYMOUS, -1, 0),
        Behind::Closed(file, offset) => (libc::PROT_NONE, libc::MAP_SHARED, file, offset),
        Behind::Open(file, offset) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, offset),
    };
    let flags = if over.is_some() { flags | libc::MAP_FIXED } else { flags };
    let at = over.map_or(ptr::null_mut(), pointer);
    // SAFETY: fixed addresses are ones of ours that the caller vouches for, others are chosen by the system.
    let mapped = unsafe { libc::mmap(at, bytes as usize, protection, flags, file, offset as libc::off_t) };
    if mapped == libc::MAP_FAILED {
        Err(system_error(function, &io::Error::last_os_error()))
    } else {
        Ok(mapped.expose_provenance() as u64)
    }
}

/// # Safety
/// These are addresses of ours that nothing uses any more.
pub(super) unsafe fn unmap(function: &str, address: u64, bytes: u64) -> Result<()> {
    if bytes == 0 || cfg!(miri) {
        return Ok(());
    }
    // SAFETY: the caller vouches for the addresses.
    checked(function, unsafe { libc::munmap(pointer(address), bytes as usize) })
}

/// Lets the process read and write a range of mappings made by [`map`], where more access does no harm.
pub(super) fn open(function: &str, address: u64, bytes: u64) -> Result<()> {
    if cfg!(miri) {
        return Ok(());
    }
    // SAFETY: access alone changes, of mappings of ours.
    let status = unsafe { libc::mprotect(pointer(address), bytes as usize, libc::PROT_READ | libc::PROT_WRITE) };
    checked(function, status)
}
