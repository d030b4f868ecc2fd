//! Random programs against naive models.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

// Optimised builds take no schedules, so that benches measure none.
#[cfg(debug_assertions)]
mod closing;
#[cfg(debug_assertions)]
mod frees;
mod full;
mod memory;
mod pinned;
#[cfg(debug_assertions)]
mod recorded;
#[cfg(debug_assertions)]
mod schedules;
#[cfg(debug_assertions)]
mod whole_device;
