//! The host's own memory: its NUMA nodes, the limits of locked memory, and mappings whose pages several threads touch.
//! The operating system's reports on it are read here, for every platform alike.

mod limits;
mod mapping;

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{MemoryInfo, get};
use crate::error::{Error, Result};
use crate::ids::{Device, NumaNode};
pub(crate) use limits::locking_limits;
pub(in crate::runtime) use mapping::{PagePopulation, map, unmap};

/// As many nodes as Linux supports.
pub(crate) const NODES_MAX: usize = 1024;

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
    let group = limits::control_group().map_or((u64::MAX, u64::MAX), |group| (group.free, group.total));
    MemoryInfo { free: memory.free.min(group.0), total: memory.total.min(group.1) }
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

/// Returns the bytes that the system could provide to this process, if it reports them.
pub(super) fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let available = field(&text, "MemAvailable")?;
    Some(limits::control_group().map_or(available, |group| available.min(group.free)))
}

/// Returns the NUMA node of the host with this number.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is none; else as [`get`].
pub(crate) fn host_node(number: i64) -> Result<NumaNode> {
    let runtime = get()?;
    match u32::try_from(number).map(NumaNode::from_number) {
        Ok(node) if node.index() < NODES_MAX && runtime.has_host_node(node) => Ok(node),
        _ => Err(no_host_node(number)),
    }
}

#[cold]
pub(crate) fn no_host_node(number: impl Display) -> Error {
    Error::invalid_value(format!(
        "the host has no NUMA node {number}: `lscpu` lists them; leave numa out for the one nearest to the device"
    ))
}

/// Returns the host's NUMA node nearest to a device. The driver is asked once for each.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Library` if the driver refuses.
#[inline]
pub(crate) fn nearest_host_node(device: Device) -> Result<NumaNode> {
    match NEAREST.get(device.ordinal()).map_or(0, |known| known.load(Ordering::Relaxed)) {
        0 => find_nearest(device),
        known => Ok(NumaNode::from_number(known - 1)),
    }
}

/// The nearest node of each device, plus one; 0 if it was not queried yet.
static NEAREST: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
/// The node of a host that has one, plus one; 0 if there are more, or none was queried.
static ONLY: AtomicU32 = AtomicU32::new(0);

/// Returns the host's only NUMA node, if it is known to be that: then the current device does not matter.
#[inline]
pub(crate) fn only_host_node() -> Option<NumaNode> {
    ONLY.load(Ordering::Relaxed).checked_sub(1).map(NumaNode::from_number)
}

#[cold]
fn find_nearest(device: Device) -> Result<NumaNode> {
    let runtime = get()?;
    let device = super::device(device.ordinal() as i64)?;
    let node = runtime.nearest_host_node(device).map_err(|error| error.on(device))?;
    let node = if runtime.has_host_node(node) { node } else { NumaNode::FIRST };
    if let Some(place) = NEAREST.get(device.ordinal()) {
        place.store(node.number() + 1, Ordering::Relaxed);
    }
    let nodes = (0..NODES_MAX as u32).map(NumaNode::from_number).filter(|&node| runtime.has_host_node(node));
    if nodes.take(2).count() < 2 {
        ONLY.store(node.number() + 1, Ordering::Relaxed);
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn both_kinds_of_meminfo_are_read() {
        let of_node = "Node 0 MemTotal:       24684092 kB\nNode 0 MemFree:        11146596 kB\n";
        assert_eq!(field(of_node, "MemFree"), Some(11_146_596 << 10));
        let of_all = "MemTotal:       24684092 kB\nMemAvailable:        5 kB\n";
        assert_eq!((field(of_all, "MemAvailable"), field(of_all, "Shmem")), (Some(5 << 10), None));
    }
}
