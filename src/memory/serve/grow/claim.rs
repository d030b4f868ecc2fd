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

/// A budget that what a pool takes is within, and the refusal of what is not.
type Limited<'a> = (&'a Budget, fn(&Pool) -> Error);

/// Returns the budgets of the pool and of the process, for the device and for pinned memory.
fn budgets(pool: &Pool) -> [Option<Limited<'_>>; 3] {
    let memory = pool.memory;
    [
        Some((pool.budget(), limit_reached)),
        Some((&memory.budget, |_| fraction_used_up())),
        memory.process_budget().map(|budget| -> Limited<'_> { (budget, |_| pinned_limit_reached()) }),
    ]
}

/// Returns the refusal of a block that is larger than a limit, so that whatever is freed does not help.
pub(in crate::memory::serve) fn beyond_a_limit(pool: &Pool, bytes: u64) -> Option<Error> {
    let (_, refusal) = budgets(pool).into_iter().flatten().find(|(budget, _)| !budget.can_hold(bytes))?;
    Some(refusal(pool))
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
pub(super) fn claimed<'a, R>(pool: &'a Pool, bytes: u64, supply: impl FnOnce() -> Result<R>) -> Result<R> {
    let memory = pool.memory;
    let claim = |limited: Option<Limited<'a>>| {
        limited.map(|(budget, refusal)| BudgetClaim::new(budget, bytes).ok_or_else(|| refusal(pool))).transpose()
    };
    let [of_pool, of_device, of_process] = budgets(pool);
    let claims = [claim(of_pool)?, claim(of_device)?, claim(of_process)?];
    let supplied = if memory.is_of_host() { PINNED_MADE.time(supply) } else { supply() }?;
    memory.pieces.come(bytes);
    claims.into_iter().flatten().for_each(BudgetClaim::settle);
    Ok(supplied)
}
