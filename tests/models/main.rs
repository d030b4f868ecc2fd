//! Random programs against naive models.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod memory;
mod pinned;
mod schedules;
