//! The C interface.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod at_address;
mod calls;
mod checkpoints;
mod crosswise;
mod handles;
mod neighbours;
mod pinned;
mod pools;
mod ranges;
mod recording;
mod scopes;
mod segments;
mod sleep;
mod stats;
mod wrong_values;
