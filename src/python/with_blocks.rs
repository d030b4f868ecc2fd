//! What `with` blocks of one object entered, each on its thread.

use std::sync::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::sync::{ThisThread, ThreadNumber, lock};

/// A `with` block that a thread has entered and not left.
#[derive(Debug)]
struct Block<T> {
    thread: ThreadNumber,
    entered: T,
}

/// The blocks of one object that threads have entered and not left. It may be entered again, also by another thread.
#[derive(Debug)]
pub(super) struct WithBlocks<T> {
    open: Mutex<Vec<Block<T>>>,
}

impl<T> WithBlocks<T> {
    pub(super) const fn new() -> Self {
        Self { open: Mutex::new(Vec::new()) }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Block<T>>> {
        lock(&self.open)
    }

    /// Notes what the calling thread entered.
    pub(super) fn enter(&self, entered: T) {
        self.open().push(Block { thread: ThisThread::get().number(), entered });
    }

    /// Ends the block that the calling thread entered last, and returns what it entered.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it entered nothing that it has not left.
    pub(super) fn leave(&self, name: &str) -> Result<T> {
        let this = ThisThread::get().number();
        let mut open = self.open();
        match open.iter().rposition(|block| block.thread == this) {
            Some(last) => Ok(open.remove(last).entered),
            None => Err(Error::invalid_value(format!(
                "{name} was left on a thread that did not enter it; enter and leave it on one thread"
            ))),
        }
    }
}
