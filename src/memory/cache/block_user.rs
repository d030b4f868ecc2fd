//! Users of a block other than its own stream, and what a freed block waits for: streams, graphs, and other processes, which use
//! it until all of them have let go.
//!
//! A graph uses its blocks of pinned memory whenever it is replayed, on any stream, so no event marks its end. The driver reports
//! when a graph, its instances and their last runs are gone. Where it does not report which capture a stream's work goes to
//! (before CUDA 12.3, HIP, or as it refuses), a block that a graph may use is never used again.

use std::mem::discriminant;
use std::sync::{Arc, Mutex, Weak};

use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::device::{EventPool, Patience, Until, each_once};
use crate::runtime::{self, Capture, Stream, StreamIdentity};
use crate::sync::{AtomicU64, Ordering, ThisThread, lock};

/// Whether a user's stream can be named once the block is freed, by the threads that can name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AtFree {
    Alive,
    /// It may be gone, and is not touched again.
    Unknown,
}

/// A user of a block other than its own stream.
#[derive(Clone, Debug)]
pub(in crate::memory) enum BlockUser {
    Stream(StreamUser),
    /// Other processes.
    Processes(Arc<Sharing>),
    /// Another pool, whose request took the block for want of memory.
    OtherPool,
    /// gpupool itself, for its own work: no caller can free the block.
    Gpupool,
}

/// A stream that uses a block.
#[derive(Clone, Debug)]
pub(in crate::memory) struct StreamUser {
    stream: Stream,
    /// With the number 0: who names it promises that it outlives the block, unless that is not known.
    identity: StreamIdentity,
    at_free: AtFree,
    /// The graph that its work goes to, of pinned memory.
    graph: Option<GraphUse>,
}

impl BlockUser {
    /// A stream that the calling thread names.
    pub(in crate::memory) fn new(stream: &Stream) -> Self {
        let identity = StreamIdentity::numbered(stream, Some(0));
        Self::Stream(StreamUser { stream: stream.kept(), identity, at_free: AtFree::Alive, graph: None })
    }

    /// Makes the user of a stream that is not touched again, and so not kept alive: all work on its device stands for its.
    pub(in crate::memory) fn untouched(stream: &Stream) -> Self {
        let identity = StreamIdentity::numbered(stream, Some(0));
        Self::Stream(StreamUser { stream: stream.view(), identity, at_free: AtFree::Unknown, graph: None })
    }

    /// Returns the same user with the graph that its stream's work goes to now, if it is captured.
    pub(in crate::memory) fn with_graph(mut self) -> Self {
        if let Self::Stream(user) = &mut self {
            user.graph = GraphUse::of(&user.stream);
        }
        self
    }

    /// Returns the user marked as one whose stream may be gone by the free: all work on its device then stands for its.
    pub(in crate::memory) fn fleeting(mut self) -> Self {
        self.become_fleeting();
        self
    }

    /// Does in place what [`BlockUser::fleeting`] does.
    pub(in crate::memory) fn become_fleeting(&mut self) {
        if let Self::Stream(user) = self
            && !user.identity.is_per_thread()
            && !user.stream.is_lasting()
        {
            user.at_free = AtFree::Unknown;
        }
    }

    pub(in crate::memory) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Stream(user), Self::Stream(other)) => user.is(other),
            _ => discriminant(self) == discriminant(other),
        }
    }

    /// Returns whether a block that is being freed waits for this user. No other process can take hold of it then.
    pub(in crate::memory) fn is_left(&self) -> bool {
        match self {
            Self::Stream(_) => true,
            Self::Processes(sharing) => {
                sharing.end();
                sharing.holders() > 0
            }
            Self::OtherPool | Self::Gpupool => false,
        }
    }

    /// Returns whether the thread can name its stream, if it is one.
    #[cfg(feature = "python")]
    pub(in crate::memory) fn is_nameable_by(&self, thread: ThisThread) -> bool {
        self.stream().is_none_or(|user| user.can_be_named_by(thread))
    }

    fn stream(&self) -> Option<&StreamUser> {
        if let Self::Stream(user) = self { Some(user) } else { None }
    }

    pub(super) fn sharing(&self) -> Option<&Arc<Sharing>> {
        if let Self::Processes(sharing) = self { Some(sharing) } else { None }
    }
}

/// Allows no new holders of a block, and returns how it is shared.
fn end_sharing(users: &[BlockUser]) -> Vec<Arc<Sharing>> {
    let shared: Vec<_> = users.iter().filter_map(BlockUser::sharing).cloned().collect();
    shared.iter().for_each(|sharing| sharing.end());
    shared
}

impl StreamUser {
    fn is(&self, other: &Self) -> bool {
        (self.identity, self.at_free, &self.graph) == (other.identity, other.at_free, &other.graph)
    }

    fn can_be_named_by(&self, thread: ThisThread) -> bool {
        self.at_free == AtFree::Alive && self.identity.is_nameable_by(thread)
    }
}

/// A freed block, and what must happen before it is used again.
#[derive(Debug)]
pub(in crate::memory) struct Waiting {
    pub(in crate::memory) offset: u64,
    /// Further blocks that wait for the same, freed in one call.
    pub(in crate::memory) beside: Vec<u64>,
    pub(in crate::memory) until: Until,
    /// The graphs that must be gone, of pinned memory.
    graphs: Vec<GraphUse>,
    /// The processes that must have let go.
    shared: Vec<Arc<Sharing>>,
}

impl Waiting {
    pub(in crate::memory) const fn new(offset: u64, until: Until) -> Self {
        Self { offset, beside: Vec::new(), until, graphs: Vec::new(), shared: Vec::new() }
    }

    pub(in crate::memory) fn offsets(&self) -> impl Iterator<Item = u64> {
        [self.offset].into_iter().chain(self.beside.iter().copied())
    }

    /// Returns whether it can be used again; waits for what is recorded, but not for the end of graphs, nor for other
    /// processes.
    pub(in crate::memory) fn is_done(&mut self, events: &EventPool, patience: Patience) -> Result<bool> {
        self.graphs.retain(|graph| !graph.has_ended());
        self.shared.retain(|sharing| sharing.holders() > 0);
        let is_held = !self.graphs.is_empty() || !self.shared.is_empty();
        let patience = if is_held { Patience::Ask } else { patience };
        Ok(self.until.is_done(events, patience)? && !is_held)
    }

    /// Makes a block that waits for its users' work so far, or for what they have done once the driver records it,
    /// which is later and so never too early. Where no thread can name the stream, it waits for all work on the devices
    /// concerned.
    pub(in crate::memory) fn for_users(
        offset: u64,
        users: &[BlockUser],
        events: &EventPool,
        thread: Option<ThisThread>,
    ) -> Self {
        let shared = end_sharing(users);
        let users: Vec<_> = users.iter().filter_map(BlockUser::stream).collect();
        let streams: Vec<_> = users.iter().map(|user| user.stream.clone()).collect();
        let is_nameable = |user: &&StreamUser| thread.is_some_and(|thread| user.can_be_named_by(thread));
        let own = events.location.device();
        let until = if thread.is_some() && users.iter().all(is_nameable) {
            Until::work_on(events, streams.clone()).unwrap_or(Until::Unrecorded(streams))
        } else {
            let devices = each_once(streams.iter().map(Stream::device).chain(own.filter(|_| thread.is_none())));
            Until::all_work(events, &devices).unwrap_or_else(|_| Until::recorded_later(devices))
        };
        let mut graphs: Vec<_> = users.iter().filter_map(|user| user.graph.clone()).collect();
        if own.is_none() {
            // A stream noted before a capture began may be part of it now.
            graphs.extend(users.into_iter().filter(is_nameable).filter_map(|user| GraphUse::of(&user.stream)));
        }
        Self { offset, beside: Vec::new(), until, graphs, shared }
    }
}

/// Set once the block is freed here.
const FREED: u64 = 0x8000_0000_0000_0000;

/// The use of one block by other processes. Without a lock, since freed blocks are checked under their cache's lock.
#[derive(Debug, Default)]
pub(in crate::memory) struct Sharing {
    /// The holders, and whether the block was freed.
    state: AtomicU64,
    /// The number under which the block is shared; 0 before that.
    number: AtomicU64,
}

impl Sharing {
    /// Adds a holder; false if the block was freed.
    pub(in crate::memory) fn hold(&self) -> bool {
        let more = |state: u64| (state & FREED == 0).then_some(state + 1);
        // Sequentially consistent: a pool that falls asleep marks itself so and then looks for holders; a holder does
        // both in the other order.
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// As [`Sharing::hold`], for a process that got the block from a holder: also if it was freed, while there is a holder.
    pub(in crate::memory) fn hold_again(&self) -> bool {
        let more = |state: u64| (state & !FREED > 0).then_some(state + 1);
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    pub(in crate::memory) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(in crate::memory) fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Removes a holder, whose last work with the block is done.
    pub(in crate::memory) fn let_go(&self) {
        let fewer = |state: u64| (state & !FREED > 0).then(|| state - 1);
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
    }

    /// Allows no new holder, since the block was freed.
    pub(in crate::memory) fn end(&self) {
        self.state.fetch_or(FREED, Ordering::SeqCst);
    }

    pub(in crate::memory) fn holders(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & !FREED
    }

    pub(in crate::memory) fn is_freed(&self) -> bool {
        self.state.load(Ordering::SeqCst) & FREED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::Sharing;

    #[test]
    fn a_freed_block_gets_no_new_holder_and_is_there_until_the_last_lets_go() {
        let sharing = Sharing::default();
        assert!(sharing.hold() && sharing.hold());
        sharing.end();
        assert!(!sharing.hold());
        assert!(sharing.hold_again());
        sharing.let_go();
        assert!((sharing.holders(), sharing.is_freed()) == (2, true));
        sharing.let_go();
        sharing.let_go();
        // One too many changes nothing.
        sharing.let_go();
        assert!((sharing.holders(), sharing.is_freed()) == (0, true));
        assert!(!sharing.hold_again());
    }
}

/// A graph that uses a block, with what the driver keeps for it; none where no driver reports its end.
#[derive(Clone, Debug)]
pub(in crate::memory) struct GraphUse(Option<KeptGraph>);

/// The id of a capture, which is never used twice, and what the driver keeps for its graph as long as that may run.
type KeptGraph = (u64, Weak<()>);

/// What the driver keeps for each graph.
static KEPT: Mutex<Vec<KeptGraph>> = Mutex::new(Vec::new());

impl GraphUse {
    /// Returns the graph that the stream's work goes to; none if the stream is not captured.
    pub(in crate::memory) fn of(stream: &Stream) -> Option<Self> {
        let status = stream.capture_status();
        // A spoilt capture never runs.
        if status.as_ref().is_ok_and(|status| *status != CaptureStatus::Active) {
            return None;
        }
        match (status, stream.capture()) {
            // The driver refused the first question, and the second one answers that, too. Once a capture has ended, no
            // question tells which graph it made: so the answer counts now, and without one there may be a graph.
            (Err(_), Ok(None)) => None,
            (_, capture) => Some(Self(capture.ok().flatten().and_then(kept_for))),
        }
    }

    /// Returns whether the graph is gone and its last run is over.
    pub(in crate::memory) fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, end)| end.strong_count() == 0)
    }
}

/// Both are equal if they are of one graph.
impl PartialEq for GraphUse {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().map(|(capture, _)| capture) == other.0.as_ref().map(|(capture, _)| capture)
    }
}

/// Gives the driver something to keep for the graph of a capture, unless it has that already.
fn kept_for(capture: Capture) -> Option<KeptGraph> {
    let known = {
        let mut known = lock(&KEPT);
        known.retain(|(_, end)| end.strong_count() > 0);
        known.iter().find(|(id, _)| *id == capture.id).cloned()
    };
    if known.is_some() {
        return known;
    }
    let end = Arc::new(());
    let kept = (capture.id, Arc::downgrade(&end));
    // SAFETY: the caller that names the stream promises that it is alive; it is captured, so its graph is alive.
    unsafe { runtime::get().ok()?.graph_retain(capture.graph, Box::new(end)) }.ok()?;
    lock(&KEPT).push(kept.clone());
    Some(kept)
}
