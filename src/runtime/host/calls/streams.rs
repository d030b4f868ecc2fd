//! Simulated streams and events, whose work completes when a test completes it, or a call waits for it.

use std::thread;
use std::time::Duration;

use crate::error::{Result, StatusKind};
use crate::ids::{Device, RawStream};
use crate::runtime::host::refusal::refused;
use crate::runtime::host::{Call, Host, capture, check, timeline};
use crate::runtime::{RawEvent, Runtime, StreamCalls};

/// Completes work until it is done: another process may delay it, and is queried each millisecond.
fn wait_for_others(mut complete: impl FnMut() -> Result<bool>) -> Result<()> {
    while !complete()? {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl StreamCalls for Host {
    fn stream_create(&self) -> Result<RawStream> {
        check(Call::StreamCreate)?;
        Ok(timeline().create_stream(Self::bound(), false))
    }

    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
        check(Call::StreamDestroy)?;
        timeline().destroy_stream(Self::key(stream))
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        if stream.is_default() {
            return self.current_device();
        }
        check(Call::StreamDevice)?;
        timeline().device(Self::key(stream))
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        check(Call::StreamId)?;
        let (key, mut timeline) = (Self::key(stream), timeline());
        timeline.check_not_captured(key)?;
        timeline.id(key)
    }

    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
        capture::check_unsafe_call()?;
        check(Call::StreamQuery)?;
        let (key, mut timeline) = (Self::key(stream), timeline());
        timeline.check_not_captured(key)?;
        timeline.is_idle(key)
    }

    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
        capture::check_unsafe_call()?;
        check(Call::StreamSynchronize)?;
        let key = Self::key(stream);
        timeline().check_not_captured(key)?;
        wait_for_others(|| timeline().complete_stream(key))
    }

    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
        check(Call::StreamWaitEvent)?;
        timeline().wait_event(Self::key(stream), event)
    }

    fn event_create(&self) -> Result<RawEvent> {
        check(Call::EventCreate)?;
        Ok(timeline().create_event())
    }

    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()> {
        check(Call::EventDestroy)?;
        timeline().destroy_event(event)
    }

    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
        check(Call::EventRecord)?;
        timeline().record_event(event, Self::key(stream))
    }

    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        check(Call::EventRecordContext)?;
        timeline().record_device(event, Self::bound())
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        check(Call::ContextWaitEvent)?;
        timeline().device_wait_event(Self::bound(), event)
    }

    unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
        capture::check_unsafe_call()?;
        check(Call::EventQuery)?;
        timeline().is_event_done(event)
    }

    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
        capture::check_unsafe_call()?;
        check(Call::EventSynchronize)?;
        wait_for_others(|| {
            let mut timeline = timeline();
            timeline.complete_event(event)?;
            timeline.is_event_done(event)
        })
    }

    fn context_synchronize(&self) -> Result<()> {
        check(Call::ContextSynchronize)?;
        let mut timeline = timeline();
        if timeline.spoil_captures_on(Self::bound()) {
            return Err(refused("context_synchronize", capture::UNSUPPORTED, StatusKind::Other));
        }
        timeline.complete_all(Some(Self::bound()))
    }
}
