//! CUDA's streams and events. A stream's device is that of its context, which may be a green one: see
//! `stream_context.rs`.

use std::ffi::c_int;
use std::ptr;

use cudarc::driver::sys;

use super::stream_context::is_gone;
use super::{CallStatus, Cuda, Status, as_event, as_stream};
use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::runtime::driver_streams::driver_stream_calls;
use crate::runtime::{RawEvent, Runtime, StreamCalls};

const NOT_READY: Status = sys::CUresult::CUDA_ERROR_NOT_READY as Status;

impl Cuda {
    /// Returns whether the queried work is done.
    #[inline]
    fn is_ready(&self, call: CallStatus) -> Result<bool> {
        if call.status == NOT_READY { Ok(false) } else { self.check(call).map(|()| true) }
    }
}

impl StreamCalls for Cuda {
    driver_stream_calls!();

    fn stream_create(&self) -> Result<RawStream> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is a valid place for a stream.
        self.check(unsafe { self.symbols.stream_create.call(&mut stream, flags) })?;
        Ok(RawStream::from_address(stream.addr()))
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        if stream.is_default() {
            return self.current_device();
        }
        if self.devices.len() == 1 {
            return Ok(Device::from_ordinal(0));
        }
        let mut context = ptr::null_mut();
        // SAFETY: the caller promises that the stream is alive.
        self.check(unsafe { self.symbols.stream_context.call(as_stream(stream), &mut context) })?;
        match self.known_device_of(context.addr()) {
            Some(device) => Ok(device),
            // SAFETY: the caller promises that the stream is alive.
            None => unsafe { self.device_of_stream(stream, context.addr()) },
        }
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let mut id = 0;
        // SAFETY: the caller promises that the stream is alive, and `id` is a valid place for a number.
        self.check(unsafe { self.symbols.stream_id.call(as_stream(stream), &mut id) })?;
        Ok(id)
    }

    unsafe fn stream_is_gone(&self, stream: RawStream) -> bool {
        let mut status: c_int = 0;
        // SAFETY: the caller promises that the stream was not destroyed, and the driver finds out whether its context was.
        is_gone(unsafe { self.symbols.stream_is_capturing.call(as_stream(stream), &mut status) }.status)
    }

    fn event_create(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `event` is a valid place for an event.
        self.check(unsafe { self.symbols.event_create.call(&mut event, flags) })?;
        Ok(RawEvent(event.addr()))
    }

    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()> {
        let record = self.optional(self.symbols.context_record_event)?;
        let context = ptr::without_provenance_mut(self.current_context()?);
        // SAFETY: the context is current, and the caller promises that the event is alive.
        self.check(unsafe { record.call(context, as_event(event)) })
    }

    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()> {
        let wait = self.optional(self.symbols.context_wait_event)?;
        let context = ptr::without_provenance_mut(self.current_context()?);
        // SAFETY: the context is current, and the caller promises that the event is alive.
        self.check(unsafe { wait.call(context, as_event(event)) })
    }

    fn context_synchronize(&self) -> Result<()> {
        // SAFETY: the function takes nothing, and refuses where no context is current.
        self.check(unsafe { self.symbols.context_synchronize.call() })
    }
}
