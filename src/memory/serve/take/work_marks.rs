//! Marks of work: how free pages of a stream that may be gone serve other streams. A stream that gpupool did not make
//! can be touched only in a call that names it. So calls that free on such a stream mark its work by an event. What is
//! free then can serve other streams once the event is done, while the cache's free pages stay as they were. Nothing is
//! marked before a request has passed over such pages, so that a program with one stream pays nothing. Memory of a
//! graph that was reset is marked by the request that looks at it.

use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::cache::{DeviceCaches, Service, StreamCache, WorkMark};
use crate::memory::pool::Pool;
use crate::runtime::{self, RelaxedCapture, Stream};
use crate::sync::ThisThread;

/// Marks the work so far on a service's stream, which the caller names and so keeps alive, if its cache's free pages
/// have changed since the last mark; nothing if that service has ended. A refusal leaves the old, outdated mark.
pub(in crate::memory::serve) fn mark_work(
    cache: &StreamCache,
    service: &Service,
    stream: &Stream,
    thread: ThisThread,
) -> Result<()> {
    // Read first: what is freed after this is not in the mark.
    let turnover = {
        let mut heap = cache.lock(thread);
        if !heap.is_in(service.number) {
            return Ok(());
        }
        if heap.live() == 0 {
            // The stream may be at its end, and nothing of it is to stay behind.
            heap.drop_empty_slabs(&cache.memory.pages);
        }
        heap.turnover()
    };
    if cache.last_work.turnover() == Some(turnover) || stream.capture_status()? != CaptureStatus::None {
        return Ok(());
    }
    let event = match cache.last_work.take() {
        Some(last) => {
            last.event.record(stream)?;
            last.event
        }
        None => cache.memory.events.record(stream)?,
    };
    put_mark(cache, WorkMark { event, is_done: false, turnover });
    Ok(())
}

/// Marks all work so far on the device, if the cache's free pages have changed since the last mark, unless that would
/// spoil a known capture.
pub(super) fn mark_all_work(cache: &StreamCache, thread: ThisThread) -> Result<()> {
    let memory = cache.memory;
    let turnover = cache.lock(thread).turnover();
    if cache.last_work.turnover() == Some(turnover) {
        return Ok(());
    }
    let event = memory.events.take(memory.device()?)?;
    if event.record_or_await_context()? {
        put_mark(cache, WorkMark { event, is_done: false, turnover });
    } else {
        memory.events.put_back([event]);
    }
    Ok(())
}

fn put_mark(cache: &StreamCache, mark: WorkMark) {
    cache.memory.events.put_back(cache.last_work.put(mark));
}

/// Returns the heap's turnover at the last mark, if the marked work is done.
///
/// # Errors
/// `ErrorKind::Library`, also for an error of the marked work.
pub(super) fn finished_turnover(cache: &StreamCache) -> Result<Option<u64>> {
    let Some(mut mark) = cache.last_work.take() else { return Ok(None) };
    if !mark.is_done {
        // The query spoils captures as an allocation does.
        let _relaxed = RelaxedCapture::new(runtime::get()?)?;
        mark.is_done = mark.event.query()?;
    }
    let turnover = mark.is_done.then_some(mark.turnover);
    put_mark(cache, mark);
    Ok(turnover)
}

/// Marks the work on the pool's foreign streams from now on, when memory is freed there.
pub(super) fn begin(pool: &Pool) {
    if pool.begin_marking_work() {
        DeviceCaches::caches_of(pool).into_iter().for_each(StreamCache::mark_work_if_foreign);
    }
}
