//! The `with` blocks of one object that are entered, each by a thread or a task.

use std::convert::Infallible;
use std::sync::Mutex;

use pyo3::prelude::*;

use super::ffi::frames::calling_generator;
use crate::error::{Error, Result};
use crate::sync::{ThisThread, ThreadNumber, lock};

/// An argument of `__exit__` that makes no difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ignored;

impl<'py> FromPyObject<'_, 'py> for Ignored {
    type Error = Infallible;

    fn extract(_argument: Borrowed<'_, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Self)
    }
}

/// A `with` block that a thread has entered and not left.
#[derive(Debug)]
struct WithBlock<T> {
    thread: ThreadNumber,
    /// The identity of the task that entered it; none outside of tasks.
    task: Option<usize>,
    /// The identity of the generator or coroutine that it is in, until that ends.
    generator: Option<usize>,
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

    /// Adds what the calling thread, or a task of it, entered.
    pub(super) fn enter(&self, py: Python<'_>, task: Option<usize>, entered: T) {
        let (thread, generator) = (ThisThread::get().number(), calling_generator(py));
        lock(&self.open).push(WithBlock { thread, task, generator, entered });
    }

    /// Ends a block, and returns what that entered: the one of the generator that leaves it, which another thread or task may do
    /// that ends an abandoned one; else the one that the calling thread, or the task of it, entered last. A task may also end the
    /// thread's own blocks, and the thread, outside of tasks, those of its tasks.
    ///
    /// # Errors
    /// `InvalidValue` if it entered nothing that it has not left.
    pub(super) fn leave(&self, py: Python<'_>, task: Option<usize>, name: &str) -> Result<T> {
        let (this, generator) = (ThisThread::get().number(), calling_generator(py));
        let mut open = lock(&self.open);
        let of_generator = generator.and_then(|_| open.iter().rposition(|block| block.generator == generator));
        let own = || open.iter().rposition(|block| block.thread == this && block.task == task);
        let around = || open.iter().rposition(|block| block.thread == this && (block.task.is_none() || task.is_none()));
        let (on, one) = match of_generator.or_else(own).or_else(around) {
            Some(last) => return Ok(open.remove(last).entered),
            None if open.iter().any(|block| block.thread == this) => ("in a task", "in one task"),
            None => ("on a thread", "on one thread"),
        };
        Err(Error::invalid_value(format!("{name} was left {on} that did not enter it; enter and leave it {one}")))
    }
}
