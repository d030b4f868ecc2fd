//! What threads share: locks and atomics of `std`, or in a model those of loom; and structures made from them.
//!
//! A build with `--cfg loom` runs nothing but the models: the tests, named `models`, that loom runs with every order in
//! which the threads can take turns, and every value that the memory orderings let them read.

mod locks;
mod owner_lock;
mod shared_list;
mod table;
mod thread;

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

pub(crate) use locks::{lock, read, wait_until, write};
pub(crate) use owner_lock::{OwnerGuard, OwnerLock};
pub(crate) use shared_list::SharedList;
pub(crate) use table::Table;
pub(crate) use thread::{ThisThread, ThreadNumber};
