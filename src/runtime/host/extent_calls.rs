//! Calls that work on extents. Two at once break an extent, as in NVIDIA's driver 580.159: no mapping of it succeeds after
//! that, or devices that were to get access have none. Without the feature `fault-injection` nothing is looked at.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use super::refusal::refused;
use crate::error::{Result, StatusKind};
use crate::sync::lock;

struct Books {
    busy: BTreeSet<u64>,
    broken: BTreeSet<u64>,
}

static BOOKS: Mutex<Books> = Mutex::new(Books { busy: BTreeSet::new(), broken: BTreeSet::new() });

/// A call that works on the extents with these numbers, as long as this lives.
pub(super) struct ExtentCall(BTreeSet<u64>);

impl ExtentCall {
    /// Begins a call, and lets other threads go on in the midst of it.
    pub(super) fn begin(numbers: impl FnOnce() -> Vec<u64>) -> Self {
        if !cfg!(feature = "fault-injection") {
            return Self(BTreeSet::new());
        }
        // One that is mapped twice in a range is in one call.
        let numbers: BTreeSet<_> = numbers().into_iter().collect();
        let mut books = lock(&BOOKS);
        for &number in &numbers {
            if !books.busy.insert(number) {
                books.broken.insert(number);
            }
        }
        drop(books);
        thread::yield_now();
        Self(numbers)
    }

    /// Refuses the call if two calls at once have broken one of the extents.
    pub(super) fn check(&self, function: &str) -> Result<()> {
        if !self.0.iter().any(|number| lock(&BOOKS).broken.contains(number)) {
            return Ok(());
        }
        let error = refused(function, ("HOST_ERROR_UNKNOWN", 999), StatusKind::Other);
        let why = "two calls worked on this extent at once".to_owned();
        Err(error.map_library(|refused| refused.advice = Some(why)))
    }

    /// Forgets what was broken, since the extents go.
    pub(super) fn mend(&self) {
        for number in &self.0 {
            lock(&BOOKS).broken.remove(number);
        }
    }
}

impl Drop for ExtentCall {
    fn drop(&mut self) {
        for number in &self.0 {
            lock(&BOOKS).busy.remove(number);
        }
    }
}
