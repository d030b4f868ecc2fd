//! Events on their way to an observer, which may be any code: so they wait until their thread holds no lock. Calls that
//! can cause any make a [`Delivery`] before they take a lock, and its end delivers them; so does [`deliver`], before
//! memory goes. Nothing of this runs without an observer.

use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::process;

/// Delivers the calling thread's waiting events to the observer.
pub(crate) type Deliver = fn();

static DELIVER: OnceLock<Deliver> = OnceLock::new();

/// Sets how events are delivered.
pub(crate) fn set_deliver(deliver: Deliver) {
    let _ = DELIVER.set(deliver);
}

/// Delivers the calling thread's events. No lock is held.
#[inline]
pub(crate) fn deliver() {
    if process::state().is_observed() {
        deliver_now();
    }
}

#[cold]
fn deliver_now() {
    if let Some(deliver) = DELIVER.get() {
        deliver();
    }
}

/// Delivers the calling thread's events when dropped. To be made before any lock is taken.
#[must_use = "events are delivered when it is dropped"]
#[derive(Debug)]
pub(crate) struct Delivery(PhantomData<*mut ()>);

impl Delivery {
    #[inline]
    pub(crate) const fn at_end() -> Self {
        Self(PhantomData)
    }
}

impl Drop for Delivery {
    #[inline]
    fn drop(&mut self) {
        deliver();
    }
}
