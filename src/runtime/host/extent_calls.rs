//! Calls that work on extents. Two at once break an extent, as in NVIDIA's driver 580.159: no mapping of it succeeds
//! afterwards, or devices miss the access that they were to get. Not checked without the feature `fault-injection`.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use super::refusal::refused;
#[cfg(feature = "fault-injection")]
use super::virtual_memory::space;
use crate::error::{Error, Result, StatusKind};
use crate::sync::lock;

struct ExtentCalls {
    busy: BTreeSet<u64>,
    broken: BTreeSet<u64>,
}

static CALLS: Mutex<ExtentCalls> = Mutex::new(ExtentCalls { busy: BTreeSet::new(), broken: BTreeSet::new() });

#[cold]
fn broken(function: &str) -> Error {
    let error = refused(function, ("HOST_ERROR_UNKNOWN", 999), StatusKind::Other);
    let why = "two calls worked on this extent at once".to_owned();
    error.map_library(|refused| refused.advice = Some(why))
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
