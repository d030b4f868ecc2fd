//! A door that one thread closes, and then waits until everyone inside has left. One number holds both whether it is
//! closed and how many are inside, so a thread that enters either comes before the closing, and is waited for, or finds
//! the door closed. Entering and leaving take no lock, except to wake the waiting thread.

use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, lock, wait_for_driver};

/// The state's bit for a closed door; the rest is how many threads are inside.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// A door, open at first.
#[derive(Debug, Default)]
pub(crate) struct Door {
    state: AtomicUsize,
    /// Held while the state is read before a wait, and by the last to leave.
    leaving: Mutex<()>,
    is_empty: Condvar,
}

/// A stay inside, until dropped.
#[must_use = "the stay ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Door);

impl Door {
    /// Goes in; none if the door is closed.
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        let open = |state: usize| (state & CLOSED == 0).then_some(state + 1);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, open).ok()?;
        Some(Inside(self))
    }

    /// Lets no one in from now on.
    pub(crate) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// Lets everyone in again.
    pub(crate) fn open(&self) {
        self.state.fetch_and(!CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & CLOSED != 0
    }

    pub(crate) fn is_used(&self) -> bool {
        self.state.load(Ordering::SeqCst) & !CLOSED != 0
    }

    /// Waits until no one is inside a closed door, where nobody calls back. What they did is then visible to this thread.
    pub(crate) fn wait_until_empty(&self) {
        let mut leaving = lock(&self.leaving);
        while self.is_used() {
            leaving = wait_for_driver(&self.is_empty, &self.leaving, leaving);
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.0.state.fetch_sub(1, Ordering::SeqCst) == CLOSED | 1 {
            // Under the lock, so that a thread that has seen this one inside waits by now.
            let _leaving = lock(&self.0.leaving);
            self.0.is_empty.notify_all();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    use super::Door;

    /// Uses what is behind the door, if it is open, and returns whether it was.
    fn use_if_open(door: &Door, is_there: &AtomicBool) -> bool {
        let Some(_inside) = door.enter() else { return false };
        assert!(is_there.load(Ordering::Relaxed), "it is gone");
        true
    }

    #[test]
    fn what_is_behind_goes_when_no_one_is_inside() {
        loom::model(|| {
            let door = Arc::new(Door::default());
            let is_there = Arc::new(AtomicBool::new(true));
            let (other, behind) = (Arc::clone(&door), Arc::clone(&is_there));
            let user = thread::spawn(move || use_if_open(&other, &behind));
            // The last to leave wakes the waiting thread.
            let other = Arc::clone(&door);
            let passer = thread::spawn(move || drop(other.enter()));
            door.close();
            door.wait_until_empty();
            is_there.store(false, Ordering::Relaxed);
            user.join().unwrap();
            passer.join().unwrap();
        });
    }

    #[test]
    fn who_comes_once_it_is_open_again_finds_all_there() {
        loom::model(|| {
            let door = Arc::new(Door::default());
            let is_there = Arc::new(AtomicBool::new(true));
            let user = {
                let (door, is_there) = (Arc::clone(&door), Arc::clone(&is_there));
                thread::spawn(move || use_if_open(&door, &is_there))
            };
            door.close();
            door.wait_until_empty();
            is_there.store(false, Ordering::Relaxed);
            assert!(!use_if_open(&door, &is_there));
            is_there.store(true, Ordering::Relaxed);
            door.open();
            assert!(use_if_open(&door, &is_there));
            user.join().unwrap();
        });
    }
}
