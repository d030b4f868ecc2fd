//! The locks and atomics by which threads share a cache: those of `std`, or in a model those of loom.
//!
//! A build with `--cfg loom` runs nothing but the models: the tests, named `models`, that loom runs with every order in
//! which the threads can take turns, and every value that the memory orderings let them read.

#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};
