//! Claims on memory: within the limits of the pool and the process, or refused for want of memory.

use crate::error::{Error, ErrorKind, GPUPOOL, Result, StatusKind};
use crate::memory::device::{DeviceMemory, PINNED_MADE};
use crate::memory::pool::Pool;

/// Returns whether an error means that memory ran out, so that freeing some may help.
pub(in crate::memory::serve) fn is_no_memory(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Library(refused) if refused.kind == StatusKind::OutOfMemory)
}

pub(super) fn out_of_addresses(memory: &DeviceMemory) -> Error {
    Error::no_memory(
        GPUPOOL,
        format!(
            "no addresses are left of the {} bytes reserved for {}: free blocks there, or request less",
            memory.range.bytes(),
            memory.device
        ),
    )
}

pub(super) fn limit_reached(pool: &Pool) -> Error {
    let label = pool.label();
    let why = format!("The limit of pool {label} is reached: raise it, free live blocks of the pool, or request less");
    Error::no_memory(GPUPOOL, why)
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
        let why = "This process's memory fraction is used up: raise it (set_per_process_memory_fraction), free live \
                   blocks (other pools keep their free memory until their trim()), or request less";
        return Err(Error::no_memory(GPUPOOL, why));
    }
    let process = memory.process_budget();
    if process.is_some_and(|process| !process.claim(bytes)) {
        pool.budget().withdraw(bytes);
        memory.budget.withdraw(bytes);
        let why =
            "The limit of pinned memory is reached: raise it (set_pinned_limit), free pinned memory, or request less";
        return Err(Error::no_memory(GPUPOOL, why));
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
