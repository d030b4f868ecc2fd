//! What this process shares: the books of it, and who holds what.

mod connection;
mod events;
pub(super) mod mappings;
pub(super) mod parcels;
pub(super) mod peers;
mod regions;
pub(super) mod shared;

pub(super) use connection::Connection;
pub(super) use shared::SharedBlock;
