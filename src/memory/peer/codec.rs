//! What processes say to each other: one table of questions and one of answers, each a packet of a bounded size with one
//! version. Another process may send anything, so a packet is only taken if its bytes are those that this process would have
//! written for what it read, and if no list or count in it is more than there can be. Anything else ends the connection.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::memory::device::DescribedExtent;
use crate::memory::shared_block::Secret;
use crate::runtime::{DeviceUuid, Extent};

/// The version of all packets, and of tokens. A process of another one is no neighbour, and shares nothing with this one.
pub(super) const VERSION: u16 = 0x4;
/// The beginning of each packet.
const HEAD: [u8; 6] = {
    let [low, high] = VERSION.to_le_bytes();
    [b'g', b'p', b'p', b'l', low, high]
};
/// The largest packet.
pub(super) const PACKET: usize = 0x2000;
/// The most descriptors of one packet: few, so that a process with a low limit has room, and so that one side makes the
/// next ones while the other imports these.
pub(super) const DESCRIPTORS: usize = 0x8;
/// The most extents that one answer describes.
pub(super) const DESCRIBED: usize = 0x100;
/// The most mappings to end that one packet names.
pub(super) const ENDED: usize = 0x200;
/// The most extents of a block, each of which is a page at least of the addresses that a GPU has, and the most events.
const EXTENTS_MOST: u64 = 0x100_0000;
/// The bytes of an event's name.
pub(super) const EVENT_NAME: usize = 0x40;
/// The most bytes of any count: as many as a process has addresses for.
pub(super) const BYTES_MOST: u64 = 1 << 0x2f;
/// The most devices that a process tells of.
pub(super) const DEVICES_MOST: usize = 0x20;
/// The most pools that a process tells of.
pub(super) const POOLS_MOST: usize = 0x40;
/// The most bytes of a name that travel.
const NAME_BYTES: usize = 0x40;
/// The most bytes of a reason that travel.
const REASON_BYTES: usize = PACKET / 2;

/// A packet's content.
pub(super) trait Message: Serialize + DeserializeOwned {
    /// Returns what was received, with names that control no terminal, unless a count or list in it is more than there can be.
    fn checked(self) -> Option<Self>;

    fn to_packet(&self) -> Vec<u8> {
        // Only types that cannot be written fail, and these can.
        postcard::to_extend(self, HEAD.to_vec()).unwrap_or_default()
    }

    /// Reads a packet, unless its bytes are something else.
    fn from_packet(packet: &[u8]) -> Option<Self> {
        let message: Self = postcard::from_bytes(packet.strip_prefix(&HEAD)?).ok()?;
        // Numbers have longer forms, and there may be something behind the end.
        if message.to_packet() == packet { message.checked() } else { None }
    }
}

/// Names a block, and proves that the process was given its token.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) struct BlockKey {
    pub(super) block: u64,
    pub(super) secret: Secret,
}

/// What a process asks of another one, or tells it. Those of a block name it; none of the others needs a secret.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) enum Question {
    OfBlock(BlockKey, BlockQuestion),
    /// None, but a word that a mapping that had stayed has ended. It is not answered.
    Unmapped {
        mapping: u64,
    },
    OfMemory(MemoryQuestion),
}

/// What is asked of a block that the process shares. Some ask for nothing, and are not answered.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub(super) enum BlockQuestion {
    /// To hold it, with the number under which it is in flight, or 0.
    Hold { in_flight: u64 },
    /// Numbers and sizes of extents, from one on.
    Describe { from: u64 },
    /// Descriptors of so many extents, from one on.
    Extents { from: u64, count: u32 },
    /// Events for what was submitted before it was shared, from one on.
    Events { from: u64 },
    /// To use this connection from now on for the mappings that are to end.
    Channel,
    /// Nothing: a hold is over, and the work is done. A mapping with a number other than 0 stays.
    LetGo { mapping: u64 },
    /// Nothing: it was in flight under this number, and has arrived.
    Arrived { in_flight: u64 },
}

/// What a neighbour asks.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) enum MemoryQuestion {
    /// What the process holds, of its claims those made before this time: of all devices, or of one with its pools there.
    Tell { before: u64, with_pools: Option<DeviceUuid> },
    /// To give back so many bytes of a device within a time.
    Give { spare: Spare, device: DeviceUuid, bytes: u64, within_ms: u32 },
    /// None, but a word that it did not answer while the sender claimed memory of a device, beside which there is room for
    /// so many bytes. It is not answered.
    PassedBy { device: DeviceUuid, room: u64 },
}

/// What a process can do without, in the order in which it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) enum Spare {
    /// Free memory, and idle handles.
    Free,
    /// Pages of ranges that may be taken.
    Discardable,
    /// Pools that were offered.
    Offered,
}

impl Spare {
    pub(super) const ALL: [Self; 3] = [Self::Free, Self::Discardable, Self::Offered];
}

impl Message for Question {
    fn checked(self) -> Option<Self> {
        Some(self)
    }
}

/// What a process answers, or tells unasked.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    /// The block is held; with the names of its first events, whose descriptors come along.
    Held(HeldBlock, EventNames),
    Described(Vec<(u64, u64)>),
    /// The descriptors come along.
    Extents,
    Events(EventNames),
    Channel,
    /// Unasked, by a channel: the numbers of mappings that are to end.
    ToEnd(Vec<u64>),
    /// There is no such block, or no more.
    Refused(String),
    /// The system or the driver refused.
    Failed(String),
    Told(Told),
    /// So many bytes are the driver's.
    Given(u64),
}

/// The names of events, [`EVENT_NAME`] bytes each.
pub(super) type EventNames = Vec<u8>;

/// Where a block is that is held.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct HeldBlock {
    /// Its start in the region's first extent, in bytes.
    pub(super) lead: u64,
    pub(super) bytes: u64,
    /// The number of the region: another number, other memory.
    pub(super) region: u64,
    pub(super) extents: u64,
    pub(super) events: u64,
    /// The device that has the memory.
    pub(super) device: DeviceUuid,
}

/// What a process tells of itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Told {
    pub(super) process: u32,
    pub(super) name: String,
    pub(super) held: Vec<Held>,
    /// If they were asked for.
    pub(super) pools: Vec<PoolHeld>,
    /// If those were: the names of other libraries of the process, and the bytes that each holds.
    pub(super) others: Vec<(String, u64)>,
}

/// What a process holds of a device. All numbers but the priority are bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct Held {
    pub(super) device: DeviceUuid,
    pub(super) reserved: u64,
    pub(super) live: u64,
    pub(super) free: u64,
    pub(super) asleep: u64,
    /// What it would give back of each kind, the guarantee aside.
    pub(super) spare: [u64; 3],
    pub(super) claimed: u64,
    pub(super) guarantee: u64,
    pub(super) most: Option<u64>,
    pub(super) priority: i32,
    /// The least that the system lets it have at most.
    pub(super) system_limit: Option<u64>,
    /// What other libraries of the process hold; none unless it is watched.
    pub(super) of_others: Option<u64>,
}

/// What a pool holds: bytes that are reserved, live, free and asleep.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub(super) struct PoolHeld {
    pub(super) id: (u64, u64),
    pub(super) name: Option<String>,
    pub(super) bytes: [u64; 4],
}

impl Held {
    /// Returns what it would give back, all in all.
    pub(super) fn would_give(&self) -> u64 {
        self.spare.iter().fold(0, |sum: u64, spare| sum.saturating_add(*spare)).min(self.above_guarantee())
    }

    pub(super) const fn above_guarantee(&self) -> u64 {
        self.reserved.saturating_sub(self.guarantee)
    }

    fn counts(&mut self) -> impl Iterator<Item = &mut u64> {
        let Self { reserved, live, free, asleep, spare, claimed, guarantee, most, system_limit, of_others, .. } = self;
        let known = [reserved, live, free, asleep, claimed, guarantee];
        known.into_iter().chain(spare).chain(most).chain(system_limit).chain(of_others)
    }

    /// Returns what is told of it: a guarantee or a claim may be for more than there can be.
    pub(super) fn limited(mut self) -> Self {
        self.counts().for_each(|count| *count = (*count).min(BYTES_MOST));
        self
    }
}

impl PoolHeld {
    /// Returns what is told of it.
    pub(super) fn limited(mut self) -> Self {
        self.name = self.name.map(|name| cut_name(&name).to_owned());
        self.bytes = self.bytes.map(|count| count.min(BYTES_MOST));
        self
    }
}

impl Message for Answer {
    fn checked(mut self) -> Option<Self> {
        let are_names =
            |names: &EventNames| names.len().is_multiple_of(EVENT_NAME) && names.len() <= DESCRIPTORS * EVENT_NAME;
        let is_bounded = match &mut self {
            Self::Held(held, names) => held.extents.max(held.events) <= EXTENTS_MOST && are_names(names),
            Self::Described(extents) => extents.len() <= DESCRIBED,
            Self::Events(names) => are_names(names),
            Self::Extents | Self::Channel => true,
            Self::ToEnd(mappings) => mappings.len() <= ENDED,
            Self::Refused(why) | Self::Failed(why) => why.len() <= REASON_BYTES,
            Self::Told(told) => {
                told.held.len() <= DEVICES_MOST
                    && told.pools.len().max(told.others.len()) <= POOLS_MOST
                    && make_printable(&mut told.name)
                    && told.pools.iter_mut().filter_map(|pool| pool.name.as_mut()).all(make_printable)
                    && told.others.iter_mut().all(|(name, bytes)| make_printable(name) && *bytes <= BYTES_MOST)
                    && told.held.iter_mut().flat_map(Held::counts).all(|count| *count <= BYTES_MOST)
                    && told.pools.iter().flat_map(|pool| pool.bytes).all(|count| count <= BYTES_MOST)
            }
            Self::Given(bytes) => *bytes <= BYTES_MOST,
        };
        is_bounded.then_some(self)
    }
}

impl Answer {
    pub(super) fn described(extents: &[DescribedExtent]) -> Self {
        Self::Described(extents.iter().map(|each| (each.extent.number(), each.bytes)).collect())
    }

    /// The answer where something failed.
    pub(super) fn of(error: &Error) -> Self {
        let why = cut(&error.to_string(), REASON_BYTES).to_owned();
        if matches!(error.kind(), ErrorKind::InvalidValue(_)) { Self::Refused(why) } else { Self::Failed(why) }
    }
}

/// Reads what [`Answer::described`] has.
pub(super) fn extents_in(described: &[(u64, u64)]) -> impl Iterator<Item = DescribedExtent> {
    described.iter().map(|(number, bytes)| DescribedExtent { extent: Extent::from_number(*number), bytes: *bytes })
}

/// Returns as much of a name's beginning as travels.
pub(super) fn cut_name(name: &str) -> &str {
    cut(name, NAME_BYTES)
}

/// Returns the beginning of a text, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Replaces what controls a terminal in a name; false if it is too long.
fn make_printable(name: &mut String) -> bool {
    let is_short = name.len() <= NAME_BYTES;
    if name.contains(char::is_control) {
        *name = name.replace(char::is_control, "?");
    }
    is_short
}

#[cfg(test)]
mod tests;
