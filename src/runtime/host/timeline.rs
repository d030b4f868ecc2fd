//! Simulated streams and events: work is numbered, and done on demand. Copies and fills are done as soon as the work
//! before them is.

use std::collections::{HashMap, VecDeque};

use super::capture::{self, SimulatedCapture};
use super::memory::system_error;
use super::refusal::{INVALID_HANDLE, refused};
use super::uses::{self, UsedBlock, User};
use super::words::Word;
use super::work::Work;
use crate::error::{Result, StatusKind};
use crate::ids::{CaptureMode, CaptureStatus, Device, RawStream};
use crate::runtime::RawEvent;
use crate::sync::{ThisThread, ThreadNumber};

/// A stream, which also distinguishes the default streams of devices and threads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct StreamKey {
    raw: RawStream,
    /// The device of a default stream; any other stream knows its own.
    default_of: Option<Device>,
    /// The thread of a per-thread default stream.
    thread: Option<ThreadNumber>,
}

impl StreamKey {
    pub(super) fn new(raw: RawStream, device: Device) -> Self {
        // The legacy default stream has two names.
        let raw = if raw.is_legacy() { RawStream::LEGACY } else { raw };
        let thread = (raw == RawStream::PER_THREAD).then(|| ThisThread::get().number());
        Self { raw, default_of: raw.is_default().then_some(device), thread }
    }
}

#[derive(Debug)]
struct SimulatedStream {
    device: Device,
    /// Unique; 0 of a default one.
    id: u64,
    /// Whether the legacy default stream must not be used while this one is captured. Their work is in no order.
    is_blocking: bool,
    /// Whether it is destroyed, and another one has its address.
    is_replaced: bool,
    submitted: u64,
    completed: u64,
    waits: Vec<Wait>,
    /// Copies and fills that are not done, by their numbers.
    work: VecDeque<(u64, Work)>,
    capture: Option<SimulatedCapture>,
}

/// Whose work is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AwaitedWork {
    Stream(StreamKey),
    /// Another process's, which alone completes it.
    Elsewhere(Word),
}

/// Work after `after` waits until `other` has completed `until`.
#[derive(Clone, Copy, Debug)]
struct Wait {
    after: u64,
    other: AwaitedWork,
    until: u64,
}

/// Work that an event for other processes has recorded, and that is not done.
#[derive(Debug)]
struct Pending {
    work: Vec<(AwaitedWork, u64)>,
    word: Word,
    number: u64,
}

impl SimulatedStream {
    fn new(device: Device, id: u64, is_blocking: bool) -> Self {
        Self {
            device,
            id,
            is_blocking,
            is_replaced: false,
            submitted: 0,
            completed: 0,
            waits: Vec::new(),
            work: VecDeque::new(),
            capture: None,
        }
    }

    /// Does the copies and fills up to this number, which nothing blocks, and marks it as completed. Returns the first
    /// error, after running all of the work.
    fn complete(&mut self, number: u64) -> Result<()> {
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

#[derive(Clone, Debug)]
enum Recorded {
    /// The work of streams, each up to a number.
    Work(Vec<(AwaitedWork, u64)>),
    /// What another process records.
    Imported(Word),
    /// A point of the capture with this id: part of a graph, and never done.
    Captured(StreamKey, u64),
}

#[derive(Debug)]
pub(super) struct Timeline {
    streams: Option<HashMap<StreamKey, SimulatedStream>>,
    events: Option<HashMap<RawEvent, Option<Recorded>>>,
    /// The words of the events that were made for other processes.
    words: Option<HashMap<RawEvent, Word>>,
    pending: Vec<Pending>,
    has_imported: bool,
    next_address: usize,
    next_capture: u64,
}

impl Timeline {
    pub(super) const fn new() -> Self {
        // Addresses are never used twice, so that a stream used after its end is always recognised.
        Self {
            streams: None,
            events: None,
            words: None,
            pending: Vec::new(),
            has_imported: false,
            next_address: 0x1000,
            next_capture: 0,
        }
    }

    fn address(&mut self) -> usize {
        self.next_address += 0x100;
        self.next_address
    }

    fn streams(&mut self) -> &mut HashMap<StreamKey, SimulatedStream> {
        self.streams.get_or_insert_default()
    }

    fn stream(&mut self, key: StreamKey) -> Result<&mut SimulatedStream> {
        let streams = self.streams();
        if let Some(device) = key.default_of {
            return Ok(streams.entry(key).or_insert_with(|| SimulatedStream::new(device, 0, true)));
        }
        streams.get_mut(&key).ok_or_else(|| refused("the stream's look-up", INVALID_HANDLE, StatusKind::Other))
    }

    fn event(&mut self, event: RawEvent) -> Result<&mut Option<Recorded>> {
        let events = self.events.get_or_insert_default();
        events.get_mut(&event).ok_or_else(|| refused("the event's look-up", INVALID_HANDLE, StatusKind::Other))
    }

    pub(super) fn create_stream(&mut self, device: Device, is_blocking: bool) -> RawStream {
        let raw = RawStream::from_address(self.address());
        let id = raw.address() as u64;
        self.streams().insert(StreamKey::new(raw, device), SimulatedStream::new(device, id, is_blocking));
        raw
    }

    /// Destroys a stream whose work goes on, and creates another at its address. The former is found only with all of
    /// its device.
    #[cfg(feature = "fault-injection")]
    pub(super) fn replace_stream(&mut self, key: StreamKey) -> Result<()> {
        let SimulatedStream { device, is_blocking, .. } = *self.stream(key)?;
        let former = StreamKey { raw: RawStream::from_address(self.address()), ..key };
        let id = self.address() as u64;
        if let Some(replaced) = self.streams().insert(key, SimulatedStream::new(device, id, is_blocking)) {
            self.streams().insert(former, SimulatedStream { is_replaced: true, ..replaced });
        }
        uses::rename(key, former);
        let rename = |source: &mut AwaitedWork| {
            if *source == AwaitedWork::Stream(key) {
                *source = AwaitedWork::Stream(former);
            }
        };
        self.streams().values_mut().flat_map(|stream| &mut stream.waits).for_each(|wait| rename(&mut wait.other));
        self.pending.iter_mut().flat_map(|pending| &mut pending.work).for_each(|(source, _)| rename(source));
        for recorded in self.events.get_or_insert_default().values_mut().flatten() {
            if let Recorded::Work(work) = recorded {
                work.iter_mut().for_each(|(source, _)| rename(source));
            }
        }
        Ok(())
    }

    pub(super) fn id(&mut self, key: StreamKey) -> Result<u64> {
        self.stream(key).map(|stream| stream.id)
    }

    /// Returns the captures beside which a stream must not be used: if it is the legacy default one, those of blocking
    /// streams of its device.
    fn captures_beside(&mut self, key: StreamKey) -> impl Iterator<Item = &mut SimulatedCapture> {
        let device = key.default_of.filter(|_| key.raw == RawStream::LEGACY);
        let blocking =
            self.streams().values_mut().filter(move |stream| stream.is_blocking && Some(stream.device) == device);
        blocking.filter_map(|stream| stream.capture.as_mut())
    }

    /// Returns whether the stream must not be used, beside a capture. The query spoils nothing.
    fn is_beside_capture(&mut self, key: StreamKey) -> bool {
        self.captures_beside(key).next().is_some()
    }

    /// Refuses to use a stream beside a capture, which that spoils, in any mode.
    pub(super) fn check_not_beside_capture(&mut self, function: &str, key: StreamKey) -> Result<()> {
        match self.captures_beside(key).map(|capture| capture.is_valid = false).count() {
            0 => Ok(()),
            _ => Err(refused(function, capture::IMPLICIT, StatusKind::Other)),
        }
    }

    pub(super) fn destroy_stream(&mut self, key: StreamKey) -> Result<()> {
        // Its work still completes; its errors are reported to no one.
        let _ = self.stream(key)?.complete(u64::MAX);
        uses::end(|user| matches!(user, User::Work(of, _) if of == key));
        self.streams().remove(&key);
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
            Some(capture) => User::Graph(capture.id),
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
            return if capture.is_valid {
                Ok(())
            } else {
                Err(refused("work", capture::INVALIDATED, StatusKind::Other))
            };
        }
        let number = self.submit(key)?;
        let block = UsedBlock { number: 0, address: work.mapped(), bytes: work.bytes() };
        self.begin_use(User::Work(key, number), key, block)?;
        let stream = self.stream(key)?;
        stream.work.push_back((number, work));
        let done = stream.completed;
        self.complete_allowed(key, done)
    }

    pub(super) fn is_idle(&mut self, key: StreamKey) -> Result<bool> {
        self.advance();
        self.stream(key).map(|stream| stream.completed == stream.submitted)
    }

    fn completed(&mut self, source: AwaitedWork) -> u64 {
        match source {
            // A destroyed stream's work counts as done: no call can complete it any more.
            AwaitedWork::Stream(key) => self.stream(key).map_or(u64::MAX, |stream| stream.completed),
            AwaitedWork::Elsewhere(word) => word.done(),
        }
    }

    fn are_done(&mut self, work: &[(AwaitedWork, u64)]) -> bool {
        work.iter().all(|&(source, until)| self.completed(source) >= until)
    }

    /// Does what follows work of other processes that they have completed meanwhile.
    fn advance(&mut self) {
        if !self.has_imported {
            return;
        }
        let keys: Vec<_> = self.streams().keys().copied().collect();
        for key in keys {
            let done = self.completed(AwaitedWork::Stream(key));
            // The work's errors are returned where the stream is waited for.
            let _ = self.complete_allowed(key, done);
        }
    }

    /// Publishes completed work to other processes that wait for it.
    fn publish(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            if self.are_done(&pending.work) {
                pending.word.finish(pending.number);
            } else {
                self.pending.push(pending);
            }
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
    pub(super) fn complete(&mut self, key: StreamKey, number: u64) -> Result<()> {
        for wait in self.stream(key)?.waits.clone() {
            if wait.after < number && self.completed(wait.other) < wait.until {
                self.complete_source(wait.other, wait.until)?;
            }
        }
        self.complete_allowed(key, number)
    }

    fn complete_source(&mut self, source: AwaitedWork, number: u64) -> Result<()> {
        match source {
            AwaitedWork::Stream(key) => self.complete(key, number),
            AwaitedWork::Elsewhere(_) => Ok(()),
        }
    }

    /// Completes all work of a stream, and returns whether all is done, as other processes may delay some.
    pub(super) fn complete_stream(&mut self, key: StreamKey) -> Result<bool> {
        self.complete(key, u64::MAX)?;
        self.stream(key).map(|stream| stream.completed == stream.submitted)
    }

    pub(super) fn wait_event(&mut self, key: StreamKey, event: RawEvent) -> Result<()> {
        self.check_not_beside_capture("stream_wait_event", key)?;
        self.wait_for(key, event)
    }

    fn wait_for(&mut self, key: StreamKey, event: RawEvent) -> Result<()> {
        let recorded = self.event(event)?.clone();
        let stream = self.stream(key)?;
        let after = stream.submitted;
        match recorded {
            Some(Recorded::Work(work)) => {
                // A stream's own work comes in order.
                let others = work.into_iter().filter(|(other, _)| *other != AwaitedWork::Stream(key));
                stream.waits.extend(others.map(|(other, until)| Wait { after, other, until }));
            }
            Some(Recorded::Imported(word)) if stream.capture.is_some() => {
                if let Some(capture) = &mut stream.capture {
                    capture.is_valid = false;
                }
                let _ = word;
                return Err(refused("stream_wait_event", capture::ISOLATED, StatusKind::Other));
            }
            Some(Recorded::Imported(word)) => {
                stream.waits.push(Wait { after, other: AwaitedWork::Elsewhere(word), until: word.recorded() });
            }
            // A captured event is an edge of the graph.
            Some(Recorded::Captured(..)) | None => {}
        }
        Ok(())
    }

    /// Makes all present streams of the device wait, which spoils every capture on it.
    pub(super) fn device_wait_event(&mut self, device: Device, event: RawEvent) -> Result<()> {
        self.spoil_captures_on(device);
        let streams = self.streams().iter().filter(|(_, stream)| stream.device == device);
        let keys: Vec<_> = streams.map(|(&key, _)| key).collect();
        keys.into_iter().try_for_each(|key| self.wait_for(key, event))
    }

    pub(super) fn create_event(&mut self) -> RawEvent {
        let event = RawEvent(self.address());
        self.events.get_or_insert_default().insert(event, None);
        event
    }

    /// Makes an event that can be exported to other processes.
    pub(super) fn create_interprocess_event(&mut self) -> Result<RawEvent> {
        let word = Word::new().map_err(|error| system_error("event_create", &error))?;
        let event = self.create_event();
        self.words.get_or_insert_default().insert(event, word);
        Ok(event)
    }

    /// Returns the word of an event that was made for other processes.
    pub(super) fn word(&mut self, event: RawEvent) -> Result<Word> {
        let words = self.words.get_or_insert_default();
        words.get(&event).copied().ok_or_else(|| refused("event_export", INVALID_HANDLE, StatusKind::Other))
    }

    /// Makes an event for another process's.
    pub(super) fn import_event(&mut self, word: Word) -> RawEvent {
        let event = self.create_event();
        self.events.get_or_insert_default().insert(event, Some(Recorded::Imported(word)));
        self.has_imported = true;
        event
    }

    pub(super) fn destroy_event(&mut self, event: RawEvent) -> Result<()> {
        self.event(event)?;
        self.events.get_or_insert_default().remove(&event);
        if let Some(word) = self.words.get_or_insert_default().remove(&event) {
            self.pending.retain(|pending| pending.word != word);
            word.give_up();
        }
        Ok(())
    }

    pub(super) fn record_event(&mut self, event: RawEvent, key: StreamKey) -> Result<()> {
        self.check_not_beside_capture("event_record", key)?;
        let recorded = match &self.stream(key)?.capture {
            Some(capture) => Recorded::Captured(key, capture.id),
            None => Recorded::Work(self.work_so_far(key)?),
        };
        let place = self.event(event)?;
        if let Some(Recorded::Imported(_)) = place {
            return Err(refused("event_record", INVALID_HANDLE, StatusKind::Other));
        }
        *place = Some(recorded.clone());
        if let (Some(&word), Recorded::Work(work)) = (self.words.get_or_insert_default().get(&event), recorded) {
            self.pending.push(Pending { work, word, number: word.record() });
            self.publish();
        }
        Ok(())
    }

    /// Records the work of all streams of the device, which spoils every capture on it.
    pub(super) fn record_device(&mut self, event: RawEvent, device: Device) -> Result<()> {
        self.spoil_captures_on(device);
        let streams = self.streams().iter().filter(|(_, stream)| stream.device == device);
        let keys: Vec<_> = streams.map(|(&key, _)| key).collect();
        let mut work = Vec::new();
        for key in keys {
            work.extend(self.work_so_far(key)?);
        }
        *self.event(event)? = Some(Recorded::Work(work));
        Ok(())
    }

    /// Returns the work submitted to a stream, and other streams' that it waits for, with work after it or none.
    fn work_so_far(&mut self, key: StreamKey) -> Result<Vec<(AwaitedWork, u64)>> {
        let mut waits = std::mem::take(&mut self.stream(key)?.waits);
        waits.retain(|wait| self.completed(wait.other) < wait.until);
        let mut work: Vec<_> = waits.iter().map(|wait| (wait.other, wait.until)).collect();
        let stream = self.stream(key)?;
        stream.waits = waits;
        work.push((AwaitedWork::Stream(key), stream.submitted));
        Ok(work)
    }

    /// Returns the work that the event recorded. Querying a captured event, in any mode, spoils the capture.
    fn recorded_work(&mut self, event: RawEvent) -> Result<Vec<(AwaitedWork, u64)>> {
        match self.event(event)?.clone() {
            None => Ok(Vec::new()),
            Some(Recorded::Imported(word)) => Ok(vec![(AwaitedWork::Elsewhere(word), word.recorded())]),
            Some(Recorded::Work(work)) => Ok(work),
            Some(Recorded::Captured(key, id)) => {
                if let Ok(SimulatedStream { capture: Some(capture), .. }) = self.stream(key)
                    && capture.id == id
                {
                    capture.is_valid = false;
                }
                let status = ("HOST_ERROR_CAPTURED_EVENT", 907);
                Err(refused("a question about a captured event", status, StatusKind::Other))
            }
        }
    }

    pub(super) fn is_event_done(&mut self, event: RawEvent) -> Result<bool> {
        self.advance();
        let recorded = self.recorded_work(event)?;
        Ok(self.are_done(&recorded))
    }

    pub(super) fn complete_event(&mut self, event: RawEvent) -> Result<()> {
        for (source, position) in self.recorded_work(event)? {
            if self.completed(source) < position {
                self.complete_source(source, position)?;
            }
        }
        Ok(())
    }

    pub(super) fn complete_all(&mut self, device: Option<Device>) -> Result<()> {
        let wanted = |stream: &SimulatedStream| device.is_none_or(|device| stream.device == device);
        let keys: Vec<_> = self.streams().iter().filter(|(_, stream)| wanted(stream)).map(|(&key, _)| key).collect();
        let outcome = keys.into_iter().try_for_each(|key| self.complete(key, u64::MAX));
        // Nothing names these any more.
        self.streams().retain(|_, stream| !stream.is_replaced || stream.completed < stream.submitted);
        outcome
    }

    pub(super) fn captures(&mut self) -> impl Iterator<Item = &mut SimulatedCapture> {
        self.streams().values_mut().filter_map(|stream| stream.capture.as_mut())
    }

    pub(super) fn spoil_captures_on(&mut self, device: Device) -> bool {
        let on_device = self.streams().values_mut().filter(|stream| stream.device == device);
        let captures = on_device.filter_map(|stream| stream.capture.as_mut());
        captures.map(|capture| capture.is_valid = false).count() > 0
    }

    /// Refuses to query or wait for a stream that is captured, or beside a capture, in any mode, and spoils the
    /// capture.
    pub(super) fn check_not_captured(&mut self, key: StreamKey) -> Result<()> {
        self.check_not_beside_capture("a question about the legacy default stream", key)?;
        let Some(capture) = &mut self.stream(key)?.capture else { return Ok(()) };
        capture.is_valid = false;
        Err(refused("a question about a captured stream", capture::UNSUPPORTED, StatusKind::Other))
    }

    pub(super) fn begin_capture(&mut self, key: StreamKey, mode: CaptureMode) -> Result<()> {
        if key.raw == RawStream::LEGACY {
            return Err(refused("begin_capture", capture::UNSUPPORTED, StatusKind::Other));
        }
        self.next_capture += 1;
        let id = self.next_capture;
        let stream = self.stream(key)?;
        if stream.capture.is_some() {
            let status = ("HOST_ERROR_ILLEGAL_STATE", 401);
            return Err(refused("begin_capture", status, StatusKind::Other));
        }
        stream.capture = Some(SimulatedCapture::new(id, mode));
        Ok(())
    }

    pub(super) fn end_capture(&mut self, key: StreamKey) -> Result<SimulatedCapture> {
        let capture = self.stream(key)?.capture.take();
        capture.ok_or_else(|| refused("end_capture", ("HOST_ERROR_ILLEGAL_STATE", 401), StatusKind::Other))
    }

    /// Returns the capture that the stream's work goes to, if it was not spoilt.
    pub(super) fn capture(&mut self, key: StreamKey) -> Result<Option<&mut SimulatedCapture>> {
        if self.is_beside_capture(key) {
            return Err(refused("stream_capture", capture::IMPLICIT, StatusKind::Other));
        }
        Ok(self.stream(key)?.capture.as_mut().filter(|capture| capture.is_valid))
    }

    pub(super) fn capture_status(&mut self, key: StreamKey) -> Result<CaptureStatus> {
        if self.is_beside_capture(key) {
            return Ok(CaptureStatus::Implicit);
        }
        Ok(match &self.stream(key)?.capture {
            None => CaptureStatus::None,
            Some(capture) if capture.is_valid => CaptureStatus::Active,
            Some(_) => CaptureStatus::Invalidated,
        })
    }
}
