//! Guards of a thread that may end in any order: each keeps what it found when it began, which is restored once it and
//! all later ones have ended.

use std::cell::RefCell;
use std::thread::LocalKey;

/// The guards of one kind that a thread has, the innermost last.
#[derive(Debug)]
pub(super) struct Nesting<T> {
    next: u64,
    /// Each one's number and what it is to restore; none if it changed nothing.
    begun: Vec<(u64, Option<T>)>,
}

impl<T> Nesting<T> {
    pub(super) const fn new() -> RefCell<Self> {
        RefCell::new(Self { next: 0, begun: Vec::new() })
    }
}

#[derive(Debug)]
pub(super) struct BegunGuard<T> {
    /// None in a thread that was ending.
    number: Option<u64>,
    found: Option<T>,
}

impl<T: Copy> BegunGuard<T> {
    pub(super) fn new(nesting: &'static LocalKey<RefCell<Nesting<T>>>, found: Option<T>) -> Self {
        let number = nesting.try_with(|nesting| {
            let mut nesting = nesting.try_borrow_mut().ok()?;
            let number = nesting.next;
            nesting.next += 1;
            nesting.begun.push((number, found));
            Some(number)
        });
        Self { number: number.ok().flatten(), found }
    }

    /// Ends it, on the same thread, and returns what is to be restored now.
    pub(super) fn end(&self, nesting: &'static LocalKey<RefCell<Nesting<T>>>) -> Option<T> {
        let Some(number) = self.number else { return self.found };
        let restored = nesting.try_with(|nesting| {
            let mut nesting = nesting.try_borrow_mut().ok()?;
            let place = nesting.begun.iter().rposition(|begun| begun.0 == number)?;
            let (_, found) = nesting.begun.remove(place);
            match nesting.begun.get_mut(place) {
                // The next one restores at its end what this one would have.
                Some((_, next)) => {
                    *next = found.or(*next);
                    None
                }
                None => found,
            }
        });
        // The thread is ending, where guards end in their order.
        restored.unwrap_or(self.found)
    }
}
