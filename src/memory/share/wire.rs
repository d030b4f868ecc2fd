//! What processes say to each other of shared blocks: one packet each, of a bounded size.

use super::secret::Secret;
use crate::runtime::{DeviceUuid, Extent};

/// The largest packet.
pub(super) const PACKET: usize = 0x2000;
/// The most descriptors of one packet: few, so that a process with a low limit has room for them, and so that one side makes
/// them while the other takes them up.
pub(super) const DESCRIPTORS: usize = 0x8;
/// The most names of events that come along with a hold.
pub(super) const NAMES: usize = 0x40;
/// The most mappings that one packet tells of.
pub(super) const TOLD: usize = 0x200;
/// The most extents that one packet describes.
pub(super) const DESCRIBED: usize = 0x100;
const MAGIC: u32 = 0x6873_7067;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Ask {
    /// To hold a block, and be told where it lies, and the names of events that need no descriptors.
    Hold = 1,
    /// Numbers and sizes of extents, from one on.
    Describe,
    /// Descriptors of extents, from one on.
    Extents,
    /// Names of events, from one on, which stand for what was submitted before the block was shared.
    Events,
    /// Nothing: a hold is over, and the work is done.
    LetGo,
    /// Nothing: what was sent by a queue has arrived.
    Arrived,
    /// To be told, by this connection from now on, which of the mappings that stay are to end.
    News,
    /// Nothing: a mapping has ended that had stayed.
    Unmapped,
}

impl Ask {
    const ALL: [Self; 8] = [
        Self::Hold,
        Self::Describe,
        Self::Extents,
        Self::Events,
        Self::LetGo,
        Self::Arrived,
        Self::News,
        Self::Unmapped,
    ];
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) ask: Ask,
    pub(super) secret: Secret,
    pub(super) block: u64,
    /// The first that is asked for; of [`Ask::Hold`] and [`Ask::Arrived`] the number of what was sent, or 0; of
    /// [`Ask::LetGo`] and [`Ask::Unmapped`] that of the mapping, or 0 where none stays.
    pub(super) from: u64,
    pub(super) count: u32,
}

pub(super) const REQUEST: usize = 0x2c;

impl Request {
    pub(super) fn to_bytes(self) -> [u8; REQUEST] {
        let mut bytes = [0; REQUEST];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.ask as u32).to_le_bytes());
        bytes[8..24].copy_from_slice(&self.secret.0);
        bytes[24..32].copy_from_slice(&self.block.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.from.to_le_bytes());
        bytes[40..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Reads a request; none if the bytes are none.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if word(0)? != MAGIC {
            return None;
        }
        let ask = word(4)?;
        let ask = Ask::ALL.into_iter().find(|known| *known as u32 == ask)?;
        let secret = Secret(bytes[8..24].try_into().ok()?);
        Some(Self { ask, secret, block: long(24)?, from: long(32)?, count: word(40)? })
    }
}

/// Whether what was asked for is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Status {
    Given = 0,
    /// There is no such block, or no more; the rest says why.
    Refused,
    /// The system or the driver refused; the rest says why.
    Failed,
}

/// What [`Ask::Hold`] is answered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// Where the block starts in its region, in bytes.
    pub(super) lead: u64,
    pub(super) bytes: u64,
    /// The number of the region: another number, other memory.
    pub(super) region: u64,
    pub(super) extents: u32,
    pub(super) events: u32,
    /// The device that has the memory.
    pub(super) device: DeviceUuid,
}

impl Held {
    /// Returns the packet with the names of the first events.
    pub(super) fn to_bytes(self, names: &[[u8; 64]]) -> Vec<u8> {
        let mut bytes = vec![Status::Given as u8];
        bytes.extend(self.lead.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.region.to_le_bytes());
        bytes.extend(self.extents.to_le_bytes());
        bytes.extend(self.events.to_le_bytes());
        bytes.extend(self.device);
        bytes.extend(names.as_flattened());
        bytes
    }

    /// Reads what [`Held::to_bytes`] wrote, without its status.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<(Self, &[[u8; 64]])> {
        let (bytes, names) = bytes.split_first_chunk::<48>()?;
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let held = Self {
            lead: long(0)?,
            bytes: long(8)?,
            region: long(16)?,
            extents: word(24)?,
            events: word(28)?,
            device: bytes[32..].try_into().ok()?,
        };
        let (names, rest) = names.as_chunks::<64>();
        (rest.is_empty() && names.len() <= held.events as usize).then_some((held, names))
    }
}

/// An extent as its owner describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Described {
    /// As the owner's driver numbers it.
    pub(super) extent: Extent,
    pub(super) bytes: u64,
}

pub(super) fn describe(extents: &[Described]) -> Vec<u8> {
    let mut bytes = vec![Status::Given as u8];
    for Described { extent, bytes: size } in extents {
        bytes.extend(extent.number().to_le_bytes());
        bytes.extend(size.to_le_bytes());
    }
    bytes
}

/// Reads what [`describe`] wrote, without its status.
pub(super) fn described(bytes: &[u8]) -> Option<Vec<Described>> {
    let long = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
    let read = |each: &[u8]| {
        Some(Described { extent: Extent::from_number(long(each.get(..8)?)?), bytes: long(each.get(8..)?)? })
    };
    bytes.chunks(16).map(read).collect()
}

/// Returns the numbers of mappings that are to end as a packet.
pub(super) fn gone(mappings: &[u64]) -> Vec<u8> {
    let mut bytes = vec![Status::Given as u8];
    mappings.iter().for_each(|mapping| bytes.extend(mapping.to_le_bytes()));
    bytes
}

/// Reads what [`gone`] wrote; none if it is something else.
pub(super) fn read_gone(bytes: &[u8]) -> Option<Vec<u64>> {
    let (status, numbers) = bytes.split_first()?;
    let (numbers, rest) = numbers.as_chunks::<8>();
    let is_known = *status == Status::Given as u8 && rest.is_empty();
    is_known.then(|| numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

/// Returns a refusal as a packet.
pub(super) fn refusal(status: Status, why: &str) -> Vec<u8> {
    let mut bytes = vec![status as u8];
    let mut end = why.len().min(PACKET / 2);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    bytes.extend(&why.as_bytes()[..end]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_travel_and_rubbish_is_none() {
        for ask in Ask::ALL {
            let request = Request { ask, secret: Secret([7; 16]), block: 1 << 40, from: 1 << 50, count: 9 };
            let bytes = request.to_bytes();
            let read = Request::from_bytes(&bytes);
            assert!(read.is_some_and(|read| read.secret.is(&[7; 16])));
            let read = read.map(|read| (read.ask, read.block, read.from, read.count));
            assert_eq!(read, Some((ask, 1 << 40, 1 << 50, 9)));
            assert!(Request::from_bytes(&bytes[1..]).is_none());
        }
        assert!(Request::from_bytes(&[0; REQUEST]).is_none() && Request::from_bytes(b"").is_none());
        let mut unknown = Request { ask: Ask::Hold, secret: Secret([0; 16]), block: 0, from: 0, count: 0 }.to_bytes();
        unknown[4] = 77;
        assert!(Request::from_bytes(&unknown).is_none());
    }

    #[test]
    fn answers_travel_and_rubbish_is_none() {
        let held = Held { lead: 1, bytes: 2, region: 5, extents: 3, events: 4, device: [6; 16] };
        for names in [&[][..], &[[1; 64], [2; 64]]] {
            assert_eq!(Held::from_bytes(&held.to_bytes(names)[1..]), Some((held, names)));
        }
        assert!(held.to_bytes(&[[0; 64]; NAMES]).len() <= PACKET);
        assert_eq!((Held::from_bytes(&[0; 31]), Held::from_bytes(&[0; 33])), (None, None));
        assert_eq!(Held::from_bytes(&held.to_bytes(&[[1; 64]; 5])[1..]), None);
        let extents = [1, 2].map(|number| Described { extent: Extent::from_number(number), bytes: number << 21 });
        assert_eq!(described(&describe(&extents)[1..]).as_deref(), Some(&extents[..]));
        assert_eq!(described(&[0; 17]), None);
        let numbers: Vec<_> = (0..TOLD as u64).map(|number| number << 40).collect();
        assert_eq!(read_gone(&gone(&numbers)), Some(numbers));
        assert!(gone(&[0; TOLD]).len() <= PACKET);
        assert!(read_gone(b"").is_none() && read_gone(&[0; 10]).is_none() && read_gone(&[1; 9]).is_none());
        let long = "\u{e9}".repeat(PACKET);
        assert!(refusal(Status::Failed, &long).len() <= PACKET);
    }
}
