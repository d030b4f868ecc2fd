//! The replay of a recorded log.

use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::python::values::value_class;
use crate::replay::{ReplayAllocator, ReplayEvent, ReplayResult, ReplaySettings};

/// In a slot's number: the event frees it.
const FREE: u32 = 1 << 31;

value_class! {
    PyReplayResult = "ReplayResult" in "gpupool._native" {
        from result: ReplayResult;
        peak_reserved: u64 = result.peak_reserved,
        driver_calls: u64 = result.driver_calls,
        moved_pages: u64 = result.moved_pages,
        cold_ns: f64 = result.cold_ns,
        warm_ns: f64 = result.warm_ns,
        reserved: Vec<(usize, u64)> = result.reserved,
    }
}

/// Unpacks little-endian numbers.
fn numbers<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> impl ExactSizeIterator<Item = T> {
    bytes.as_chunks().0.iter().map(move |&chunk| from(chunk))
}

fn events(slots: &[u8], sizes: &[u8], streams: &[u8], slot_count: usize) -> Result<Vec<ReplayEvent>> {
    let slots = numbers(slots, u32::from_le_bytes);
    let sizes = numbers(sizes, u64::from_le_bytes);
    let streams = numbers(streams, u32::from_le_bytes);
    let wrong = || Error::invalid_value("the packed events do not belong together");
    if slots.len() != sizes.len() || slots.len() != streams.len() {
        return Err(wrong());
    }
    let mut events = Vec::new();
    events
        .try_reserve_exact(slots.len())
        .map_err(|_| Error::unavailable(format!("this process has no memory to replay {} events", slots.len())))?;
    for ((slot, size), stream) in slots.zip(sizes).zip(streams) {
        let allocate = (slot & FREE == 0).then_some(size);
        let slot = slot & !FREE;
        if slot as usize >= slot_count {
            return Err(wrong());
        }
        events.push(ReplayEvent { slot, allocate, stream });
    }
    Ok(events)
}

fn allocator(name: &str) -> Result<ReplayAllocator> {
    match name {
        "gpupool" => Ok(ReplayAllocator::Gpupool),
        "driver" => Ok(ReplayAllocator::Driver),
        "async" => Ok(ReplayAllocator::Async),
        other => Err(Error::invalid_value(format!("{other} is not an allocator: gpupool, driver or async"))),
    }
}

/// Runs a replay that calls `watch` as it goes. What that raises, or Ctrl-C, ends the replay and is raised.
fn watched<T: Send>(
    py: Python<'_>,
    watch: Option<&Bound<'_, PyAny>>,
    run: impl FnOnce(&mut dyn FnMut(f64) -> bool) -> Result<Option<T>> + Send,
) -> PyResult<T> {
    let watch = watch.map(|watch| watch.clone().unbind());
    let mut raised = None;
    let outcome = py.detach(|| {
        run(&mut |part| {
            let asked = Python::try_attach(|py| {
                py.check_signals()?;
                watch.as_ref().map_or(Ok(()), |watch| watch.call1(py, (part,)).map(drop))
            });
            // None once there is no interpreter any more.
            asked.is_some_and(|asked| asked.map_err(|error| raised = Some(error)).is_ok())
        })
    });
    if let Some(raised) = raised {
        return Err(raised);
    }
    let ended = || Error::internal("a replay ended early, though no callback asked for that");
    Ok(outcome?.ok_or_else(ended)?)
}

#[doc = docstring!("replay")]
#[pyfunction(signature = (slots, sizes, streams, slot_count, threads, allocator, watch = None, changes = 0, lag = 0))]
#[expect(clippy::too_many_arguments, reason = "a trace is three arrays and a count")]
pub(crate) fn replay(
    py: Python<'_>,
    slots: &[u8],
    sizes: &[u8],
    streams: &[u8],
    slot_count: usize,
    threads: usize,
    allocator: &str,
    watch: Option<&Bound<'_, PyAny>>,
    changes: usize,
    lag: usize,
) -> PyResult<PyReplayResult> {
    let settings = ReplaySettings { allocator: self::allocator(allocator)?, lag };
    let events = events(slots, sizes, streams, slot_count)?;
    watched(py, watch, |watch| crate::replay::replay(&events, threads, settings, changes, watch)).map(Into::into)
}

#[doc = docstring!("replay_reserved")]
#[pyfunction(signature = (slots, sizes, streams, slot_count, most, allocator, watch = None))]
#[expect(clippy::too_many_arguments, reason = "a trace is three arrays and a count")]
pub(crate) fn replay_reserved(
    py: Python<'_>,
    slots: &[u8],
    sizes: &[u8],
    streams: &[u8],
    slot_count: usize,
    most: usize,
    allocator: &str,
    watch: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<(usize, u64)>> {
    let settings = ReplaySettings { allocator: self::allocator(allocator)?, lag: 0 };
    let events = events(slots, sizes, streams, slot_count)?;
    watched(py, watch, |watch| crate::replay::replay_reserved(&events, settings, most, watch))
}
