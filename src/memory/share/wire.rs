//! The messages between processes that share blocks: packets of a bounded size. A process that attaches sends a
//! [`Message`]; the owner answers with a status, and after [`GIVEN`] what was asked for. By the connection that is its
//! channel, the owner also sends the numbers of mappings to end. Anything else ends the connection: another process may
//! send anything.

use super::token::{Reader, Secret, TokenFields};
use crate::error::{Error, ErrorKind};
use crate::memory::device::DescribedExtent;
use crate::runtime::{DeviceUuid, Extent};

/// The largest packet.
pub(super) const PACKET: usize = 0x2000;
/// The most descriptors of one packet: few, so that a process with a low limit has room, and so that one side makes the
/// next ones while the other imports these.
pub(super) const DESCRIPTORS: usize = 0x8;
pub(super) const ENDED: usize = 0x200;
pub(super) const DESCRIBED: usize = 0x100;
const MAGIC: u32 = 0x6873_7067;

/// What a message asks for. Some ask for nothing, and have no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Ask {
    /// To hold a block; the answer has its place, and as many events as one of [`Ask::Events`].
    Hold = 1,
    /// Numbers and sizes of extents, from one on.
    Describe,
    /// Descriptors of extents, from one on.
    Extents,
    /// Names of events, and their descriptors if any, from one on, for what was submitted before the block was shared.
    Events,
    /// Nothing: a hold is over, and the work is done.
    LetGo,
    /// Nothing: a block that was in flight has arrived.
    Arrived,
    /// To use this connection from now on for the mappings that are to end.
    Channel,
    /// Nothing: a mapping that had stayed has ended.
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
        Self::Channel,
        Self::Unmapped,
    ];
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) ask: Ask,
    pub(super) secret: Secret,
    pub(super) block: u64,
    /// The first that is asked for; for [`Ask::Hold`] and [`Ask::Arrived`] the number in flight, or 0; for
    /// [`Ask::LetGo`] and [`Ask::Unmapped`] the mapping's number, or 0 if none stays.
    pub(super) from: u64,
    pub(super) count: u32,
}

const MESSAGE: usize = 0x2c;

impl TokenFields {
    pub(super) const fn message(&self, ask: Ask, from: u64, count: u32) -> Message {
        Message { ask, secret: self.secret, block: self.block, from, count }
    }
}

impl Message {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let Self { ask, secret, block, from, count } = self;
        let [magic, ask, count] = [MAGIC, ask as u32, count].map(u32::to_le_bytes);
        let [block, from] = [block, from].map(u64::to_le_bytes);
        [&magic[..], &ask, &secret.0, &block, &from, &count].concat()
    }

    /// Reads a message, unless the bytes are something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(<&[u8; MESSAGE]>::try_from(bytes).ok()?);
        if reader.u32() != MAGIC {
            return None;
        }
        let ask = reader.u32();
        let ask = Ask::ALL.into_iter().find(|known| *known as u32 == ask)?;
        let secret = Secret(reader.take());
        Some(Self { ask, secret, block: reader.u64(), from: reader.u64(), count: reader.u32() })
    }
}

/// The first byte of an answer: what was asked for is given.
pub(super) const GIVEN: u8 = 0;
/// There is no such block, or no more; the rest says why.
pub(super) const REFUSED: u8 = 1;
/// The system or the driver refused; the rest says why.
pub(super) const FAILED: u8 = 2;

/// The answer to [`Ask::Hold`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeldBlock {
    pub(super) lead: u64,
    pub(super) bytes: u64,
    /// The number of the region: another number, other memory.
    pub(super) region: u64,
    pub(super) extents: u64,
    pub(super) events: u64,
    /// The device that has the memory.
    pub(super) device: DeviceUuid,
}

impl HeldBlock {
    /// Returns the packet, which goes on with the names of the first events.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let Self { lead, bytes, region, extents, events, device } = self;
        let mut packet = numbers([lead, bytes, region, extents, events]);
        packet.extend(device);
        packet
    }

    /// Reads the output of [`HeldBlock::to_bytes`], without its status, and returns also the names.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (fields, rest) = bytes.split_first_chunk::<40>()?;
        let [lead, bytes, region, extents, events] = read_numbers(fields)?.try_into().ok()?;
        let (device, names) = rest.split_first_chunk()?;
        Some((Self { lead, bytes, region, extents, events, device: *device }, names))
    }
}

pub(super) fn describe(extents: &[DescribedExtent]) -> Vec<u8> {
    numbers(extents.iter().flat_map(|each| [each.extent.number(), each.bytes]))
}

/// Reads the output of [`describe`], without its status.
pub(super) fn described(bytes: &[u8]) -> Option<Vec<DescribedExtent>> {
    let numbers = read_numbers(bytes)?;
    let read = |[number, bytes]: &[u64; 2]| DescribedExtent { extent: Extent::from_number(*number), bytes: *bytes };
    Some(numbers.as_chunks().0.iter().map(read).collect())
}

/// Returns a packet of numbers, such as those of mappings to end.
pub(super) fn numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = vec![GIVEN];
    numbers.into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes
}

/// Reads the output of [`numbers`], without its status, unless it is something else.
pub(super) fn read_numbers(bytes: &[u8]) -> Option<Vec<u64>> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    rest.is_empty().then(|| numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

pub(super) fn refusal(error: &Error) -> Vec<u8> {
    let mut bytes = vec![if matches!(error.kind(), ErrorKind::InvalidValue(_)) { REFUSED } else { FAILED }];
    let why = error.to_string();
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
    fn messages_travel_and_rubbish_is_none() {
        for ask in Ask::ALL {
            let message = Message { ask, secret: Secret([7; 16]), block: 1 << 40, from: 1 << 50, count: 9 };
            let bytes = message.to_bytes();
            let read = Message::from_bytes(&bytes);
            assert!(read.is_some_and(|read| read.secret.is(&[7; 16])));
            let read = read.map(|read| (read.ask, read.block, read.from, read.count));
            assert_eq!(read, Some((ask, 1 << 40, 1 << 50, 9)));
            assert!(Message::from_bytes(&bytes[1..]).is_none());
        }
        assert!(Message::from_bytes(&[0; MESSAGE]).is_none() && Message::from_bytes(b"").is_none());
        let mut unknown = Message { ask: Ask::Hold, secret: Secret([0; 16]), block: 0, from: 0, count: 0 }.to_bytes();
        unknown[4] = 77;
        assert!(Message::from_bytes(&unknown).is_none());
    }

    #[test]
    fn answers_travel_and_rubbish_is_none() {
        let held = HeldBlock { lead: 1, bytes: 2, region: 5, extents: 3, events: 4, device: [6; 16] };
        let mut packet = held.to_bytes();
        packet.extend([7; 64]);
        assert_eq!(HeldBlock::from_bytes(&packet[1..]), Some((held, &[7; 64][..])));
        assert!(held.to_bytes().len() + DESCRIPTORS * 64 <= PACKET);
        assert_eq!((HeldBlock::from_bytes(&[0; 39]), HeldBlock::from_bytes(&[0; 55])), (None, None));
        let extents = [1, 2].map(|number| DescribedExtent { extent: Extent::from_number(number), bytes: number << 21 });
        assert_eq!(described(&describe(&extents)[1..]).as_deref(), Some(&extents[..]));
        assert_eq!(described(&[0; 17]), None);
        let ended: Vec<_> = (0..ENDED as u64).map(|number| number << 40).collect();
        assert_eq!(read_numbers(&numbers(ended.clone())[1..]), Some(ended));
        assert!(numbers([0; ENDED]).len() <= PACKET);
        assert!(read_numbers(&[0; 9]).is_none());
        let long = "\u{e9}".repeat(PACKET);
        assert!(refusal(&Error::unavailable(long)).len() <= PACKET);
    }
}
