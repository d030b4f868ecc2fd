//! A pool of device memory: its id, its rules, its supply, and its life.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use super::asleep::Sleep;
use super::id::PoolId;
use super::ledger::Ledger;
use super::life::{PoolLife, Stage, UseOf};
use super::segment_list::SegmentList;
use crate::error::{Error, Result};
use crate::memory::device::{Budget, DeviceMemory, Source, Supply};
use crate::sync::{AtomicBool, Ordering, ThreadNumber};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) use_on_oom: bool,
    pub(crate) no_split: bool,
    /// Whether its maker chose its source.
    pub(crate) has_own_source: bool,
    /// For graphs: all its memory is part of graphs, whatever it was allocated for.
    pub(crate) made_for: UseOf,
    /// Whether it may be put to sleep for another process that has no memory.
    pub(crate) sleeps_for_others: bool,
    /// Whether its next request or scope wakes it then.
    pub(crate) wakes_on_use: bool,
}

/// How blocks are cut out of a pool's segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cutting {
    /// A segment serves many blocks.
    Split,
    /// Each segment serves one block at a time.
    Whole,
}

pub(crate) struct Pool {
    pub(crate) id: PoolId,
    /// Its number in the process, by which threads find their caches; 0 for every default pool.
    pub(crate) number: u32,
    pub(crate) memory: &'static DeviceMemory,
    pub(in crate::memory) name: Option<String>,
    pub(in crate::memory) supply: Arc<Supply>,
    has_own_source: bool,
    pub(crate) made_for: UseOf,
    use_on_oom: AtomicBool,
    /// None until it is decided, by [`Pool::set_no_split`] or because a cache has begun to cut its memory.
    cut: OnceLock<Cutting>,
    pub(in crate::memory) life: PoolLife,
    pub(crate) sleep: Sleep,
    /// The threads that its own allocator runs on.
    pub(super) suppliers: Mutex<Vec<ThreadNumber>>,
    /// Whether the work on foreign streams is marked.
    marks_work: AtomicBool,
    /// What its caches publish.
    pub(in crate::memory) ledger: Arc<Ledger>,
    /// The fixed segments, and the callbacks for them.
    pub(in crate::memory) segments: SegmentList,
}

/// Without its memory, which is the device's.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("id", &self.id)
            .field("device", &self.memory.location)
            .field("use_count", &self.use_count())
            .field("budget", &self.budget())
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub(in crate::memory) fn new(
        id: PoolId,
        number: u32,
        memory: &'static DeviceMemory,
        rules: Rules,
        name: Option<String>,
        supply: Supply,
        first: UseOf,
    ) -> Self {
        Self {
            id,
            number,
            memory,
            name,
            supply: Arc::new(supply),
            has_own_source: rules.has_own_source,
            made_for: rules.made_for,
            use_on_oom: AtomicBool::new(rules.use_on_oom),
            cut: if rules.no_split { OnceLock::from(Cutting::Whole) } else { OnceLock::new() },
            life: PoolLife::new(first),
            sleep: Sleep::new(&rules),
            suppliers: Mutex::default(),
            marks_work: AtomicBool::new(false),
            ledger: Arc::new(Ledger::new(memory)),
            segments: SegmentList::default(),
        }
    }

    pub(in crate::memory) fn budget(&self) -> &Budget {
        &self.supply.budget
    }

    pub(in crate::memory) fn source(&self) -> &Source {
        &self.supply.source
    }

    pub(in crate::memory) fn is_default(&self) -> bool {
        self.number == 0
    }

    pub(crate) fn is_for_graphs(&self) -> bool {
        self.made_for == UseOf::Graphs
    }

    /// Returns the pool's name in messages: its id, and its maker's name.
    pub(crate) fn label(&self) -> String {
        self.name.as_ref().map_or_else(|| self.id.to_string(), |name| format!("{} {name:?}", self.id))
    }

    pub(in crate::memory) fn use_on_oom(&self) -> bool {
        self.use_on_oom.load(Ordering::Acquire)
    }

    /// Sets whether free memory serves other pools when memory is short. Blocks that others hold stay theirs.
    pub(crate) fn set_use_on_oom(&self, use_on_oom: bool) {
        self.use_on_oom.store(use_on_oom, Ordering::Release);
    }

    pub(in crate::memory) fn no_split(&self) -> bool {
        self.cut.get() == Some(&Cutting::Whole)
    }

    /// Makes each segment serve one block at a time.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if memory of the pool was cut already, or it has a reserve.
    pub(crate) fn set_no_split(&self) -> Result<()> {
        let (label, device) = (self.label(), self.memory.location);
        if self.supply.reserve().is_some() {
            return Err(Error::invalid_value(format!(
                "pool {label} on {device} has a reserve, which many blocks share: make the pool without one for no_split"
            )));
        }
        match self.cut.get_or_init(|| Cutting::Whole) {
            Cutting::Whole => Ok(()),
            Cutting::Split => Err(Error::invalid_value(format!(
                "pool {label} on {device} has cut segments into blocks already: set no_split before anything is \
                 allocated from it, or make another pool"
            ))),
        }
    }

    /// Fixes [`Pool::no_split`], since memory is cut from now on. Returns whether segments are split.
    pub(in crate::memory) fn begin_cutting(&self) -> bool {
        *self.cut.get_or_init(|| Cutting::Split) == Cutting::Split
    }

    /// Returns whether its free memory serves other pools when memory is short: of the default pool, pools made for
    /// that, and pools without a use.
    pub(in crate::memory) fn helps_others(&self) -> bool {
        self.is_default() || self.use_on_oom() || self.is_closed()
    }

    /// Returns whether its segments never move, so that they can be registered with a network card or a library.
    pub(in crate::memory) fn has_fixed_segments(&self) -> bool {
        self.no_split() || self.has_own_source
    }

    /// Returns whether its segments may be registered, and so stay its own until its trim or its end.
    pub(in crate::memory) fn keeps_segments(&self) -> bool {
        self.has_fixed_segments() && !self.is_closed()
    }

    /// Returns whether its free memory goes back to the driver for another pool's request.
    pub(in crate::memory) fn gives_way(&self) -> bool {
        self.helps_others() && !self.keeps_segments()
    }

    pub(in crate::memory) fn use_count(&self) -> u32 {
        self.life.uses()
    }

    /// Returns whether it serves no more requests: it was closed, or has no use any more.
    pub(in crate::memory) fn is_closed(&self) -> bool {
        self.life.stage() != Stage::InUse
    }

    /// Returns whether it serves requests: it is neither closed nor asleep.
    pub(in crate::memory) fn is_in_service(&self) -> bool {
        !self.is_closed() && !self.sleep.is_asleep()
    }

    /// Marks the work on foreign streams from now on; false if it was marked already.
    pub(in crate::memory) fn begin_marking_work(&self) -> bool {
        !self.marks_work.swap(true, Ordering::AcqRel)
    }

    /// Returns whether the work on foreign streams is marked when memory is freed there.
    pub(in crate::memory) fn marks_work(&self) -> bool {
        self.marks_work.load(Ordering::Acquire)
    }
}

#[cold]
pub(in crate::memory) fn closed(pool: &Pool) -> Error {
    let (id, device) = (pool.label(), pool.memory.location);
    Error::invalid_value(match pool.life.stage() {
        Stage::InUse | Stage::Closed => {
            format!(
                "pool {id} on {device} is closed and serves no more requests; leave its scopes, or make another pool"
            )
        }
        Stage::Ended => format!(
            "pool {id} on {device} was released, and this thread still allocates to it; end that first, by \
             end_allocate_to_pool"
        ),
    })
}
