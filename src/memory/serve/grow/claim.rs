//! Claims on memory: granted within the limits of the pool and the process, or refused.

use std::mem::ManuallyDrop;

use crate::error::{Error, ErrorKind, GPUPOOL, Result, StatusKind};
use crate::memory::device::{Budget, DeviceMemory, PINNED_MADE};
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
            memory.range.bytes, memory.location
        ),
    )
}

pub(super) fn limit_reached(pool: &Pool) -> Error {
    let label = pool.label();
    let why = format!("The limit of pool {label} is reached: raise it, free live blocks of the pool, or request less");
    Error::no_memory(GPUPOOL, why)
}

fn fraction_used_up() -> Error {
    let why = "This process's memory fraction is used up: raise it (set_per_process_memory_fraction), free live blocks \
               (other pools keep their free memory until their trim()), or request less";
    Error::no_memory(GPUPOOL, why)
}

fn pinned_limit_reached() -> Error {
    let why = "The limit of pinned memory is reached: raise it (set_pinned_limit), free pinned memory, or request less";
    Error::no_memory(GPUPOOL, why)
}

/// Returns the refusal of a block that is larger than a limit, so that whatever is freed does not help. None if a limit
/// was lowered below what is reserved, which may have such a block.
pub(in crate::memory::serve) fn beyond_a_limit(pool: &Pool, bytes: u64) -> Option<Error> {
    let is_beyond = |budget: &Budget| budget.limit().is_some_and(|limit| bytes > limit.max(budget.reserved()));
    if is_beyond(pool.budget()) {
        Some(limit_reached(pool))
    } else if is_beyond(&pool.memory.budget) {
        Some(fraction_used_up())
    } else {
        pool.memory.process_budget().is_some_and(is_beyond).then(pinned_limit_reached)
    }
}

/// Bytes claimed of a budget, which are returned unless settled.
pub(super) struct BudgetClaim<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl<'a> BudgetClaim<'a> {
    pub(super) fn new(budget: &'a Budget, bytes: u64) -> Option<Self> {
        budget.claim(bytes).then(|| Self { budget, bytes })
    }

    pub(super) fn settle(self) {
        let settled = ManuallyDrop::new(self);
        settled.budget.settle(settled.bytes);
    }
}

impl Drop for BudgetClaim<'_> {
    fn drop(&mut self) {
        self.budget.withdraw(self.bytes);
    }
}

/// Returns a piece of physical memory from `supply`, within the limits of the pool and the process. `supply` may panic.
pub(super) fn claimed<R>(pool: &Pool, bytes: u64, supply: impl FnOnce() -> Result<R>) -> Result<R> {
    let memory = pool.memory;
    let of_pool = BudgetClaim::new(pool.budget(), bytes).ok_or_else(|| limit_reached(pool))?;
    let of_device = BudgetClaim::new(&memory.budget, bytes).ok_or_else(fraction_used_up)?;
    let of_process =
        memory.process_budget().map(|budget| BudgetClaim::new(budget, bytes).ok_or_else(pinned_limit_reached));
    let of_process = of_process.transpose()?;
    let supplied = if memory.is_of_host() { PINNED_MADE.time(supply) } else { supply() }?;
    memory.pieces.come(bytes);
    [Some(of_pool), Some(of_device), of_process].into_iter().flatten().for_each(BudgetClaim::settle);
    Ok(supplied)
}
