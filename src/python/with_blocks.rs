//! What `with` blocks of one object entered, each on its thread, or in its task there.

use std::sync::{Mutex, MutexGuard};

use crate::error::{Error, Result};
use crate::sync::{ThisThread, ThreadNumber, lock};

/// A `with` block that a thread has entered and not left.
#[derive(Debug)]
struct WithBlock<T> {
    thread: ThreadNumber,
    /// What tells the task that entered it from the thread's others.
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

    /// Notes what the calling thread entered.
    pub(super) fn enter(&self, entered: T) {
        self.enter_in(None, entered);
    }

    /// Notes what a task of the calling thread entered.
    pub(super) fn enter_in(&self, task: Option<usize>, entered: T) {
        self.open().push(WithBlock { thread: ThisThread::get().number(), task, entered });
    }

    /// Ends the block that the calling thread entered last, and returns what it entered.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it entered nothing that it has not left.
    pub(super) fn leave(&self, name: &str) -> Result<T> {
        self.leave_in(None, name)
    }

    /// Ends the block that the task of the calling thread entered last, and returns what it entered. A task may also end
    /// the thread's own blocks, and the thread, outside of tasks, those of its tasks.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it entered nothing that it has not left.
    pub(super) fn leave_in(&self, task: Option<usize>, name: &str) -> Result<T> {
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
