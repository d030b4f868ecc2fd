//! What a thread is in the middle of, which says what becomes of the calls that it makes meanwhile.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<Inside> = const { Cell::new(Inside::Nothing) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inside {
    Nothing,
    /// A call of the driver, which another library that stands in for it may bring here once more.
    Call,
    /// Somebody gives way, whose calls are counted, but for whom nobody else gives way.
    Giving,
}

impl Inside {
    /// Returns what the calling thread is in.
    pub(crate) fn now() -> Self {
        INSIDE.get()
    }
}

/// Held while the thread is in something; then it is in what it was in before.
pub(crate) struct Within {
    before: Inside,
}

impl Within {
    pub(crate) fn begin(inside: Inside) -> Self {
        Self { before: INSIDE.replace(inside) }
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}
