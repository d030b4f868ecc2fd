//! What threads share: locks and atomics, and structures made of them. Locks and atomics are those of `std`, or in a
//! model those of loom.
//!
//! In builds of tests (`cfg(schedules)`, see `build.rs`) threads can run in a random [`schedule`], which may switch
//! threads at each lock and atomic here. A build with `--cfg loom` runs only the models, which are the tests named
//! `models`. loom runs them with every order of the threads, and every value that the memory orderings let them read.

mod door;
mod interruption;
mod locks;
mod may_wait;
mod owner_lock;
mod requests;
#[cfg(schedules)]
pub mod schedule;
mod shared_list;
#[cfg(schedules)]
mod stepped;
mod table;
mod thread;

#[cfg(not(any(loom, schedules)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{Ordering, fence},
};
#[cfg(schedules)]
pub(crate) use stepped::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

pub(crate) use door::Door;
pub(crate) use interruption::{Interrupted, Interruption};
pub(crate) use locks::{lock, read, take_last, try_lock, wait, wait_for_driver, wait_until, write};
#[cfg(feature = "python")]
pub(crate) use may_wait::set_detach;
pub(crate) use may_wait::{CallbackKind, FOREVER, InHand, MayWait, in_callback};
pub(crate) use owner_lock::{OwnerGuard, OwnerLock};
pub(crate) use requests::Requests;
pub(crate) use shared_list::SharedList;
pub(crate) use table::Table;
pub(crate) use thread::{ThisThread, ThreadNumber};
