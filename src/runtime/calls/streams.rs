//! Streams and events, and waiting: for one of them, or for all work of a device's context. Calls on captures are in
//! [`CaptureCalls`](crate::runtime::CaptureCalls), events of other processes in
//! [`SharingCalls`](crate::runtime::SharingCalls).

use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::runtime::RawEvent;

/// A platform's calls on streams and events. The rules of [`Runtime`](crate::runtime::Runtime) apply.
pub trait StreamCalls {
    /// Creates a stream on the current device that does not wait for the legacy default stream.
    fn stream_create(&self) -> Result<RawStream>;
    /// Destroys a stream; its work still completes.
    ///
    /// # Safety
    /// The stream is alive, is of this runtime and is not used again.
    unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()>;
    /// Returns the device that the stream belongs to; the current one for default streams.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_device(&self, stream: RawStream) -> Result<Device>;
    /// Returns a number that no other stream of this process has or will have, though a new one may get the address of
    /// one that was destroyed, whose work goes on (`cuStreamGetId`); 0 where the driver has none. The query invalidates the
    /// stream's capture.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_id(&self, stream: RawStream) -> Result<u64>;
    /// Returns whether all work on the stream is done.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_query(&self, stream: RawStream) -> Result<bool>;
    /// Waits for all work on the stream.
    ///
    /// # Safety
    /// The stream is alive and of this runtime.
    unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()>;
    /// Makes later work on the stream wait for the event.
    ///
    /// # Safety
    /// Both are alive and of this runtime.
    unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()>;

    /// Returns whether the stream was destroyed with its context, as far as the driver reports that. The query invalidates no
    /// capture.
    ///
    /// # Safety
    /// The stream was of this runtime, and its owner has not destroyed it.
    unsafe fn stream_is_gone(&self, _stream: RawStream) -> bool {
        false
    }

    /// Creates an event on the current device, without timing.
    fn event_create(&self) -> Result<RawEvent>;
    /// Destroys an event.
    ///
    /// # Safety
    /// The event is alive, is of this runtime and is not used again.
    unsafe fn event_destroy(&self, event: RawEvent) -> Result<()>;
    /// Records the stream's work so far.
    ///
    /// # Safety
    /// Both are alive, of this runtime and of one device.
    unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()>;
    /// Records all work of the current device's context so far (`cuCtxRecordEvent`), also of its green contexts. It
    /// invalidates every capture of the context, in any mode. Drivers older than CUDA 12.5, and HIP, have no such event and
    /// refuse it.
    ///
    /// # Safety
    /// The event is alive, of this runtime and of the current device.
    unsafe fn event_record_context(&self, event: RawEvent) -> Result<()>;
    /// Makes all later work of the current device's context, on any stream, wait for the event (`cuCtxWaitEvent`). It
    /// invalidates captures and is refused as [`StreamCalls::event_record_context`].
    ///
    /// # Safety
    /// The event is alive, of this runtime and of the current device.
    unsafe fn context_wait_event(&self, event: RawEvent) -> Result<()>;
    /// Returns whether the recorded work is done; true if nothing was recorded.
    ///
    /// # Safety
    /// The event is alive and of this runtime.
    unsafe fn event_query(&self, event: RawEvent) -> Result<bool>;
    /// Waits for the recorded work.
    ///
    /// # Safety
    /// The event is alive and of this runtime.
    unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()>;

    /// Waits for all work of the current device's context, on all streams (`cuCtxSynchronize`, `hipDeviceSynchronize`).
    /// It invalidates every capture of the context, in any mode.
    fn context_synchronize(&self) -> Result<()>;
}
