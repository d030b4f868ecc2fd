//! Calls that work on extents. Two at once break an extent, as in NVIDIA's driver 580.159: no mapping of it succeeds after
//! that. Without the feature `fault-injection` nothing is looked at.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use crate::sync::lock;

struct Books {
    busy: BTreeSet<u64>,
    broken: BTreeSet<u64>,
}

static BOOKS: Mutex<Books> = Mutex::new(Books { busy: BTreeSet::new(), broken: BTreeSet::new() });

/// A call that works on the extents with these numbers, as long as this lives.
pub(super) struct ExtentCall(Vec<u64>);

impl ExtentCall {
    /// Begins a call, and lets other threads go on in the midst of it.
    pub(super) fn begin(numbers: impl FnOnce() -> Vec<u64>) -> Self {
        if !cfg!(feature = "fault-injection") {
            return Self(Vec::new());
        }
        let numbers = numbers();
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

    /// Returns whether two calls at once have broken one of the extents.
    pub(super) fn is_broken(&self) -> bool {
        self.0.iter().any(|number| lock(&BOOKS).broken.contains(number))
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
