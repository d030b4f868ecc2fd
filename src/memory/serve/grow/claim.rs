//! Claims on memory: within the limits of the pool and the process, or refused for want of memory.

use crate::error::{Error, ErrorKind, Result, StatusKind};
use crate::memory::device::{DeviceMemory, PINNED_MADE};
use crate::memory::pool::Pool;

/// Returns whether an error means that memory ran out, so that freeing some may help.
pub(in crate::memory::serve) fn is_no_memory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Library(refused) if refused.kind == StatusKind::OutOfMemory)
}

pub(super) fn out_of_addresses(memory: &DeviceMemory) -> Error {
    Error::no_memory(
        "gpupool",
        format!("no addresses are left of the {} bytes reserved for {}", memory.range.bytes(), memory.device),
    )
}

pub(super) fn limit_reached(pool: &Pool) -> Error {
    Error::no_memory("gpupool", format!("the limit of pool {} is reached", pool.label()))
}

/// Returns one piece of physical memory that `supply` gives, within the limits of the pool and the process.
pub(super) fn claimed<R>(
    memory: &DeviceMemory,
    pool: &Pool,
    bytes: u64,
    supply: impl FnOnce() -> Result<R>,
) -> Result<R> {
    if !pool.budget().claim(bytes) {
        return Err(limit_reached(pool));
    }
    if !memory.budget.claim(bytes) {
        pool.budget().withdraw(bytes);
        return Err(Error::no_memory("gpupool", "this process's memory fraction is used up"));
    }
    let process = memory.process_budget();
    if process.is_some_and(|process| !process.claim(bytes)) {
        pool.budget().withdraw(bytes);
        memory.budget.withdraw(bytes);
        return Err(Error::no_memory("gpupool", "the limit of pinned memory is reached (set_pinned_limit)"));
    }
    let supplied = if memory.is_of_host() { PINNED_MADE.time(supply) } else { supply() };
    if supplied.is_ok() {
        memory.pieces.come(bytes);
    }
    for budget in [pool.budget(), &memory.budget].into_iter().chain(process) {
        if supplied.is_ok() { budget.settle(bytes) } else { budget.withdraw(bytes) }
    }
    supplied
}
