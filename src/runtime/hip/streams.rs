//! HIP's streams and events. HIP lacks CUDA's events of a context; waiting for a whole device replaces them.

use std::ptr;

use super::{Hip, NOT_SUPPORTED, as_event, as_stream};
use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::runtime::driver_streams::driver_stream_calls;
use crate::runtime::symbols::{CallStatus, Status};
use crate::runtime::{RawEvent, Runtime, StreamCalls};

/// `hipErrorNotReady`.
const NOT_READY: Status = 600;
/// `hipStreamNonBlocking` and `hipEventDisableTiming`.
const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

impl Hip {
    /// Returns whether the queried work is done.
    fn is_ready(&self, call: CallStatus) -> Result<bool> {
        if call.status == NOT_READY {
            self.forget_last_error();
            return Ok(false);
        }
        self.check(call).map(|()| true)
    }
}

impl StreamCalls for Hip {
    driver_stream_calls!();

    fn stream_create(&self) -> Result<RawStream> {
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is a valid place for a stream.
        self.check(unsafe { self.symbols.stream_create.call(&mut stream, NON_BLOCKING) })?;
        Ok(RawStream::from_address(stream.addr()))
    }

    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device> {
        // HIP 6.2 crashes on the address 1 here, and returns the current device for the other default streams.
        if stream.is_default() {
            return self.current_device();
        }
        if self.devices == 1 {
            return Ok(Device::from_ordinal(0));
        }
        let mut ordinal = 0;
        // SAFETY: the caller promises that the stream is alive.
        self.check(unsafe { self.symbols.stream_device.call(as_stream(stream), &mut ordinal) })?;
        Ok(Device::from_ordinal(ordinal.unsigned_abs()))
    }

    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64> {
        let Ok(stream_id) = self.symbols.stream_id else { return Ok(0) };
        let mut id = 0;
        // SAFETY: the caller promises that the stream is alive, and `id` is a valid place for a number.
        self.check(unsafe { stream_id.call(as_stream(stream), &mut id) })?;
        Ok(id)
    }

    fn event_create(&self) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is a valid place for an event.
        self.check(unsafe { self.symbols.event_create.call(&mut event, DISABLE_TIMING) })?;
        Ok(RawEvent(event.addr()))
    }

    unsafe fn event_record_context(&self, _event: RawEvent) -> Result<()> {
        Err(self.refused(CallStatus { name: c"hipCtxRecordEvent", status: NOT_SUPPORTED }))
    }

    unsafe fn context_wait_event(&self, _event: RawEvent) -> Result<()> {
        Err(self.refused(CallStatus { name: c"hipCtxWaitEvent", status: NOT_SUPPORTED }))
    }

    fn context_synchronize(&self) -> Result<()> {
        // SAFETY: the function takes nothing.
        self.check(unsafe { self.symbols.device_synchronize.call() })
    }
}
