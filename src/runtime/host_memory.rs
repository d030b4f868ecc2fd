//! The host's own memory: its NUMA nodes, the limits on what a process may lock, and mappings of it, in huge pages if the
//! system has them. The operating system's reports on it are read here, for every platform alike.
//!
//! A driver that registers memory touches its pages by one thread, which takes long; so as many threads as there are
//! cores, up to 16, do it before.

use std::ffi::c_void;
use std::fs::{self, File};
use std::num::NonZero;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::{io, ptr, thread};

use rustix::process::{Resource, getrlimit};

use super::MemoryInfo;
use crate::error::{Bytes, Error, Result, StatusKind};
use crate::ids::NumaNode;

/// Returns whether the machine has a NUMA node with this number.
pub(super) fn has_node(node: NumaNode) -> bool {
    // A kernel without NUMA lists none.
    node == NumaNode::FIRST || Path::new(&folder(node)).exists()
}

/// Returns whether the system lists several nodes, as "0-1" or "0,2"; a kernel without NUMA lists none.
fn has_many_nodes() -> bool {
    let online = fs::read_to_string("/sys/devices/system/node/online");
    online.is_ok_and(|nodes| nodes.trim().parse::<u32>().is_err())
}

fn folder(node: NumaNode) -> String {
    format!("/sys/devices/system/node/node{}", node.number())
}

/// Returns the NUMA node of a device on the PCI bus; node 0 if the system knows none.
pub(super) fn node_of_pci_device(bus_id: &str) -> NumaNode {
    let file = format!("/sys/bus/pci/devices/{}/numa_node", bus_id.to_ascii_lowercase());
    // -1 if the machine has one node.
    let number = fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    number.map_or(NumaNode::FIRST, NumaNode::from_number)
}

/// Returns a line of `meminfo`, which is in KiB, in bytes.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.split_once(name).map(|(_, rest)| rest))?;
    let number = line.trim_start_matches(':').split_whitespace().next()?;
    number.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the memory of the whole host, as the system reports it.
fn whole_memory() -> MemoryInfo {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    // If the system reports nothing, a request finds out.
    let total = field(&text, "MemTotal").unwrap_or(1 << 40);
    MemoryInfo { free: field(&text, "MemAvailable").unwrap_or(total), total }
}

/// Returns the memory within the limit of the process's control group.
fn limited(memory: MemoryInfo) -> MemoryInfo {
    let group = control_group().unwrap_or(memory);
    MemoryInfo { free: memory.free.min(group.free), total: memory.total.min(group.total) }
}

/// Returns the memory of a node, within the limit of the process's control group.
pub(super) fn node_memory(node: NumaNode) -> MemoryInfo {
    // A virtual machine that was given more memory while it ran counts it for the whole, and not for its one node.
    let of_node = has_many_nodes().then(|| fs::read_to_string(format!("{}/meminfo", folder(node))).ok()).flatten();
    let memory = of_node.and_then(|text| {
        let part = |name| field(&text, name).unwrap_or(0);
        let free = part("MemFree") + part("FilePages").saturating_sub(part("Shmem"));
        field(&text, "MemTotal").map(|total| MemoryInfo { free, total })
    });
    limited(memory.unwrap_or_else(whole_memory))
}

/// Returns how many bytes a request for memory of a node can get at most, with the help of other nodes.
pub(super) fn most_memory() -> u64 {
    limited(whole_memory()).total
}

/// Returns the memory of the process's control group as its container sees it, if it has a limit.
fn control_group() -> Option<MemoryInfo> {
    let number = |file: String| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let versions = [
        ("/sys/fs/cgroup/memory", "max", "current", "inactive_file "),
        ("/sys/fs/cgroup/memory/memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file "),
    ];
    versions.into_iter().find_map(|(group, limit, used, idle)| {
        // Version 1 writes the largest number of pages if there is no limit.
        let total = number(format!("{group}.{limit}")).filter(|&limit| limit < 1 << 60)?;
        let stat = fs::read_to_string(format!("{group}.stat")).unwrap_or_default();
        // Cached files are dropped when memory is needed.
        let idle = stat.lines().find_map(|line| line.strip_prefix(idle)?.trim().parse::<u64>().ok()).unwrap_or(0);
        let used = number(format!("{group}.{used}")).unwrap_or(0).saturating_sub(idle);
        Some(MemoryInfo { total, free: total.saturating_sub(used) })
    })
}

/// Returns whether this process, or the system, can open no more files, which pinned memory needs.
fn has_no_file_left() -> bool {
    File::open("/dev/null").is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)))
}

/// Returns what limits the memory that this process can lock, and how to raise it; none if only the machine's memory
/// does.
pub(crate) fn locking_limits() -> Option<String> {
    if has_no_file_left() {
        return Some("this process can open no more files: close some, or raise the limit with `ulimit -n`".to_owned());
    }
    let locked = getrlimit(Resource::Memlock).current.map(|bytes| {
        format!(
            "this process may lock {} of memory (RLIMIT_MEMLOCK is {bytes} bytes): raise it with `ulimit -l unlimited`, in \
             /etc/security/limits.conf, or for a container with `docker run --ulimit memlock=-1`",
            Bytes(bytes)
        )
    });
    let group = control_group().map(|group| {
        format!(
            "its control group may have {} of memory: raise it with `docker run --memory`, or in the limits of the pod",
            Bytes(group.total)
        )
    });
    let both: Vec<_> = [locked, group].into_iter().flatten().collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// The alignment of mappings: a huge page.
const PAGE: u64 = 2 << 20;
/// The bytes that a thread touches at a time.
const PART: u64 = 64 << 20;
/// The most threads that touch pages: with more the system is no faster.
const THREADS_MOST: u64 = 16;

/// When the pages of a mapping are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PagePopulation {
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
pub(super) fn map(node: NumaNode, bytes: u64, pages: PagePopulation) -> Result<u64> {
    // The system would not refuse pages that it does not have, but end a process.
    let left = limited(whole_memory()).free;
    if pages == PagePopulation::Now && left < bytes {
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
pub(super) unsafe fn unmap(address: u64, bytes: u64) {
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
    fn both_kinds_of_meminfo_are_read() {
        let of_node = "Node 0 MemTotal:       24684092 kB\nNode 0 MemFree:        11146596 kB\n";
        assert_eq!(field(of_node, "MemFree"), Some(11_146_596 << 10));
        let of_all = "MemTotal:       24684092 kB\nMemAvailable:        5 kB\n";
        assert_eq!((field(of_all, "MemAvailable"), field(of_all, "Shmem")), (Some(5 << 10), None));
    }

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
