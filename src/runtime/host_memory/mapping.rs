//! Mappings of host memory, in huge pages if the system has them, whose pages several threads touch. A driver that
//! registers memory touches its pages by one thread, which takes long; so as many threads as there are cores, up to 16,
//! do it before.

use std::ffi::c_void;
use std::num::NonZero;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::{io, ptr, thread};

use super::available;
use crate::error::{Bytes, Error, Result, StatusKind};
use crate::ids::NumaNode;

/// The alignment of mappings: a huge page.
const PAGE: u64 = 2 << 20;
/// The bytes that a thread touches at a time.
const PART: u64 = 64 << 20;
/// The most threads that touch pages: with more the system is no faster.
const THREADS_MOST: u64 = 16;

/// When the pages of a mapping are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::runtime) enum PagePopulation {
    /// By several threads, before the mapping is returned.
    Now,
    /// When they are first written to.
    WhenWritten,
}

#[cold]
fn refused(function: &str, error: &io::Error) -> Error {
    let code = error.raw_os_error().unwrap_or(0);
    let kind = if matches!(code, libc::ENOMEM | libc::EAGAIN) { StatusKind::OutOfMemory } else { StatusKind::Other };
    let status = if kind == StatusKind::OutOfMemory { "out of memory" } else { "a system error" };
    Error::refused("the system", function, status, code, kind)
        .map_library(|refused| refused.advice = Some(error.to_string()))
}

fn pointer(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Maps host memory, aligned to 2 MiB, on this NUMA node while it has room.
///
/// # Errors
/// `ErrorKind::Library` if the system refuses, or has less left.
pub(in crate::runtime) fn map(node: NumaNode, bytes: u64, pages: PagePopulation) -> Result<u64> {
    // The system would not refuse pages that it does not have, but end a process.
    if pages == PagePopulation::Now
        && let Some(left) = available().filter(|&left| left < bytes)
    {
        let why = format!("the host has {} left", Bytes(left));
        return Err(Error::no_memory("the system", why));
    }
    let too_many = || refused("mmap", &io::Error::from_raw_os_error(libc::ENOMEM));
    let bytes = bytes.checked_next_multiple_of(PAGE).ok_or_else(too_many)?;
    // A page more, so that whole pages can be cut out of it.
    let taken = bytes.checked_add(PAGE).filter(|&taken| taken <= isize::MAX as u64).ok_or_else(too_many)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = if pages == PagePopulation::WhenWritten { flags | libc::MAP_NORESERVE } else { flags };
    // SAFETY: the system chooses the addresses.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), taken as usize, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(refused("mmap", &io::Error::last_os_error()));
    }
    let first = mapped.expose_provenance() as u64;
    let address = first.next_multiple_of(PAGE);
    let before = address - first;
    // SAFETY: both ends are of the range that was just mapped, and not of what is kept.
    unsafe {
        unmap(first, before);
        unmap(address + bytes, PAGE - before);
    }
    prefer(node, address, bytes);
    if pages == PagePopulation::Now
        && let Err(error) = bring_in(address, bytes)
    {
        // SAFETY: the range was just mapped, and only this function knows it.
        unsafe { unmap(address, bytes) };
        return Err(error);
    }
    Ok(address)
}

/// Unmaps what [`map`] returned, or a part of it.
///
/// # Safety
/// Nothing uses these addresses again.
pub(in crate::runtime) unsafe fn unmap(address: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: the caller gives the addresses up. The system refuses only where it has no room to note a gap, and then
        // the memory stays.
        unsafe { libc::munmap(pointer(address), bytes.next_multiple_of(PAGE) as usize) };
    }
}

/// Asks the system for huge pages, and for pages of the node. A system that has or allows neither gives others, which
/// are only slower.
fn prefer(node: NumaNode, address: u64, bytes: u64) {
    const MPOL_PREFERRED: libc::c_ulong = 1;
    const BITS: u32 = libc::c_ulong::BITS;
    // SAFETY: advice on a mapping of ours changes nothing of what is in it.
    unsafe { libc::madvise(pointer(address), bytes as usize, libc::MADV_HUGEPAGE) };
    let mut mask = vec![0 as libc::c_ulong; (node.number() / BITS) as usize + 1];
    if let Some(word) = mask.last_mut() {
        *word = 1 << (node.number() % BITS);
    }
    let nodes = mask.len() as libc::c_ulong * libc::c_ulong::from(BITS) + 1;
    // SAFETY: the mask has as many bits as said, and the policy of a mapping changes nothing of what is in it.
    unsafe { libc::syscall(libc::SYS_mbind, address, bytes, MPOL_PREFERRED, mask.as_ptr(), nodes, 0) };
}

/// Touches the pages of a new mapping.
fn bring_in(address: u64, bytes: u64) -> Result<()> {
    let next = AtomicU64::new(0);
    let failed = AtomicI32::new(0);
    let work = || {
        loop {
            let start = next.fetch_add(PART, Ordering::Relaxed);
            if start >= bytes || failed.load(Ordering::Relaxed) != 0 {
                return;
            }
            if let Err(code) = bring_in_part(address + start, PART.min(bytes - start)) {
                failed.store(code, Ordering::Relaxed);
            }
        }
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let threads = bytes.div_ceil(PART).min(processors).min(THREADS_MOST);
    thread::scope(|scope| {
        for _ in 1..threads {
            // With fewer threads it takes longer.
            let _ = thread::Builder::new().name("gpupool-pages".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    match failed.load(Ordering::Relaxed) {
        0 => Ok(()),
        code => Err(refused("madvise", &io::Error::from_raw_os_error(code))),
    }
}

/// Touches the pages of a part. Returns the system's error code if that fails.
fn bring_in_part(address: u64, bytes: u64) -> Result<(), i32> {
    // SAFETY: the pages are of a new mapping, where writing zeros changes nothing.
    if unsafe { libc::madvise(pointer(address), bytes as usize, libc::MADV_POPULATE_WRITE) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        // Before Linux 5.14.
        Some(libc::EINVAL) => {
            for at in (address..address + bytes).step_by(4096) {
                // SAFETY: the page is of a new mapping, which nothing else uses yet and whose bytes are zeros.
                unsafe { pointer(at).cast::<u8>().write_volatile(0) };
            }
            Ok(())
        }
        Some(libc::EINTR) => bring_in_part(address, bytes),
        code => Err(code.unwrap_or(libc::ENOMEM)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri unmaps no part of a mapping")]
    fn a_mapping_is_aligned_writable_and_all_there() {
        let bytes = PART + 3 * PAGE;
        let address = map(NumaNode::FIRST, bytes, PagePopulation::Now).unwrap_or_default();
        assert!(address > 0 && address.is_multiple_of(PAGE));
        let mut resident = vec![0_u8; (bytes / 4096) as usize];
        // SAFETY: the range was just mapped, and `resident` has a byte for each of its pages.
        unsafe {
            assert_eq!(libc::mincore(pointer(address), bytes as usize, resident.as_mut_ptr()), 0);
            pointer(address + bytes - 1).cast::<u8>().write(7);
            unmap(address, bytes);
        }
        assert!(resident.iter().all(|page| page & 1 == 1));
    }

    #[test]
    fn more_than_the_host_has_is_refused_before_any_page_comes() {
        let error =
            map(NumaNode::FIRST, 1 << 45, PagePopulation::Now).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("left"), "{error}");
    }
}
