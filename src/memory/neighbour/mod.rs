//! Neighbours: other processes of the same user that use gpupool on the same device. They give memory back before one of
//! them fails, and can be listed.
//!
//! Nothing is kept about them but which are stopped. A process that needs to know finds where the others listen (`address.rs`), connects, asks
//! (`ask.rs`, `wire.rs`), and knows what they answer in time: one that has ended is not there, and one that is stopped is
//! passed by. Each answers on the broker's thread (`visitors.rs`): with what it holds (`status.rs`, `division.rs`,
//! `claims.rs`) and what it was told to keep (`settings.rs`), what the system lets it have (`system_limit/`), or by giving
//! memory back (`give.rs`). Requests come here by `vicinity.rs`. Off until a program uses it, or the environment asks for
//! it (`membership.rs`); who only looks at the others (`listing.rs`, `available.rs`) is none of them.

mod address;
mod ask;
mod available;
mod claims;
mod division;
mod give;
mod listing;
mod membership;
mod settings;
mod status;
mod system_limit;
mod vicinity;
mod visitors;
mod wire;

#[cfg(feature = "python")]
pub(crate) use available::claim_unless_interrupted;
pub use available::{available_memory, claim, claim_within};
pub use claims::MemoryClaim;
#[cfg(all(feature = "fault-injection", feature = "python"))]
pub(crate) use claims::set_clock;
pub use listing::{Neighbour, neighbours, neighbours_with_pools};
pub(crate) use membership::join;
pub use membership::set_neighbour;
pub use settings::NeighbourSettings;
pub(crate) use vicinity::watch;
pub use wire::NeighbourPool;
