//! The state of each page of a range, and the streams that used it.

use std::mem;

use crate::error::{Error, Result};
use crate::memory::cache::BlockUser;
use crate::runtime::{Stream, StreamIdentity, WeakStream};
use crate::sync::ThreadNumber;

/// Streams of a range that are told apart; more of them count as all work on the device.
const STREAMS_MOST: usize = 0x3f;
/// The bit of all work on the device.
const ALL_WORK: u64 = 1 << STREAMS_MOST;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) enum PagePhase {
    #[default]
    Empty,
    /// A call that commits, decommits or takes it has its state.
    Busy,
    Committed {
        pins: u64,
        /// Commits under way that name it: it is not taken for these very calls.
        named: u32,
        /// The order in which it may be taken when memory is short, if it may.
        priority: Option<i32>,
    },
}

impl PagePhase {
    pub(super) const fn is_committed(self) -> bool {
        matches!(self, Self::Committed { .. })
    }
}

/// A page. Its users stay noted after it was decommitted: its memory may be there still, and in use.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct PageState {
    /// A bit for each stream that used it.
    pub(super) users: u64,
    pub(super) phase: PagePhase,
}

impl PageState {
    pub(super) const fn committed(users: u64, priority: Option<i32>) -> Self {
        Self { users, phase: PagePhase::Committed { pins: 0, named: 0, priority } }
    }

    pub(super) const fn empty(users: u64) -> Self {
        Self { users, phase: PagePhase::Empty }
    }

    /// Returns the order in which it may be taken now, if it may.
    pub(super) const fn discardable(&self) -> Option<i32> {
        match self.phase {
            PagePhase::Committed { pins: 0, named: 0, priority } => priority,
            _ => None,
        }
    }
}

/// A stream that the calling thread has just named.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedStream<'a> {
    identity: StreamIdentity,
    pub(super) stream: &'a Stream,
}

impl<'a> NamedStream<'a> {
    pub(super) fn of(stream: &'a Stream) -> Result<Self> {
        Ok(Self { identity: StreamIdentity::of(stream)?, stream })
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
    fn new(NamedStream { identity, stream }: NamedStream<'_>) -> Self {
        let own = stream.weak();
        let user = match own {
            Some(_) => BlockUser::untouched(stream),
            None => BlockUser::new(stream).fleeting(),
        };
        Self { identity, user, own }
    }

    fn user(&self, named: Option<NamedStream<'_>>) -> BlockUser {
        match (named, self.own.as_ref().and_then(WeakStream::upgrade)) {
            (Some(named), _) if named.identity == self.identity => BlockUser::new(named.stream),
            (_, Some(own)) => BlockUser::new(&own),
            (_, None) => self.user.clone(),
        }
    }
}

/// Returns whether later work of the stream of one bit comes after that of all users that these bits stand for. The bit of
/// all work is many streams', in no order.
pub(super) fn is_behind(bit: u64, users: u64) -> bool {
    users & !(bit & !ALL_WORK) == 0
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) enum RangeLife {
    #[default]
    Held,
    Freed,
}

/// The pages of a range, and the streams that use them.
#[derive(Default, Debug)]
pub(super) struct PageTable {
    pub(super) pages: Vec<PageState>,
    pub(super) committed: u32,
    /// Threads with busy pages.
    pub(super) busy: Vec<ThreadNumber>,
    /// Extents to be kept ready for commits.
    pub(super) kept_ready: u32,
    pub(super) life: RangeLife,
    streams: Vec<KnownStream>,
}

impl PageTable {
    pub(super) fn new(count: u32) -> Self {
        Self { pages: vec![PageState::default(); count as usize], ..Self::default() }
    }

    pub(super) fn is_freed(&self) -> bool {
        self.life == RangeLife::Freed
    }

    pub(super) fn phase(&self, page: u32) -> PagePhase {
        self.pages[page as usize].phase
    }

    /// Replaces a page's state, and returns the former one.
    pub(super) fn put(&mut self, page: u32, state: PageState) -> PageState {
        let before = mem::replace(&mut self.pages[page as usize], state);
        self.committed += u32::from(state.phase.is_committed());
        self.committed -= u32::from(before.phase.is_committed());
        before
    }

    /// Returns the bit of a stream; none for no stream.
    pub(super) fn bit_of(&mut self, named: Option<NamedStream<'_>>) -> u64 {
        let Some(named) = named else { return 0 };
        if let Some(place) = self.streams.iter().position(|known| named.identity.is_behind(&known.identity)) {
            return 1 << place;
        }
        if self.streams.len() == STREAMS_MOST {
            return ALL_WORK;
        }
        self.streams.push(KnownStream::new(named));
        1 << (self.streams.len() - 1)
    }

    /// Returns the users that these bits stand for; none for all work on the device.
    pub(super) fn users(&self, bits: u64, named: Option<NamedStream<'_>>) -> Option<Vec<BlockUser>> {
        let of_bits = self.streams.iter().enumerate().filter(|(place, _)| bits & (1 << place) != 0);
        (bits & ALL_WORK == 0).then(|| of_bits.map(|(_, known)| known.user(named)).collect())
    }

    /// Returns the streams that can be asked at any time.
    pub(super) fn lasting_streams(&self) -> Vec<Stream> {
        self.streams.iter().filter_map(|known| known.identity.lasting()).collect()
    }

    /// Pins those pages that are committed, and returns a bit for each page in the order given, the lowest of the first byte
    /// first: whether it is.
    // Inlined, what it counts is kept on the stack, for a fifth more instructions.
    #[inline(never)]
    pub(super) fn pin(&mut self, listed: impl Iterator<Item = u32>, user: u64) -> Vec<u8> {
        let mut bits = Vec::with_capacity(listed.size_hint().0.div_ceil(8));
        let (states, mut place, mut byte) = (&mut self.pages[..], 0_u32, 0);
        listed.for_each(|page| {
            let state = &mut states[page as usize];
            if let PagePhase::Committed { pins, .. } = &mut state.phase {
                *pins += 1;
                state.users |= user;
                byte |= 1 << place;
            }
            place = (place + 1) % 8;
            if place == 0 {
                bits.push(mem::take(&mut byte));
            }
        });
        if place > 0 {
            bits.push(byte);
        }
        bits
    }

    /// Ends one pin of each page: it may be taken once the work so far of the user is done, too.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if a page is not pinned; then none is changed.
    pub(super) fn unpin(&mut self, mut listed: impl Iterator<Item = u32> + Clone, user: u64) -> Result<()> {
        let (again, mut done) = (listed.clone(), 0);
        let refused = listed.find(|&page| {
            let state = &mut self.pages[page as usize];
            let PagePhase::Committed { pins: pins @ 1.., .. } = &mut state.phase else { return true };
            *pins -= 1;
            state.users |= user;
            done += 1;
            false
        });
        let Some(refused) = refused else { return Ok(()) };
        // As they were, but for the stream, which may count as a user.
        for page in again.take(done) {
            if let PagePhase::Committed { pins, .. } = &mut self.pages[page as usize].phase {
                *pins += 1;
            }
        }
        Err(Error::invalid_value(format!("page {refused} of the range is not pinned: unpin what pin() found there")))
    }
}
