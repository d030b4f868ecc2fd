//! What neighbours say to each other: a question, which is answered with what a process holds, with its pools, or with the
//! bytes that it has given back. Each is one packet of a bounded size, with a version. Anything else ends the connection:
//! another process may send anything.

use std::cmp::Reverse;

use crate::memory::pool::PoolId;
use crate::memory::share::Reader;
use crate::runtime::DeviceUuid;

const MAGIC: u32 = 0x6e70_7067;
/// The version of these packets. A process of another one is passed by.
const FORMAT: u16 = 1;
/// The most bytes of any count: as many as a process has addresses for. A packet with more is none.
pub(super) const BYTES_MOST: u64 = 1 << 0x2f;
/// The most devices that a process tells of.
pub(super) const DEVICES_MOST: usize = 0x20;
const QUESTION: usize = 0x24;
const HEAD: usize = 0x0e + NAME_BYTES;
const HELD: usize = 0x10 + 0x0c * 0x8;

/// What a process can do without, in the order in which it is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Question {
    /// What it holds; of its claims those made before this time.
    Tell { before: u64 },
    /// To give back so many bytes of a device within a time.
    Give { spare: Spare, device: DeviceUuid, bytes: u64, within_ms: u32 },
    /// Its pools of a device.
    Pools { device: DeviceUuid },
    /// None, but a word that it did not answer while the sender claimed memory of a device, beside which there is room for
    /// so many bytes. It is not answered.
    PassedBy { device: DeviceUuid, room: u64 },
}

/// The number of [`Question::Pools`], behind those that ask to give.
const POOLS: u16 = Spare::ALL.len() as u16 + 1;
const PASSED_BY: u16 = POOLS + 1;

impl Question {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let (what, device, number, within_ms) = match self {
            Self::Tell { before } => (0, [0; 16], before, 0),
            Self::Give { spare, device, bytes, within_ms } => (spare as u16 + 1, device, bytes, within_ms),
            Self::Pools { device } => (POOLS, device, 0, 0),
            Self::PassedBy { device, room } => (PASSED_BY, device, room, 0),
        };
        let start = [&head()[..], &what.to_le_bytes()].concat();
        [&start[..], &device, &number.to_le_bytes(), &within_ms.to_le_bytes()].concat()
    }

    /// Reads a question, unless the bytes are something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = begin(bytes.try_into().ok().map(|bytes: &[u8; QUESTION]| &bytes[..])?)?;
        let what = u16::from_le_bytes(reader.take());
        let (device, number, within_ms) = (reader.take(), reader.u64(), reader.u32());
        match what.checked_sub(1) {
            None => Some(Self::Tell { before: number }),
            Some(_) if what == POOLS => Some(Self::Pools { device }),
            Some(_) if what == PASSED_BY => Some(Self::PassedBy { device, room: number }),
            Some(place) => {
                let spare = *Spare::ALL.get(usize::from(place))?;
                Some(Self::Give { spare, device, bytes: number, within_ms })
            }
        }
    }
}

/// Returns the beginning that all packets have.
fn head() -> [u8; 6] {
    let ([a, b, c, d], [e, f]) = (MAGIC.to_le_bytes(), FORMAT.to_le_bytes());
    [a, b, c, d, e, f]
}

/// Returns a reader of what follows the beginning that all packets have.
fn begin(bytes: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader(bytes);
    (reader.u32() == MAGIC && u16::from_le_bytes(reader.take()) == FORMAT).then_some(reader)
}

/// Returns a count, unless it is more than there can be.
fn bytes(reader: &mut Reader<'_>) -> Option<u64> {
    Some(reader.u64()).filter(|bytes| *bytes <= BYTES_MOST)
}

/// What a process holds of a device. All numbers but the priority are bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
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
}

impl Held {
    /// Returns what it would give back, all in all.
    pub(super) fn would_give(&self) -> u64 {
        self.spare.iter().fold(0, |sum: u64, spare| sum.saturating_add(*spare)).min(self.above_guarantee())
    }

    pub(super) const fn above_guarantee(&self) -> u64 {
        self.reserved.saturating_sub(self.guarantee)
    }

    fn to_bytes(self) -> impl Iterator<Item = u8> {
        let Self { device, reserved, live, free, asleep, spare: [one, two, three], claimed, guarantee, .. } = self;
        // A guarantee or a claim may be for more than there can be.
        let counts =
            [reserved, live, free, asleep, one, two, three, claimed, guarantee].map(|bytes| bytes.min(BYTES_MOST));
        let [most, limit] =
            [self.most, self.system_limit].map(|bytes| bytes.map_or(u64::MAX, |bytes| bytes.min(BYTES_MOST)));
        let numbers = [most, i64::from(self.priority).cast_unsigned(), limit];
        device.into_iter().chain(counts.into_iter().chain(numbers).flat_map(u64::to_le_bytes))
    }

    fn read(packed: &[u8; HELD]) -> Option<Self> {
        let mut reader = Reader(packed);
        let device = reader.take();
        let mut next = || bytes(&mut reader);
        let (reserved, live, free, asleep) = (next()?, next()?, next()?, next()?);
        let spare = [next()?, next()?, next()?];
        let (claimed, guarantee) = (next()?, next()?);
        let (most, priority, limit) = (reader.u64(), reader.u64(), reader.u64());
        let [most, system_limit] = [most, limit].map(|bytes| (bytes != u64::MAX).then_some(bytes));
        if [most, system_limit].into_iter().flatten().any(|bytes| bytes > BYTES_MOST) {
            return None;
        }
        let priority = i32::try_from(priority.cast_signed()).ok()?;
        Some(Self { device, reserved, live, free, asleep, spare, claimed, guarantee, most, priority, system_limit })
    }
}

/// What a process tells of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Told {
    pub(super) process: u32,
    pub(super) name: String,
    pub(super) held: Vec<Held>,
}

impl Told {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let held = &self.held[..self.held.len().min(DEVICES_MOST)];
        let [process, count] = [self.process, held.len() as u32].map(u32::to_le_bytes);
        let mut bytes = [&head()[..], &process, &count, &name_to_bytes(&self.name)].concat();
        bytes.extend(held.iter().flat_map(|held| held.to_bytes()));
        bytes
    }

    /// Reads the output of [`Told::to_bytes`], unless it is something else.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let mut reader = begin(head)?;
        let (process, count) = (reader.u32(), reader.u32() as usize);
        let name = read_name(reader.take())?;
        let (held, left) = rest.as_chunks::<HELD>();
        if !left.is_empty() || held.len() != count || count > DEVICES_MOST {
            return None;
        }
        Some(Self { process, name, held: held.iter().map(Held::read).collect::<Option<_>>()? })
    }
}

/// Returns the answer to [`Question::Give`].
pub(super) fn given(bytes: u64) -> Vec<u8> {
    [&head()[..], &bytes.to_le_bytes()].concat()
}

/// Reads the output of [`given`], unless it is something else.
pub(super) fn read_given(packet: &[u8]) -> Option<u64> {
    let packet: &[u8; 0x0e] = packet.try_into().ok()?;
    bytes(&mut begin(packet)?)
}

/// The most bytes of a name that travel: filled up with zeros.
pub(super) const NAME_BYTES: usize = 0x40;

/// Returns as much of a name's beginning as travels, in whole characters.
pub(super) fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

fn name_to_bytes(name: &str) -> [u8; NAME_BYTES] {
    let (name, mut bytes) = (cut(name), [0; NAME_BYTES]);
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// Reads a name, unless it is no text.
fn read_name(bytes: [u8; NAME_BYTES]) -> Option<String> {
    let used = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
    let name = str::from_utf8(&bytes[..used]).ok()?;
    Some(name.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
}

/// The most pools that a process tells of.
const POOLS_MOST: usize = 0x40;
const POOL: usize = 0x6 * 0x8 + NAME_BYTES;

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

impl NeighbourPool {
    fn to_bytes(&self) -> impl Iterator<Item = u8> {
        let Self { id, reserved_bytes, live_bytes, free_bytes, asleep_bytes, .. } = *self;
        let name = name_to_bytes(self.name.as_deref().unwrap_or_default());
        let numbers = [id.0, id.1, reserved_bytes, live_bytes, free_bytes, asleep_bytes];
        name.into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes))
    }

    fn read(packed: &[u8; POOL]) -> Option<Self> {
        let mut reader = Reader(packed);
        let name = Some(read_name(reader.take())?).filter(|name| !name.is_empty());
        let id = PoolId(reader.u64(), reader.u64());
        let mut next = || bytes(&mut reader);
        let (reserved_bytes, live_bytes, free_bytes, asleep_bytes) = (next()?, next()?, next()?, next()?);
        Some(Self { id, name, reserved_bytes, live_bytes, free_bytes, asleep_bytes })
    }
}

/// Returns the pools of which a process tells, in order.
pub(super) fn told_of(mut pools: Vec<NeighbourPool>) -> Vec<NeighbourPool> {
    pools.sort_by_key(|pool| (Reverse(pool.reserved_bytes.saturating_add(pool.asleep_bytes)), pool.id));
    pools.truncate(POOLS_MOST);
    pools
}

/// Returns the answer to [`Question::Pools`](super::Question::Pools).
pub(super) fn pools(pools: Vec<NeighbourPool>) -> Vec<u8> {
    let told = told_of(pools);
    head().into_iter().chain(told.iter().flat_map(NeighbourPool::to_bytes)).collect()
}

/// Reads the output of [`pools`], unless it is something else.
pub(super) fn read_pools(packet: &[u8]) -> Option<Vec<NeighbourPool>> {
    let (pools, left) = begin(packet)?.0.as_chunks::<POOL>();
    let is_whole = left.is_empty() && pools.len() <= POOLS_MOST;
    is_whole.then(|| pools.iter().map(NeighbourPool::read).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(device: u8) -> Held {
        Held {
            device: [device; 16],
            reserved: 1,
            live: 2,
            free: 3,
            asleep: 4,
            spare: [5, 6, 7],
            claimed: 8,
            guarantee: 9,
            most: Some(10),
            priority: -11,
            system_limit: Some(12),
        }
    }

    #[test]
    fn questions_travel_and_rubbish_is_none() {
        let questions =
            Spare::ALL.map(|spare| Question::Give { spare, device: [3; 16], bytes: 1 << 40, within_ms: 77 });
        let passed_by = Question::PassedBy { device: [8; 16], room: 1 << 41 };
        let others = [Question::Tell { before: 1 << 60 }, Question::Pools { device: [7; 16] }, passed_by];
        for question in questions.into_iter().chain(others) {
            let bytes = question.to_bytes();
            assert_eq!(Question::from_bytes(&bytes), Some(question));
            for wrong in 0..bytes.len() {
                assert_eq!(Question::from_bytes(&bytes[..wrong]), None);
            }
            assert_eq!(Question::from_bytes(&[&bytes[..], b"x"].concat()), None);
            // Another version, and another kind of packet.
            for place in [0, 4, 7] {
                let mut other = bytes.clone();
                other[place] = 99;
                assert_eq!(Question::from_bytes(&other), None, "{place}");
            }
        }
        assert!(Question::from_bytes(&[0; QUESTION]).is_none() && Question::from_bytes(b"").is_none());
    }

    #[test]
    fn what_is_told_travels_and_rubbish_is_none() {
        let most = Held { most: None, system_limit: None, ..held(2) };
        let told = Told { process: 77, name: "trainer".to_owned(), held: vec![held(1), most] };
        let bytes = told.to_bytes();
        assert_eq!(Told::from_bytes(&bytes), Some(told.clone()));
        for wrong in 0..bytes.len() {
            assert_eq!(Told::from_bytes(&bytes[..wrong]), None);
        }
        assert_eq!(Told::from_bytes(&[&bytes[..], &[0; HELD]].concat()), None);
        // A priority that is none, and a name that is no text.
        let mut other = bytes.clone();
        other[HEAD + HELD - 9] = 1;
        assert_eq!(Told::from_bytes(&other), None);
        let mut other = bytes;
        other[0x0e] = 0xff;
        assert_eq!(Told::from_bytes(&other), None);
        let many = Told { held: vec![held(1); 2 * DEVICES_MOST], name: "n".repeat(NAME_BYTES), ..told };
        let read = Told::from_bytes(&many.to_bytes());
        assert_eq!(read.map(|read| (read.held.len(), read.name)), Some((DEVICES_MOST, many.name)));
        const { assert!(HEAD + DEVICES_MOST * HELD <= 0x2000, "a packet's size") };
    }

    #[test]
    fn what_is_given_travels_and_rubbish_is_none() {
        assert_eq!(read_given(&given(BYTES_MOST)), Some(BYTES_MOST));
        assert_eq!((read_given(&given(1)[1..]), read_given(&[0; 0x0e])), (None, None));
        for more in [BYTES_MOST + 1, u64::MAX] {
            assert_eq!(read_given(&given(more)), None);
        }
    }

    #[test]
    fn a_count_above_any_memory_is_no_packet() {
        let told = Told { process: 1, name: String::new(), held: vec![held(1)] };
        let bytes = told.to_bytes();
        let numbers: Vec<_> = (HEAD + 0x10..bytes.len()).step_by(8).collect();
        // The priority is none, and one of all bits is no most and no limit.
        for (place, number) in numbers.iter().enumerate() {
            let with = |more: u64| {
                let mut other = bytes.clone();
                other[*number..number + 8].copy_from_slice(&more.to_le_bytes());
                Told::from_bytes(&other)
            };
            assert_eq!((with(BYTES_MOST + 1), with(u64::MAX >> 1)), (None, None), "{place}");
            assert_eq!(with(u64::MAX).is_some(), place >= 9, "{place}");
        }
        // Whatever the program has asked for.
        let much = Held { guarantee: u64::MAX, claimed: u64::MAX, most: Some(u64::MAX - 1), ..held(1) };
        let read = Told::from_bytes(&Told { held: vec![much], ..told }.to_bytes());
        let most = read.map(|read| (read.held[0].guarantee, read.held[0].claimed, read.held[0].most));
        assert_eq!(most, Some((BYTES_MOST, BYTES_MOST, Some(BYTES_MOST))));
    }

    #[test]
    fn a_guarantee_is_not_counted_as_given() {
        let would_give = |reserved, guarantee| Held { reserved, guarantee, ..held(1) }.would_give();
        assert_eq!((would_give(100, 0), would_give(100, 90), would_give(100, 200)), (18, 10, 0));
        assert_eq!(Held { reserved: u64::MAX, guarantee: 0, spare: [u64::MAX; 3], ..held(1) }.would_give(), u64::MAX);
    }

    fn travelled(name: &str) -> Option<String> {
        read_name(name_to_bytes(name))
    }

    #[test]
    fn a_name_arrives_without_what_controls_a_terminal() {
        assert_eq!(travelled("caché").as_deref(), Some("caché"));
        assert_eq!(travelled("a\u{1b}[31m\u{9b}").as_deref(), Some("a?[31m?"));
        assert_eq!(travelled("").as_deref(), Some(""));
        let mut other = [0; NAME_BYTES];
        other[0] = 0xff;
        assert_eq!(read_name(other), None);
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        assert_eq!(travelled(&"n".repeat(NAME_BYTES + 1)), Some("n".repeat(NAME_BYTES)));
        // The last character has two bytes, of which one would fit.
        let long = format!("n{}", "é".repeat(NAME_BYTES / 2));
        assert_eq!(travelled(&long), Some(format!("n{}", "é".repeat(NAME_BYTES / 2 - 1))));
    }

    fn pool(number: u64) -> NeighbourPool {
        NeighbourPool {
            id: PoolId(0, number),
            name: None,
            reserved_bytes: number,
            live_bytes: 2,
            free_bytes: 3,
            asleep_bytes: 4,
        }
    }

    #[test]
    fn pools_travel_and_rubbish_is_none() {
        let sent = [NeighbourPool { name: Some("weights".to_owned()), ..pool(9) }, pool(1)];
        let bytes = pools(sent.to_vec());
        assert_eq!(read_pools(&bytes), Some(sent.to_vec()));
        assert_eq!(read_pools(&pools(Vec::new())), Some(Vec::new()));
        for wrong in (0..bytes.len()).filter(|wrong| *wrong != head().len() && *wrong != bytes.len() - POOL) {
            assert_eq!(read_pools(&bytes[..wrong]), None, "{wrong}");
        }
        // Another version, a name that is no text, and a count above any memory.
        for place in [0, 4, head().len(), bytes.len() - 1] {
            let mut other = bytes.clone();
            other[place] = 0xff;
            assert_eq!(read_pools(&other), None, "{place}");
        }
        let many = [&bytes[..], &vec![0; POOLS_MOST * POOL]].concat();
        assert_eq!(read_pools(&many), None);
    }

    #[test]
    fn of_many_pools_the_largest_travel() {
        // What sleeps will be reserved again.
        let asleep = NeighbourPool { asleep_bytes: 1 << 20, ..pool(0) };
        let many = (1..2 * POOLS_MOST as u64).map(pool).chain([asleep.clone()]).collect();
        let read = read_pools(&pools(many)).unwrap_or_default();
        assert_eq!((read.len(), read[0].id, read[1].id), (POOLS_MOST, asleep.id, PoolId(0, 127)));
        assert!(read[1..].is_sorted_by_key(|pool| Reverse(pool.reserved_bytes)));
        const { assert!(0x6 + POOLS_MOST * POOL <= 0x2000, "a packet's size") };
    }
}
