//! Handles: pools, windows, leases, and all that becomes of a handle between its creation and its end.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod creation;
mod exit;
mod hand_over;
mod leases;
mod library_memory;
mod logging;
mod many_devices;
mod panics;
mod pool_limit;
mod real_libraries;
mod real_library;
mod scratch;
mod stress;
mod trimming;
mod windows;
mod workspaces;
