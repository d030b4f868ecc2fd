//! What simulated work uses: each piece of memory that a kernel, a copy or a fill names, until it is done, and what a
//! graph's work names, while the graph lives. A GPU says nothing when memory is taken from under its work. Here three
//! mistakes are detected at once: unmapping memory in use; submitting work with memory that its device cannot reach;
//! and using memory that another stream's work, not ordered before, is using, wherever its pages are mapped by then. A
//! mistake ends the process, unless a test collects them ([`collect`]). Not checked without the feature
//! `fault-injection`.
//!
//! Nor may two calls work on one extent at once, which breaks it, as in NVIDIA's driver 580.159: no mapping of it succeeds
//! afterwards, or devices miss the access that they were to get. Not checked without that feature either.

use std::backtrace::Backtrace;
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Mutex;
use std::thread;

use super::devices::{PhysicalBytes, space};
use super::fault::{UNKNOWN, refused_because};
use super::timeline::StreamKey;
#[cfg(feature = "fault-injection")]
use super::timeline::timeline;
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::sync::lock;

/// One piece of memory that a stream's work, or a graph, uses.
struct NotedUse {
    by: User,
    /// The memory's block, if the test gives it; else 0.
    block: u64,
    addresses: Range<u64>,
    /// What is behind the addresses.
    bytes: Vec<PhysicalBytes>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum User {
    /// Work of a stream, by its number.
    Work(StreamKey, u64),
    /// A graph, or a future one: work of the capture with this id.
    Graph(u64),
    /// A library that registered it, as NCCL does.
    #[cfg_attr(not(feature = "fault-injection"), expect(dead_code, reason = "tests register memory"))]
    Registration(u64),
}

static USES: Mutex<Vec<NotedUse>> = Mutex::new(Vec::new());
/// The mistakes since a test began to collect them.
static COLLECTED: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Collects mistakes from now on, rather than end the process, and returns those so far.
#[cfg(feature = "fault-injection")]
pub fn collect() -> Vec<String> {
    lock(&COLLECTED).replace(Vec::new()).unwrap_or_default()
}

/// Registers memory of a device, as NCCL or a NIC does: it must stay where it is until [`unregister`] with the returned
/// number.
#[cfg(feature = "fault-injection")]
pub fn register(device: Device, address: u64, bytes: u64) -> u64 {
    let number = timeline().unused() as u64;
    begin(User::Registration(number), device, UsedBlock { number: 0, address, bytes }, |_, _| true);
    number
}

/// Ends a registration.
#[cfg(feature = "fault-injection")]
pub fn unregister(number: u64) {
    end(|user| user == User::Registration(number));
}

/// Moves a stream's uses to another key.
#[cfg(feature = "fault-injection")]
pub(super) fn rename(from: StreamKey, to: StreamKey) {
    for other in lock(&USES).iter_mut() {
        if let User::Work(key, _) = &mut other.by
            && *key == from
        {
            *key = to;
        }
    }
}

fn mistake(text: String) {
    match &mut *lock(&COLLECTED) {
        Some(collected) => collected.push(text),
        None => {
            let place = Backtrace::force_capture();
            let _ = writeln!(io::stderr(), "gpupool's simulated device: {text}\n{place}");
            std::process::abort();
        }
    }
}

/// A block of memory that work is given.
#[derive(Clone, Copy, Debug)]
pub struct UsedBlock {
    /// A number of the test's, never used for two blocks. Work of several streams may use one block at once. 0 for what is
    /// used by one stream at a time.
    pub number: u64,
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
}

/// Notes that work uses memory of a device. `is_behind` returns whether it is ordered behind other work.
pub(super) fn begin(by: User, device: Device, block: UsedBlock, is_behind: impl Fn(StreamKey, u64) -> bool) {
    let UsedBlock { number, address, bytes } = block;
    if !cfg!(feature = "fault-injection") || bytes == 0 {
        return;
    }
    let behind = {
        let space = space();
        if space.is_accessible(address, bytes, device) { Some(space.bytes_behind(address, bytes)) } else { None }
    };
    let Some(behind) = behind else {
        return mistake(format!("{by:?} is given {bytes} bytes at {address:#x}, which {device} cannot reach"));
    };
    let mut uses = lock(&USES);
    let is_ordered = |other: &NotedUse| match (by, other.by) {
        (User::Work(..) | User::Graph(_), User::Work(key, number)) => is_behind(key, number),
        // Graphs of one pool share memory, and are launched one behind the other.
        (User::Work(..), User::Graph(_)) => false,
        (_, User::Graph(_) | User::Registration(_)) | (User::Registration(_), _) => true,
    };
    // Work may use what a graph has allocated, and with it what the graph had freed there before.
    let uses_block = |by: User| uses.iter().any(|one| one.by == by && one.block == number);
    let is_same = |other: &NotedUse| {
        number != 0 && (number == other.block || matches!(other.by, User::Graph(_)) && uses_block(other.by))
    };
    let overlaps = |other: &&NotedUse| other.bytes.iter().any(|old| behind.iter().any(|new| old.overlaps(new)));
    if let Some(other) = uses.iter().filter(overlaps).find(|other| !is_same(other) && !is_ordered(other)) {
        let NotedUse { by: other, addresses, .. } = other;
        mistake(format!(
            "{by:?} is given {bytes} bytes at {address:#x}, which {other:?} still uses at {addresses:#x?}"
        ));
    }
    uses.push(NotedUse { by, block: number, addresses: address..address + bytes, bytes: behind });
}

pub(super) fn end(has_ended: impl Fn(User) -> bool) {
    if cfg!(feature = "fault-injection") {
        lock(&USES).retain(|one| !has_ended(one.by));
    }
}

/// Checks that nothing uses memory that is to be unmapped, or freed without a wait.
pub(super) fn check_unused(address: u64, bytes: u64) {
    if !cfg!(feature = "fault-injection") {
        return;
    }
    let uses = lock(&USES);
    let in_use = uses.iter().find(|one| one.addresses.start < address + bytes && address < one.addresses.end);
    if let Some(NotedUse { by, addresses, .. }) = in_use {
        mistake(format!("{bytes} bytes at {address:#x} go while {by:?} uses {addresses:#x?}"));
    }
}

struct ExtentCalls {
    busy: BTreeSet<u64>,
    broken: BTreeSet<u64>,
}

static CALLS: Mutex<ExtentCalls> = Mutex::new(ExtentCalls { busy: BTreeSet::new(), broken: BTreeSet::new() });

fn broken(function: &str) -> Error {
    refused_because(function, UNKNOWN, "two calls worked on this extent at once")
}

/// A call on the extents with these numbers, as long as this lives.
pub(super) struct ExtentCall {
    numbers: BTreeSet<u64>,
    is_alone: bool,
}

/// Breaks all extents: they work where they are mapped, and can be mapped nowhere else.
#[cfg(feature = "fault-injection")]
pub fn break_extents() {
    let numbers = space().extent_numbers(false);
    lock(&CALLS).broken.extend(numbers);
}

/// Breaks those extents whose first mapping is gone and that have others.
#[cfg(feature = "fault-injection")]
pub fn break_moved_extents() {
    let numbers = space().extent_numbers(true);
    lock(&CALLS).broken.extend(numbers);
}

impl ExtentCall {
    /// Begins a call, during which other threads may run.
    pub(super) fn begin(numbers: impl FnOnce() -> Vec<u64>) -> Self {
        if !cfg!(feature = "fault-injection") {
            return Self { numbers: BTreeSet::new(), is_alone: true };
        }
        // An extent that is mapped twice in a range is in one call.
        let numbers: BTreeSet<_> = numbers().into_iter().collect();
        let mut calls = lock(&CALLS);
        let mut is_alone = true;
        for &number in &numbers {
            if !calls.busy.insert(number) {
                calls.broken.insert(number);
                is_alone = false;
            }
        }
        drop(calls);
        thread::yield_now();
        Self { numbers, is_alone }
    }

    /// Refuses a call that began while another worked on one of the extents.
    pub(super) fn check_alone(&self, function: &str) -> Result<()> {
        if self.is_alone { Ok(()) } else { Err(broken(function)) }
    }

    pub(super) fn check_whole(&self, function: &str) -> Result<()> {
        let broken_ones = &lock(&CALLS).broken;
        if self.numbers.is_disjoint(broken_ones) { Ok(()) } else { Err(broken(function)) }
    }

    /// Forgets that the extents are broken, since they are released.
    pub(super) fn mend(&self) {
        for number in &self.numbers {
            lock(&CALLS).broken.remove(number);
        }
    }
}

impl Drop for ExtentCall {
    fn drop(&mut self) {
        for number in &self.numbers {
            lock(&CALLS).busy.remove(number);
        }
    }
}
