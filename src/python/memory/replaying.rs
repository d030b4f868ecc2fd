//! The replay of a recorded log.

use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::memory::{self, ReplayAllocator, ReplayEvent, ReplayResult};

/// In a slot's number: the event frees it.
const FREE: u32 = 1 << 31;

#[pyclass(name = "ReplayResult", module = "gpupool", frozen, get_all)]
#[derive(Debug)]
pub(in crate::python) struct PyReplayResult {
    peak_reserved: u64,
    driver_calls: u64,
    moved_pages: u64,
    cold_ns: f64,
    warm_ns: f64,
}

impl From<ReplayResult> for PyReplayResult {
    fn from(result: ReplayResult) -> Self {
        let ReplayResult { peak_reserved, driver_calls, moved_pages, cold_ns, warm_ns } = result;
        Self { peak_reserved, driver_calls, moved_pages, cold_ns, warm_ns }
    }
}

/// Unpacks little-endian numbers.
fn numbers<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).filter_map(|chunk| chunk.try_into().ok().map(&from)).collect()
}

fn events(slots: &[u8], sizes: &[u8], streams: &[u8], slot_count: usize) -> Result<Vec<ReplayEvent>> {
    let slots = numbers(slots, u32::from_le_bytes);
    let sizes = numbers(sizes, u64::from_le_bytes);
    let streams = numbers(streams, u32::from_le_bytes);
    let fits = slots.iter().all(|slot| ((slot & !FREE) as usize) < slot_count);
    if slots.len() != sizes.len() || slots.len() != streams.len() || !fits {
        return Err(Error::invalid_value("the packed events do not belong together"));
    }
    let pack = |((slot, size), stream): ((u32, u64), u32)| ReplayEvent {
        slot: slot & !FREE,
        allocate: (slot & FREE == 0).then_some(size),
        stream,
    };
    Ok(slots.into_iter().zip(sizes).zip(streams).map(pack).collect())
}

#[pyfunction]
pub(in crate::python) fn replay(
    py: Python<'_>,
    slots: &[u8],
    sizes: &[u8],
    streams: &[u8],
    slot_count: usize,
    threads: usize,
    allocator: &str,
) -> PyResult<PyReplayResult> {
    let allocator = match allocator {
        "gpupool" => ReplayAllocator::Gpupool,
        "driver" => ReplayAllocator::Driver,
        "async" => ReplayAllocator::Async,
        other => return Err(Error::invalid_value(format!("{other} is no allocator: gpupool, driver or async")).into()),
    };
    let events = events(slots, sizes, streams, slot_count)?;
    Ok(py.detach(|| memory::replay(&events, threads, allocator))?.into())
}
