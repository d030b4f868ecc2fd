//! Simulated streams and their work, which is numbered, and done on demand. Copies and fills, which change real bytes, are
//! done as soon as the work before them is.

use std::collections::VecDeque;
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::captures::SimulatedCapture;
use super::devices::space;
use super::events::{Pending, Recorded, Word};
use super::fault::{CAPTURE_INVALIDATED, ILLEGAL_ADDRESS, INVALID_HANDLE, refused};
use super::uses::{self, UsedBlock, User};
use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::runtime::RawEvent;
use crate::sync::{ThisThread, ThreadNumber, lock};

static TIMELINE: Mutex<Timeline> = Mutex::new(Timeline {
    streams: FxHashMap::with_hasher(FxBuildHasher),
    events: FxHashMap::with_hasher(FxBuildHasher),
    words: FxHashMap::with_hasher(FxBuildHasher),
    pending: Vec::new(),
    has_imported: false,
    next: 0x1000,
});

pub(super) fn timeline() -> MutexGuard<'static, Timeline> {
    lock(&TIMELINE)
}

pub(super) struct Timeline {
    pub(super) streams: FxHashMap<StreamKey, SimulatedStream>,
    pub(super) events: FxHashMap<RawEvent, Option<Recorded>>,
    /// The words of the events that were made for other processes.
    pub(super) words: FxHashMap<RawEvent, Word>,
    pub(super) pending: Vec<Pending>,
    pub(super) has_imported: bool,
    next: usize,
}

impl Timeline {
    /// Returns an address, or another number, that was never used, so that a stream used after its end is always recognised.
    pub(super) fn unused(&mut self) -> usize {
        self.next += 0x100;
        self.next
    }

    pub(super) fn streams_of(&mut self, device: Option<Device>) -> Vec<StreamKey> {
        let is_wanted = |stream: &SimulatedStream| device.is_none_or(|device| stream.device == device);
        self.streams.iter().filter(|(_, stream)| is_wanted(stream)).map(|(&key, _)| key).collect()
    }

    pub(super) fn stream(&mut self, key: StreamKey) -> Result<&mut SimulatedStream> {
        if let Some(device) = key.default_of {
            return Ok(self.streams.entry(key).or_insert_with(|| SimulatedStream::new(device, 0, true)));
        }
        self.streams.get_mut(&key).ok_or_else(|| refused("the stream's look-up", INVALID_HANDLE))
    }

    pub(super) fn create_stream(&mut self, device: Device, is_blocking: bool) -> RawStream {
        let raw = RawStream::from_address(self.unused());
        let id = raw.address() as u64;
        self.streams.insert(StreamKey::new(raw, device), SimulatedStream::new(device, id, is_blocking));
        raw
    }

    /// Destroys a stream whose work goes on, and creates another at its address. The former is found only with all of
    /// its device.
    #[cfg(feature = "fault-injection")]
    pub(super) fn replace_stream(&mut self, key: StreamKey) -> Result<()> {
        let SimulatedStream { device, is_blocking, .. } = *self.stream(key)?;
        let former = StreamKey { raw: RawStream::from_address(self.unused()), ..key };
        let id = self.unused() as u64;
        if let Some(replaced) = self.streams.insert(key, SimulatedStream::new(device, id, is_blocking)) {
            self.streams.insert(former, replaced);
        }
        uses::rename(key, former);
        let rename = |source: &mut AwaitedWork| {
            if *source == AwaitedWork::Stream(key) {
                *source = AwaitedWork::Stream(former);
            }
        };
        self.streams.values_mut().flat_map(|stream| &mut stream.waits).for_each(|wait| rename(&mut wait.other));
        self.pending.iter_mut().flat_map(|pending| &mut pending.work).for_each(|(source, _)| rename(source));
        for recorded in self.events.values_mut().flatten() {
            if let Recorded::Work(work) = recorded {
                work.iter_mut().for_each(|(source, _)| rename(source));
            }
        }
        Ok(())
    }

    pub(super) fn destroy_stream(&mut self, key: StreamKey) -> Result<()> {
        // Its work still completes; its errors are reported to no one.
        let _ = self.stream(key)?.complete(u64::MAX);
        uses::end(|user| matches!(user, User::Work(of, _) if of == key));
        self.streams.remove(&key);
        self.publish();
        Ok(())
    }

    pub(super) fn device(&mut self, key: StreamKey) -> Result<Device> {
        self.stream(key).map(|stream| stream.device)
    }

    pub(super) fn submit(&mut self, key: StreamKey) -> Result<u64> {
        self.check_not_beside_capture("submit", key)?;
        let stream = self.stream(key)?;
        stream.submitted += 1;
        Ok(stream.submitted)
    }

    pub(super) fn submit_using(&mut self, key: StreamKey, blocks: &[UsedBlock]) -> Result<u64> {
        let user = match &self.stream(key)?.capture {
            Some(capture) => User::Graph(capture.graph.id),
            None => User::Work(key, self.submit(key)?),
        };
        blocks.iter().try_for_each(|&block| self.begin_use(user, key, block))?;
        Ok(if let User::Work(_, number) = user { number } else { 0 })
    }

    fn begin_use(&mut self, user: User, key: StreamKey, block: UsedBlock) -> Result<()> {
        let SimulatedStream { device, waits, .. } = self.stream(key)?;
        let is_behind = |other: StreamKey, number: u64| {
            let waits_for = |wait: &Wait| wait.other == AwaitedWork::Stream(other) && wait.until >= number;
            other == key || waits.iter().any(waits_for)
        };
        uses::begin(user, *device, block, is_behind);
        Ok(())
    }

    /// Submits a copy or a fill to the stream. A captured one is the graph's, and not done now.
    pub(super) fn submit_work(&mut self, key: StreamKey, work: Work) -> Result<()> {
        if let Some(capture) = &self.stream(key)?.capture {
            return if capture.is_valid { Ok(()) } else { Err(refused("work", CAPTURE_INVALIDATED)) };
        }
        let number = self.submit(key)?;
        let block = UsedBlock { number: 0, address: work.mapped, bytes: work.bytes };
        self.begin_use(User::Work(key, number), key, block)?;
        let stream = self.stream(key)?;
        stream.work.push_back((number, work));
        let done = stream.completed;
        self.complete_allowed(key, done)
    }

    /// Returns whether the stream has nothing left to do; to wait is something.
    pub(super) fn is_idle(&mut self, key: StreamKey) -> Result<bool> {
        self.advance();
        let work = self.work_so_far(key)?;
        Ok(self.are_done(&work))
    }

    pub(super) fn completed(&mut self, source: AwaitedWork) -> u64 {
        match source {
            // A destroyed stream's work counts as done: no call can complete it any more.
            AwaitedWork::Stream(key) => self.stream(key).map_or(u64::MAX, |stream| stream.completed),
            AwaitedWork::Elsewhere(word) => word.done(),
        }
    }

    /// Does what follows work of other processes that they have completed meanwhile.
    pub(super) fn advance(&mut self) {
        if !self.has_imported {
            return;
        }
        for key in self.streams_of(None) {
            let done = self.completed(AwaitedWork::Stream(key));
            // The work's errors are returned where the stream is waited for.
            let _ = self.complete_allowed(key, done);
        }
    }

    /// Completes work as far as the events that it waits for allow.
    pub(super) fn complete_allowed(&mut self, key: StreamKey, number: u64) -> Result<()> {
        let stream = self.stream(key)?;
        let mut allowed = stream.submitted;
        for wait in stream.waits.clone() {
            if self.completed(wait.other) < wait.until {
                allowed = allowed.min(wait.after);
            }
        }
        let stream = self.stream(key)?;
        let mut done = stream.completed.max(number.min(allowed));
        // Copies and fills complete by themselves.
        while done < allowed && stream.work.iter().any(|(at, _)| *at == done + 1) {
            done += 1;
        }
        let outcome = stream.complete(done);
        uses::end(|user| matches!(user, User::Work(of, number) if of == key && number <= done));
        stream.waits.retain(|wait| wait.after >= done);
        if !self.pending.is_empty() {
            self.publish();
        }
        outcome
    }

    /// Completes work, first what it waits for, as far as other processes have done their part. This terminates, since
    /// an event is recorded before anything waits for it.
    pub(super) fn complete(&mut self, source: AwaitedWork, number: u64) -> Result<()> {
        let AwaitedWork::Stream(key) = source else { return Ok(()) };
        for wait in self.stream(key)?.waits.clone() {
            if wait.after < number && self.completed(wait.other) < wait.until {
                self.complete(wait.other, wait.until)?;
            }
        }
        self.complete_allowed(key, number)
    }

    /// Completes all work of a stream, and returns whether all is done, as other processes may delay some.
    pub(super) fn complete_stream(&mut self, key: StreamKey) -> Result<bool> {
        self.complete(AwaitedWork::Stream(key), u64::MAX)?;
        self.is_idle(key)
    }

    pub(super) fn complete_all(&mut self, device: Option<Device>) -> Result<()> {
        let mut sources = self.streams_of(device).into_iter().map(AwaitedWork::Stream);
        sources.try_for_each(|source| self.complete(source, u64::MAX))
    }
}

/// A stream, which also distinguishes the default streams of devices and threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StreamKey {
    pub(super) raw: RawStream,
    /// The device of a default stream; any other stream knows its own.
    pub(super) default_of: Option<Device>,
    /// The thread of a per-thread default stream.
    pub(super) thread: Option<ThreadNumber>,
}

impl StreamKey {
    pub(super) fn new(raw: RawStream, device: Device) -> Self {
        // The legacy default stream has two names.
        let raw = if raw.is_legacy() { RawStream::LEGACY } else { raw };
        let thread = (raw == RawStream::PER_THREAD).then(|| ThisThread::get().number());
        Self { raw, default_of: raw.is_default().then_some(device), thread }
    }
}

pub(super) struct SimulatedStream {
    pub(super) device: Device,
    /// Unique; 0 of a default one.
    pub(super) id: u64,
    /// Whether the legacy default stream must not be used while this one is captured. Their work is in no order.
    pub(super) is_blocking: bool,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    pub(super) waits: Vec<Wait>,
    /// Copies and fills that are not done, by their numbers.
    pub(super) work: VecDeque<(u64, Work)>,
    pub(super) capture: Option<SimulatedCapture>,
}

/// The source of work that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AwaitedWork {
    Stream(StreamKey),
    /// Another process's, which alone completes it.
    Elsewhere(Word),
}

/// Work after `after` waits until `other` has completed `until`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) after: u64,
    pub(super) other: AwaitedWork,
    pub(super) until: u64,
}

impl SimulatedStream {
    pub(super) fn new(device: Device, id: u64, is_blocking: bool) -> Self {
        Self {
            device,
            id,
            is_blocking,
            submitted: 0,
            completed: 0,
            waits: Vec::new(),
            work: VecDeque::new(),
            capture: None,
        }
    }

    /// Does the copies and fills up to this number, which nothing blocks, and marks it as completed. Returns the first
    /// error, after running all of the work.
    pub(super) fn complete(&mut self, number: u64) -> Result<()> {
        self.completed = self.completed.max(number);
        let mut outcome = Ok(());
        while self.work.front().is_some_and(|(at, _)| *at <= number) {
            if let Some((_, work)) = self.work.pop_front() {
                outcome = outcome.and(work.run(self.device));
            }
        }
        outcome
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Where its device memory begins.
    pub(super) mapped: u64,
    pub(super) bytes: u64,
    pub(super) effect: Effect,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// Copies from one address to another, of which one is the device's.
    Copy { to: u64, from: u64 },
    /// Sets each byte.
    Fill(u8),
}

impl Work {
    /// Runs it, unless the device has no memory there: a GPU reports that as an error of the work. Under Miri there are
    /// no bytes to change.
    pub(super) fn run(self, device: Device) -> Result<()> {
        let Self { mapped, bytes, effect } = self;
        // Under the lock, so that nothing is unmapped meanwhile.
        let space = space();
        if !space.is_accessible(mapped, bytes, device) {
            return Err(refused("a copy or a fill", ILLEGAL_ADDRESS).on(device));
        }
        if cfg!(miri) {
            return Ok(());
        }
        let pointer = |address: u64| ptr::with_exposed_provenance_mut::<u8>(address as usize);
        match effect {
            // SAFETY: the device's range is mapped, as was just seen, and the caller that submitted the copy promises that the
            // host's is there until it is done; `copy` allows them to overlap.
            Effect::Copy { to, from } => unsafe { ptr::copy(pointer(from), pointer(to), bytes as usize) },
            // SAFETY: the range is mapped, as was just seen.
            Effect::Fill(byte) => unsafe { pointer(mapped).write_bytes(byte, bytes as usize) },
        }
        Ok(())
    }
}
