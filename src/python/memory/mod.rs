//! Device memory for Python, one file a concept.

mod allocator;
mod buffer;
mod callbacks;
mod capture;
mod context;
mod cuda_core;
mod cupy;
mod functions;
mod mem_pool;
mod pinned;
mod range;
mod recording;
mod replaying;
mod scope;
mod snapshot;
mod stats;
mod unpickling;

pub(super) use buffer::{PyDeviceBuffer, allocate_detached, empty, fence, follow_blocking};
pub(super) use callbacks::{PyDiscardCallback, PyOomCallback, PySegmentCallback, PySegmentEvent, on_oom};
pub(super) use capture::{PyCapture, PyGraphMemory};
pub(super) use cuda_core::PyCudaCoreMemory;
pub(super) use cupy::{PyCupyAllocator, PyCupyPinnedAllocator, PyCupyPinnedMemory};
pub(super) use functions::{PyCApi, c_api};
pub(super) use mem_pool::{
    PyMemPool, begin_allocate_to_pool, end_allocate_to_pool, graph_pool_handle, pool_use_count, release_pool,
};
pub(super) use pinned::{
    empty_pinned_cache, get_pinned_limit, nearest_numa_node, number as numa_number, owns, pinned_stats, pinned_times,
    reset_peak_pinned_stats, set_pinned_limit, summarize_pinned, warm_pinned,
};
pub(super) use range::PyMemoryRange;
pub(super) use recording::{get_memory_history, record_memory_history};
pub(super) use replaying::{PyReplayResult, replay, replay_reserved};
pub(super) use scope::{PyPoolScope, PyPoolToken, token_of, use_mem_pool};
pub(super) use snapshot::memory_snapshot;
pub(super) use stats::{
    PyMemoryStats, PyPoolStats, empty_cache, enable_peer_access, get_memory_limit, get_per_process_memory_fraction,
    memory_stats, oom_callbacks, peers, request_counts, set_memory_limit, set_per_process_memory_fraction,
};
pub(super) use unpickling::unpickle;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::whole::{PoolIdPart, Whole, type_error, wrong_argument, wrong_objects};
use crate::memory::PoolId;

/// An id as Python sees it.
pub(super) type Id = (u64, u64);

pub(super) const fn pair(id: PoolId) -> Id {
    (id.0, id.1)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct IdArgument(PoolId);

impl<'py> FromPyObject<'_, 'py> for IdArgument {
    type Error = PyErr;

    fn extract(id: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // A tuple of another length is a plain ValueError.
        if id.cast::<PyTuple>().is_ok_and(|pair| pair.len() != 2) {
            return Err(wrong_objects([&id], |[id]| format!("a pool's id is a pair of numbers, not {id}")).into());
        }
        if id.cast::<PyTuple>().is_err() {
            let wrong = wrong_argument(
                "pool_id",
                &id,
                "a pool's id, a pair of numbers: that of graph_pool_handle() or of a MemPool",
            );
            return Err(type_error(wrong));
        }
        let (first, second): (Whole<PoolIdPart>, Whole<PoolIdPart>) = id.extract()?;
        Ok(Self(PoolId(first.0, second.0)))
    }
}
