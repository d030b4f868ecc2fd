//! What `with` blocks of one object entered, each on its thread.

use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use crate::error::{Error, Result};
use crate::sync::lock;

/// What each thread entered and has not left. One object may be entered again, also by another thread.
#[derive(Debug)]
pub(super) struct Entered<T>(Mutex<Vec<(ThreadId, T)>>);

impl<T> Entered<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn stack(&self) -> MutexGuard<'_, Vec<(ThreadId, T)>> {
        lock(&self.0)
    }

    /// Notes what the calling thread entered.
    pub(super) fn enter(&self, entered: T) {
        self.stack().push((thread::current().id(), entered));
    }

    /// What the calling thread entered last.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if it entered nothing that it has not left.
    pub(super) fn leave(&self, name: &str) -> Result<T> {
        let this = thread::current().id();
        let mut stack = self.stack();
        match stack.iter().rposition(|(thread, _)| *thread == this) {
            Some(last) => Ok(stack.remove(last).1),
            None => Err(Error::invalid_value(format!(
                "{name} was left on a thread that did not enter it; enter and leave it on one thread"
            ))),
        }
    }
}
