//! Lending: pages of a stream that may be gone by now, for other streams.
//!
//! A stream that gpupool did not make can be touched only in a call that names it. So calls that free on such a stream
//! record an event there, and what is free then can serve other streams once the event is done, though nobody may ask the
//! stream any more: for as long as the cache's free pages stay as they were. Nothing is recorded before a request has
//! passed over such pages, so that a program with one stream pays nothing.

use std::sync::{Mutex, MutexGuard};

use crate::error::Result;
use crate::ids::CaptureStatus;
use crate::memory::cache::thread_cache::{Service, ThreadCache};
use crate::runtime::{self, Event, RelaxedCapture, Stream};
use crate::sync::lock;

/// The stream's work at a time when the cache's heap was as it was.
#[derive(Debug)]
struct Record {
    event: Event,
    is_done: bool,
    /// The heap's then.
    turnover: u64,
}

/// The last record of one cache. Taken out by whoever works with it, so that no driver call is made under the lock.
#[derive(Debug, Default)]
pub(in crate::memory) struct LastWork(Mutex<Option<Record>>);

impl LastWork {
    fn lock(&self) -> MutexGuard<'_, Option<Record>> {
        lock(&self.0)
    }

    fn turnover(&self) -> Option<u64> {
        self.lock().as_ref().map(|record| record.turnover)
    }

    fn take(&self) -> Option<Record> {
        self.lock().take()
    }

    /// Answers the record that is not needed: of two the older.
    fn put(&self, record: Record) -> Option<Record> {
        let mut last = self.lock();
        match &*last {
            Some(newer) if newer.turnover >= record.turnover => Some(record),
            _ => last.replace(record),
        }
    }
}

impl ThreadCache {
    /// Records the work so far on the cache's stream, which the caller names and so keeps alive, if its free pages have
    /// changed since the last time. A refusal leaves the last record, which counts for nothing then.
    pub(in crate::memory) fn note_work(&self, stream: &Stream, thread: u64) -> Result<()> {
        // Read first: what is freed after this is not in the record.
        let turnover = {
            let mut heap = self.lock(thread);
            if heap.counts().live == 0 {
                // The stream may be at its end, and nothing of it is to stay behind.
                heap.drop_empty_slabs(&self.device.pages);
            }
            heap.turnover()
        };
        if self.last_work.turnover() == Some(turnover) || stream.capture_status()? != CaptureStatus::None {
            return Ok(());
        }
        let event = match self.last_work.take() {
            Some(last) => {
                last.event.record(stream)?;
                last.event
            }
            None => self.device.events.record(stream)?,
        };
        self.put_record(Record { event, is_done: false, turnover });
        Ok(())
    }

    fn put_record(&self, record: Record) {
        let spare = self.last_work.put(record);
        self.device.events.put_back(spare.map(|record| record.event));
    }

    /// The heap's turnover at the last record, if the stream's work until then is done.
    ///
    /// # Errors
    /// `ErrorKind::Library`, also for an error of the recorded work.
    pub(in crate::memory) fn finished_turnover(&self) -> Result<Option<u64>> {
        let Some(mut record) = self.last_work.take() else { return Ok(None) };
        if !record.is_done {
            // The question spoils captures as an allocation does.
            let _relaxed = RelaxedCapture::new(runtime::get()?)?;
            record.is_done = record.event.query()?;
        }
        let turnover = record.is_done.then_some(record.turnover);
        self.put_record(record);
        Ok(turnover)
    }
}

/// From now on the work on the pool's foreign streams is noted when memory is freed there.
pub(in crate::memory) fn begin(service: &Service) {
    if service.pool.begin_lending() {
        service.pool.caches().into_iter().for_each(ThreadCache::lend_if_foreign);
    }
}
