//! The list of all neighbours, for people and for tools.

use super::ask::{WaitFor, what_they_hold};
use super::codec::{Held, PoolHeld, Told};
use super::place::membership;
use super::settings::name;
use super::status::{held_of, others_of, pools_of};
use crate::error::Result;
use crate::ids::Device;
use crate::memory::pool::PoolId;
use crate::process;
use crate::runtime::{self, KnownUuids};

/// A process of this user that uses gpupool on a device, and is a neighbour: what it holds there, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Neighbour {
    /// The process's id, as it knows it itself.
    pub process: u32,
    /// Its name, as it tells.
    pub name: String,
    /// The device, as this process numbers it.
    pub device: Device,
    /// Device memory that it has.
    pub reserved_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Free bytes, cached for its next requests.
    pub free_bytes: u64,
    /// Live bytes that are asleep.
    pub asleep_bytes: u64,
    /// Bytes that other libraries of the process hold, besides that; none unless it is watched.
    pub holder_bytes: Option<u64>,
    /// Bytes of memory ranges that may be taken.
    pub discardable_bytes: u64,
    /// Bytes of pools that it would put to sleep for others.
    pub offered_bytes: u64,
    /// Bytes that it has claimed and not taken yet.
    pub claimed_bytes: u64,
    /// What it is never asked to go below.
    pub guarantee: u64,
    /// Beyond this it is asked first.
    pub most: Option<u64>,
    /// Those with the lowest number are asked first.
    pub priority: i32,
    /// What the system lets it have at most, by the Multi-Process Service or for its control group; none if it has no limit.
    pub system_limit: Option<u64>,
    /// Whether it is this process.
    pub is_self: bool,
    /// Its pools there, the largest first, of which 64 are told; none if it was not asked for them.
    pub pools: Option<Vec<NeighbourPool>>,
    /// The names of its other libraries and the bytes that each holds there, the largest first, if it is watched; none if it
    /// was not asked for its pools.
    pub holders: Option<Vec<(String, u64)>>,
}

/// What a pool of another process holds, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NeighbourPool {
    /// Its id in that process.
    pub id: PoolId,
    /// The name that its maker gave it, of which 64 bytes are told.
    pub name: Option<String>,
    /// Device memory that it has.
    pub reserved_bytes: u64,
    /// Bytes of live blocks.
    pub live_bytes: u64,
    /// Free bytes, cached for its next requests.
    pub free_bytes: u64,
    /// Live bytes that are asleep.
    pub asleep_bytes: u64,
}

impl From<&PoolHeld> for NeighbourPool {
    fn from(PoolHeld { id: (first, second), name, bytes }: &PoolHeld) -> Self {
        let [reserved_bytes, live_bytes, free_bytes, asleep_bytes] = *bytes;
        let (id, name) = (PoolId(*first, *second), name.clone());
        Self { id, name, reserved_bytes, live_bytes, free_bytes, asleep_bytes }
    }
}

impl Neighbour {
    fn new(told: &Told, held: &Held, device: Device, is_self: bool) -> Self {
        let [_, discardable_bytes, offered_bytes] = held.spare;
        Self {
            process: told.process,
            name: told.name.clone(),
            device,
            reserved_bytes: held.reserved,
            live_bytes: held.live,
            free_bytes: held.free,
            asleep_bytes: held.asleep,
            holder_bytes: held.of_others,
            discardable_bytes,
            offered_bytes,
            claimed_bytes: held.claimed,
            guarantee: held.guarantee,
            most: held.most,
            priority: held.priority,
            system_limit: held.system_limit,
            is_self,
            pools: None,
            holders: None,
        }
    }
}

/// Returns the neighbours on a device by their ids. Those that have not answered when nobody has for half of the deadline
/// are left out, such as stopped ones. This process is among them if it is a neighbour, and becomes none: it may watch the
/// others unseen.
///
/// # Errors
/// `ErrorKind::InvalidValue` if there is no such device, or a variable of the environment is wrong;
/// `ErrorKind::Unavailable` if the directory of `GPUPOOL_NEIGHBOURS` cannot be read, or no descriptor is left;
/// `ErrorKind::Forked`.
pub fn neighbours(device: Device) -> Result<Vec<Neighbour>> {
    list(device, false)
}

/// Returns the neighbours with the pools of each.
///
/// # Errors
/// Those of [`neighbours`].
pub fn neighbours_with_pools(device: Device) -> Result<Vec<Neighbour>> {
    list(device, true)
}

fn list(device: Device, has_pools: bool) -> Result<Vec<Neighbour>> {
    process::refuse_forked()?;
    let device = runtime::existing(device)?;
    let uuid = KnownUuids::Memory.of(device)?;
    let heard = what_they_hold(u64::MAX, has_pools.then_some(uuid), WaitFor::Nobody)?;
    // Also of a device that this process has not used yet.
    let own = membership().map(|_| Told {
        process: std::process::id(),
        name: name(),
        held: held_of(device, u64::MAX).into_iter().collect(),
        pools: if has_pools { pools_of(device) } else { Vec::new() },
        others: if has_pools { others_of(device) } else { Vec::new() },
    });
    let on_device = |(told, is_self): (&Told, bool)| {
        let held = told.held.iter().find(|held| held.device == uuid)?;
        let pools = has_pools.then(|| told.pools.iter().map(NeighbourPool::from).collect());
        let holders = has_pools.then(|| told.others.clone());
        Some(Neighbour { pools, holders, ..Neighbour::new(told, held, device, is_self) })
    };
    let others = heard.told().map(|told| (told, false));
    let mut found: Vec<_> = others.chain(own.iter().map(|own| (own, true))).filter_map(on_device).collect();
    found.sort_by_key(|neighbour| (neighbour.process, !neighbour.is_self));
    Ok(found)
}
