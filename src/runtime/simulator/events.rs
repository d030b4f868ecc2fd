//! The calls on simulated streams and events: what events record, streams that wait for them, and events of other processes.
//! Each call first applies the rules on captures and injected faults.
//!
//! Events of other processes are words in memory that both processes have mapped. Each process keeps its words in one memfd, so that a thousand
//! events take one descriptor. A word counts how often its event was recorded, and how many of these are done. When a
//! process ends, all its words count as done, as a GPU ends the work with the process.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use std::{io, mem, process, ptr, thread};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Pid, test_kill_process};

use super::captures::{MODE, check_unsafe_call};
use super::devices::Simulator;
use super::fault::{
    CAPTURE_ISOLATION, CAPTURE_UNSUPPORTED, CAPTURED_EVENT, Call, INVALID_HANDLE, check, refused, system_error,
};
use super::timeline::{AwaitedWork, SimulatedStream, StreamKey, Timeline, Wait, timeline};
use crate::error::Result;
use crate::ids::{CaptureMode, CaptureStatus, RawStream};
use crate::runtime::{ExportedEvent, RawEvent, StreamCalls};
use crate::sync::lock;

/// Work that an event for other processes has recorded, and that is not done.
pub(super) struct Pending {
    pub(super) work: Vec<(AwaitedWork, u64)>,
    pub(super) word: Word,
    pub(super) number: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Recorded {
    /// The work of streams, each up to a number.
    Work(Vec<(AwaitedWork, u64)>),
    /// What another process records.
    Imported(Word),
    /// A point of the capture with this id: part of a graph, and never done.
    Captured(StreamKey, u64),
}

impl Recorded {
    /// Returns the work that is waited for with the event.
    fn work(self) -> Vec<(AwaitedWork, u64)> {
        match self {
            Self::Work(work) => work,
            Self::Imported(word) => vec![(AwaitedWork::Elsewhere(word), word.recorded())],
            Self::Captured(..) => Vec::new(),
        }
    }
}

impl Timeline {
    pub(super) fn event(&mut self, event: RawEvent) -> Result<&mut Option<Recorded>> {
        self.events.get_mut(&event).ok_or_else(|| refused("the event's look-up", INVALID_HANDLE))
    }

    pub(super) fn are_done(&mut self, work: &[(AwaitedWork, u64)]) -> bool {
        work.iter().all(|&(source, until)| self.completed(source) >= until)
    }

    /// Publishes completed work to other processes that wait for it.
    pub(super) fn publish(&mut self) {
        for pending in mem::take(&mut self.pending) {
            if self.are_done(&pending.work) {
                pending.word.finish(pending.number);
            } else {
                self.pending.push(pending);
            }
        }
    }

    /// A wait for all work of a device is one of each of its streams that are there.
    pub(super) fn wait_for(&mut self, key: StreamKey, event: RawEvent) -> Result<()> {
        let recorded = self.event(event)?.clone();
        let stream = self.stream(key)?;
        if let (Some(Recorded::Imported(_)), Some(capture)) = (&recorded, &mut stream.capture) {
            capture.is_valid = false;
            return Err(refused("stream_wait_event", CAPTURE_ISOLATION));
        }
        // A stream's own work comes in order, and a captured event is an edge of the graph.
        let others = recorded.map_or_else(Vec::new, Recorded::work).into_iter();
        let others = others.filter(|(other, _)| *other != AwaitedWork::Stream(key));
        let after = stream.submitted;
        stream.waits.extend(others.map(|(other, until)| Wait { after, other, until }));
        Ok(())
    }

    fn create_event(&mut self) -> RawEvent {
        let event = RawEvent(self.unused());
        self.events.insert(event, None);
        event
    }

    /// Returns the work submitted to a stream, and other streams' that it waits for, with work after it or none.
    pub(super) fn work_so_far(&mut self, key: StreamKey) -> Result<Vec<(AwaitedWork, u64)>> {
        let mut waits = mem::take(&mut self.stream(key)?.waits);
        waits.retain(|wait| self.completed(wait.other) < wait.until);
        let mut work: Vec<_> = waits.iter().map(|wait| (wait.other, wait.until)).collect();
        let stream = self.stream(key)?;
        stream.waits = waits;
        work.push((AwaitedWork::Stream(key), stream.submitted));
        Ok(work)
    }

    /// Returns the work that the event recorded. Querying a captured event, in any mode, spoils the capture.
    fn recorded_work(&mut self, event: RawEvent) -> Result<Vec<(AwaitedWork, u64)>> {
        let recorded = self.event(event)?.clone();
        if let Some(Recorded::Captured(key, id)) = recorded {
            if let Ok(SimulatedStream { capture: Some(capture), .. }) = self.stream(key)
                && capture.graph.id == id
            {
                capture.is_valid = false;
            }
            return Err(refused("a question about a captured event", CAPTURED_EVENT));
        }
        Ok(recorded.map_or_else(Vec::new, Recorded::work))
    }

    pub(super) fn is_event_done(&mut self, event: RawEvent) -> Result<bool> {
        self.advance();
        let recorded = self.recorded_work(event)?;
        Ok(self.are_done(&recorded))
    }
}

/// Begins a call on streams and events.
pub(super) fn on_timeline(call: Call) -> Result<MutexGuard<'static, Timeline>> {
    check(call)?;
    Ok(timeline())
}

/// Completes work until it is done: another process may delay it, and is queried each millisecond.
fn wait_for_others(mut complete: impl FnMut() -> Result<bool>) -> Result<()> {
    while !complete()? {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl StreamCalls for Simulator {
    fn stream_create(&self) -> Result<RawStream> {
        Ok(on_timeline(Call::StreamCreate)?.create_stream(Self::bound(), false))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        on_timeline(Call::StreamDestroy)?.destroy_stream(Self::key(stream))
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        check_unsafe_call()?;
        check(Call::StreamQuery)?;
        let (key, mut timeline) = (Self::key(stream), timeline());
        timeline.check_not_captured(key)?;
        timeline.is_idle(key)
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        check_unsafe_call()?;
        check(Call::StreamSynchronize)?;
        let key = Self::key(stream);
        timeline().check_not_captured(key)?;
        wait_for_others(|| timeline().complete_stream(key))
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        let (mut timeline, key) = (on_timeline(Call::StreamWaitEvent)?, Self::key(stream));
        timeline.check_not_beside_capture("stream_wait_event", key)?;
        timeline.wait_for(key, event)
    }

    fn event_create(&self) -> Result<RawEvent> {
        Ok(on_timeline(Call::EventCreate)?.create_event())
    }

    fn event_create_interprocess(&self) -> Result<RawEvent> {
        let mut timeline = on_timeline(Call::EventCreate)?;
        let word = Word::new().map_err(|error| system_error("event_create", error))?;
        let event = timeline.create_event();
        timeline.words.insert(event, word);
        Ok(event)
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()> {
        let mut timeline = on_timeline(Call::EventDestroy)?;
        timeline.event(event)?;
        timeline.events.remove(&event);
        if let Some(word) = timeline.words.remove(&event) {
            timeline.pending.retain(|pending| pending.word != word);
            word.give_up();
        }
        Ok(())
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        let (mut timeline, key) = (on_timeline(Call::EventRecord)?, Self::key(stream));
        timeline.check_not_beside_capture("event_record", key)?;
        let recorded = match &timeline.stream(key)?.capture {
            Some(capture) => Recorded::Captured(key, capture.graph.id),
            None => Recorded::Work(timeline.work_so_far(key)?),
        };
        let place = timeline.event(event)?;
        if let Some(Recorded::Imported(_)) = place {
            return Err(refused("event_record", INVALID_HANDLE));
        }
        *place = Some(recorded.clone());
        if let (Some(&word), Recorded::Work(work)) = (timeline.words.get(&event), recorded) {
            timeline.pending.push(Pending { work, word, number: word.record() });
            timeline.publish();
        }
        Ok(())
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        check_unsafe_call()?;
        on_timeline(Call::EventQuery)?.is_event_done(event)
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        check_unsafe_call()?;
        check(Call::EventSynchronize)?;
        wait_for_others(|| {
            let mut timeline = timeline();
            for (source, position) in timeline.recorded_work(event)? {
                if timeline.completed(source) < position {
                    timeline.complete(source, position)?;
                }
            }
            timeline.is_event_done(event)
        })
    }

    unsafe fn event_export(&self, event: RawEvent) -> Result<ExportedEvent> {
        let word = on_timeline(Call::EventExport)?.words.get(&event).copied();
        let word = word.ok_or_else(|| refused("event_export", INVALID_HANDLE))?;
        let (name, file) = word.export().map_err(|error| system_error("event_export", error))?;
        Ok(ExportedEvent { name, descriptor: Some(file) })
    }

    fn event_import(&self, exported: ExportedEvent) -> Result<RawEvent> {
        let mut timeline = on_timeline(Call::EventImport)?;
        let file = exported.descriptor.ok_or_else(|| refused("event_import", INVALID_HANDLE))?;
        let word = Word::import(&exported.name, file).map_err(|error| system_error("event_import", error))?;
        let event = timeline.create_event();
        timeline.events.insert(event, Some(Recorded::Imported(word)));
        timeline.has_imported = true;
        Ok(event)
    }

    fn context_synchronize(&self) -> Result<()> {
        let mut timeline = on_timeline(Call::ContextSynchronize)?;
        if timeline.spoil_captures_on(Self::bound()) {
            return Err(refused("context_synchronize", CAPTURE_UNSUPPORTED));
        }
        timeline.complete_all(Some(Self::bound()))
    }

    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        check(Call::ExchangeCaptureMode)?;
        Ok(MODE.replace(mode))
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        on_timeline(Call::StreamCaptureStatus)?.capture_status(Self::key(stream))
    }
}

const BYTES: usize = 1 << 20;
const WORD_BYTES: usize = size_of::<WordCounts>();
/// The first place has the id of the words' process.
const WORDS: u64 = (BYTES / WORD_BYTES) as u64 - 1;

#[repr(C)]
struct WordCounts {
    recorded: AtomicU64,
    done: AtomicU64,
}

/// A word of this process or of another one. Its memory stays mapped as long as the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Word {
    /// Of the words of its process.
    base: usize,
    number: u64,
}

/// This process's own words.
struct OwnWords {
    file: OwnedFd,
    base: usize,
    free: Vec<u64>,
}

static OWN: Mutex<Option<OwnWords>> = Mutex::new(None);
/// The words of other processes, by device and number of the file.
static OTHERS: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());

fn map_words(file: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: the system chooses the addresses, and nothing here relies on what others write there.
    let mapped = unsafe { mmap(ptr::null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
    Ok(mapped?.expose_provenance())
}

fn at(base: usize, number: u64) -> &'static WordCounts {
    let place: *const WordCounts = ptr::with_exposed_provenance(base + number as usize * WORD_BYTES);
    // SAFETY: the words of a process are mapped as long as this one lives, and `number` is among them.
    unsafe { &*place }
}

impl Word {
    pub(super) fn new() -> io::Result<Self> {
        let mut own = lock(&OWN);
        if own.is_none() {
            let file = memfd_create(c"gpupool-events", MemfdFlags::CLOEXEC)?;
            ftruncate(&file, BYTES as u64)?;
            let base = map_words(file.as_fd())?;
            at(base, 0).recorded.store(process::id().into(), Ordering::Release);
            *own = Some(OwnWords { file, base, free: (1..=WORDS).rev().collect() });
        }
        let too_many = || io::Error::from(io::ErrorKind::OutOfMemory);
        let own = own.as_mut().ok_or_else(too_many)?;
        let number = own.free.pop().ok_or_else(too_many)?;
        Ok(Self { base: own.base, number })
    }

    /// Releases the word for another event of this process. What was recorded is done for others.
    pub(super) fn give_up(self) {
        let counts = at(self.base, self.number);
        counts.done.fetch_max(counts.recorded.load(Ordering::Acquire), Ordering::AcqRel);
        if let Some(own) = lock(&OWN).as_mut() {
            own.free.push(self.number);
        }
    }

    /// Returns what another process needs to find it: its name, and the file.
    pub(super) fn export(self) -> io::Result<([u8; 64], OwnedFd)> {
        let own = lock(&OWN);
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let own = own.as_ref().filter(|own| own.base == self.base).ok_or_else(invalid)?;
        let mut name = [0; 64];
        name[..8].copy_from_slice(&self.number.to_le_bytes());
        let file = own.file.try_clone()?;
        Ok((name, file))
    }

    pub(super) fn import(name: &[u8; 64], file: OwnedFd) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let mut number = [0; 8];
        number.copy_from_slice(&name[..8]);
        let number = u64::from_le_bytes(number);
        let status = fstat(&file)?;
        if !(1..=WORDS).contains(&number) || status.st_size != BYTES as i64 {
            return Err(invalid());
        }
        let mut others = lock(&OTHERS);
        let key = (status.st_dev, status.st_ino);
        let base = match others.get(&key) {
            Some(&base) => base,
            None => {
                let base = map_words(File::from(file).as_fd())?;
                others.insert(key, base);
                base
            }
        };
        Ok(Self { base, number })
    }

    /// Notes that the event was recorded, and returns how often that is now.
    pub(super) fn record(self) -> u64 {
        at(self.base, self.number).recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn recorded(self) -> u64 {
        at(self.base, self.number).recorded.load(Ordering::Acquire)
    }

    pub(super) fn finish(self, until: u64) {
        at(self.base, self.number).done.fetch_max(until, Ordering::AcqRel);
    }

    /// Returns up to which record the work is done: all if its process is gone.
    pub(super) fn done(self) -> u64 {
        let owner = at(self.base, 0).recorded.load(Ordering::Acquire);
        let is_gone = i32::try_from(owner)
            .ok()
            .and_then(Pid::from_raw)
            .is_some_and(|owner| test_kill_process(owner) == Err(Errno::SRCH));
        if is_gone { u64::MAX } else { at(self.base, self.number).done.load(Ordering::Acquire) }
    }
}
