//! The `with` blocks of one object that are entered, each by a thread or a task.

use std::sync::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::sync::{ThisThread, ThreadNumber, lock};

/// A `with` block that a thread has entered and not left.
#[derive(Debug)]
struct WithBlock<T> {
    thread: ThreadNumber,
    /// The identity of the task that entered it; none outside of tasks.
    task: Option<usize>,
    entered: T,
}

/// The blocks of one object that threads have entered and not left. It may be entered again, also by another thread.
#[derive(Debug)]
pub(super) struct WithBlocks<T> {
    open: Mutex<Vec<WithBlock<T>>>,
}

impl<T> WithBlocks<T> {
    pub(super) const fn new() -> Self {
        Self { open: Mutex::new(Vec::new()) }
    }

    fn open(&self) -> MutexGuard<'_, Vec<WithBlock<T>>> {
        lock(&self.open)
    }

    /// Adds what the calling thread, or a task of it, entered.
    pub(super) fn enter(&self, task: Option<usize>, entered: T) {
        self.open().push(WithBlock { thread: ThisThread::get().number(), task, entered });
    }

    /// Ends the block that the calling thread, or the task of it, entered last, and returns what that entered. A task may also
    /// end the thread's own blocks, and the thread, outside of tasks, those of its tasks.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it entered nothing that it has not left.
    pub(super) fn leave(&self, task: Option<usize>, name: &str) -> Result<T> {
        let this = ThisThread::get().number();
        let mut open = self.open();
        let own = open.iter().rposition(|block| block.thread == this && block.task == task);
        let around = || open.iter().rposition(|block| block.thread == this && (block.task.is_none() || task.is_none()));
        match own.or_else(around) {
            Some(last) => Ok(open.remove(last).entered),
            None if open.iter().any(|block| block.thread == this) => Err(Error::invalid_value(format!(
                "{name} was left in a task that did not enter it; enter and leave it in one task"
            ))),
            None => Err(Error::invalid_value(format!(
                "{name} was left on a thread that did not enter it; enter and leave it on one thread"
            ))),
        }
    }
}
