//! The state of each page of a range: committed or not, pinned or not, what it may be taken for, and the streams that
//! used it.

use crate::memory::cache::BlockUser;
use crate::runtime::{Stream, StreamIdentity, WeakStream};

/// Streams of a range that are told apart; more of them count as all work on the device.
const STREAMS_MOST: usize = 0x3f;
/// The bit of all work on the device.
const ALL_WORK: u64 = 1 << STREAMS_MOST;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) enum PagePhase {
    #[default]
    Empty,
    /// A call commits or decommits it.
    Busy,
    Committed,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) enum RangeLife {
    #[default]
    Held,
    /// Nobody has it any more; the last call with busy pages frees it.
    Dropped,
    Freed,
}

/// A page. Its users stay noted after it was decommitted: its memory may be there still, and in use.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PageState {
    /// A bit for each stream that used it.
    pub(super) users: u64,
    pub(super) pins: u64,
    /// Commits under way that name it, though it is committed.
    pub(super) named: u32,
    pub(super) phase: PagePhase,
    /// The order in which it may be taken when memory is short, if it may.
    pub(super) priority: Option<i32>,
}

impl PageState {
    pub(super) fn is_discardable(&self) -> bool {
        self.phase == PagePhase::Committed && self.pins == 0 && self.named == 0 && self.priority.is_some()
    }
}

/// A stream that a caller has named, as its user.
#[derive(Debug)]
struct KnownStream {
    identity: StreamIdentity,
    /// The user, also once a stream of our own is gone.
    user: BlockUser,
    /// A stream of our own, which no range keeps alive.
    own: Option<WeakStream>,
}

impl KnownStream {
    fn new(identity: StreamIdentity, stream: &Stream) -> Self {
        let own = stream.weak();
        let user = match own {
            Some(_) => BlockUser::untouched(stream),
            None => BlockUser::new(stream).fleeting(),
        };
        Self { identity, user, own }
    }

    fn user(&self) -> BlockUser {
        match self.own.as_ref().and_then(WeakStream::upgrade) {
            Some(stream) => BlockUser::new(&stream),
            None => self.user.clone(),
        }
    }
}

/// Returns whether later work of the stream of one bit comes after that of all users that these bits stand for. The bit of
/// all work is many streams', in no order.
pub(super) fn is_behind(bit: u64, users: u64) -> bool {
    users & !(bit & !ALL_WORK) == 0
}

/// The pages of a range, and the streams that use them.
#[derive(Debug)]
pub(super) struct PageTable {
    pub(super) pages: Vec<PageState>,
    streams: Vec<KnownStream>,
    pub(super) committed: u32,
    /// Pages with pins.
    pub(super) pinned: u32,
    pub(super) life: RangeLife,
}

impl PageTable {
    pub(super) fn new(count: u32) -> Self {
        let pages = vec![PageState::default(); count as usize];
        Self { pages, streams: Vec::new(), committed: 0, pinned: 0, life: RangeLife::Held }
    }

    pub(super) fn is_freed(&self) -> bool {
        self.life == RangeLife::Freed
    }

    /// Returns the bit of a stream, which a caller has just named.
    pub(super) fn bit_of(&mut self, identity: StreamIdentity, stream: &Stream) -> u64 {
        if let Some(place) = self.streams.iter().position(|known| identity.is_behind(&known.identity)) {
            return 1 << place;
        }
        if self.streams.len() == STREAMS_MOST {
            return ALL_WORK;
        }
        self.streams.push(KnownStream::new(identity, stream));
        1 << (self.streams.len() - 1)
    }

    /// Returns the users that these bits stand for, of which a caller has just named one stream; none for all work on
    /// the device.
    pub(super) fn users(&self, bits: u64, named: Option<(StreamIdentity, &Stream)>) -> Option<Vec<BlockUser>> {
        let with_name = |known: &KnownStream| match named {
            Some((identity, stream)) if identity == known.identity => BlockUser::new(stream),
            _ => known.user(),
        };
        let of_bits = self.streams.iter().enumerate().filter(|(place, _)| bits & (1 << place) != 0);
        (bits & ALL_WORK == 0).then(|| of_bits.map(|(_, known)| with_name(known)).collect())
    }

    /// Returns the streams that can be asked at any time.
    pub(super) fn lasting_streams(&self) -> Vec<Stream> {
        self.streams.iter().filter_map(|known| known.identity.lasting()).collect()
    }
}
