//! Events: what they record, streams that wait for them, and events of other processes.

use super::Timeline;
use super::stream::{AwaitedWork, SimulatedStream, StreamKey, Wait};
use crate::error::{Result, StatusKind};
use crate::ids::Device;
use crate::runtime::RawEvent;
use crate::runtime::host::capture;
use crate::runtime::host::memory::system_error;
use crate::runtime::host::refusal::{INVALID_HANDLE, refused};
use crate::runtime::host::words::Word;

/// Work that an event for other processes has recorded, and that is not done.
#[derive(Debug)]
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

impl Timeline {
    fn event(&mut self, event: RawEvent) -> Result<&mut Option<Recorded>> {
        let events = self.events.get_or_insert_default();
        events.get_mut(&event).ok_or_else(|| refused("the event's look-up", INVALID_HANDLE, StatusKind::Other))
    }

    pub(super) fn are_done(&mut self, work: &[(AwaitedWork, u64)]) -> bool {
        work.iter().all(|&(source, until)| self.completed(source) >= until)
    }

    /// Publishes completed work to other processes that wait for it.
    pub(super) fn publish(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            if self.are_done(&pending.work) {
                pending.word.finish(pending.number);
            } else {
                self.pending.push(pending);
            }
        }
    }

    pub(in super::super) fn wait_event(&mut self, key: StreamKey, event: RawEvent) -> Result<()> {
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
            Some(Recorded::Imported(word)) => {
                if let Some(capture) = &mut stream.capture {
                    capture.is_valid = false;
                    return Err(refused("stream_wait_event", capture::ISOLATED, StatusKind::Other));
                }
                stream.waits.push(Wait { after, other: AwaitedWork::Elsewhere(word), until: word.recorded() });
            }
            // A captured event is an edge of the graph.
            Some(Recorded::Captured(..)) | None => {}
        }
        Ok(())
    }

    /// Makes all present streams of the device wait, which spoils every capture on it.
    pub(in super::super) fn device_wait_event(&mut self, device: Device, event: RawEvent) -> Result<()> {
        self.spoil_captures_on(device);
        self.streams_of(Some(device)).into_iter().try_for_each(|key| self.wait_for(key, event))
    }

    pub(in super::super) fn create_event(&mut self) -> RawEvent {
        let event = RawEvent(self.address());
        self.events.get_or_insert_default().insert(event, None);
        event
    }

    /// Makes an event that can be exported to other processes.
    pub(in super::super) fn create_interprocess_event(&mut self) -> Result<RawEvent> {
        let word = Word::new().map_err(|error| system_error("event_create", &error))?;
        let event = self.create_event();
        self.words.get_or_insert_default().insert(event, word);
        Ok(event)
    }

    /// Returns the word of an event that was made for other processes.
    pub(in super::super) fn word(&mut self, event: RawEvent) -> Result<Word> {
        let words = self.words.get_or_insert_default();
        words.get(&event).copied().ok_or_else(|| refused("event_export", INVALID_HANDLE, StatusKind::Other))
    }

    /// Makes an event for another process's.
    pub(in super::super) fn import_event(&mut self, word: Word) -> RawEvent {
        let event = self.create_event();
        self.events.get_or_insert_default().insert(event, Some(Recorded::Imported(word)));
        self.has_imported = true;
        event
    }

    pub(in super::super) fn destroy_event(&mut self, event: RawEvent) -> Result<()> {
        self.event(event)?;
        self.events.get_or_insert_default().remove(&event);
        if let Some(word) = self.words.get_or_insert_default().remove(&event) {
            self.pending.retain(|pending| pending.word != word);
            word.give_up();
        }
        Ok(())
    }

    pub(in super::super) fn record_event(&mut self, event: RawEvent, key: StreamKey) -> Result<()> {
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
    pub(in super::super) fn record_device(&mut self, event: RawEvent, device: Device) -> Result<()> {
        self.spoil_captures_on(device);
        let mut work = Vec::new();
        for key in self.streams_of(Some(device)) {
            work.extend(self.work_so_far(key)?);
        }
        *self.event(event)? = Some(Recorded::Work(work));
        Ok(())
    }

    /// Returns the work submitted to a stream, and other streams' that it waits for, with work after it or none.
    pub(super) fn work_so_far(&mut self, key: StreamKey) -> Result<Vec<(AwaitedWork, u64)>> {
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

    pub(in super::super) fn is_event_done(&mut self, event: RawEvent) -> Result<bool> {
        self.advance();
        let recorded = self.recorded_work(event)?;
        Ok(self.are_done(&recorded))
    }

    pub(in super::super) fn complete_event(&mut self, event: RawEvent) -> Result<()> {
        for (source, position) in self.recorded_work(event)? {
            if self.completed(source) < position {
                self.complete_source(source, position)?;
            }
        }
        Ok(())
    }
}
