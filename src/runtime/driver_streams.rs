//! The calls of streams and events that CUDA and HIP have alike, under different names.

/// Defines them in an `impl StreamCalls`; the type has `symbols`, `check` and `is_ready`.
macro_rules! driver_stream_calls {
    () => {
        unsafe fn stream_destroy(&self, stream: RawStream) -> Result<()> {
            // SAFETY: the caller owns the stream.
            self.check(unsafe { self.symbols.stream_destroy.call(as_stream(stream)) })
        }

        unsafe fn stream_query(&self, stream: RawStream) -> Result<bool> {
            // SAFETY: the caller promises that the stream is alive.
            self.is_ready(unsafe { self.symbols.stream_query.call(as_stream(stream)) })
        }

        unsafe fn stream_synchronize(&self, stream: RawStream) -> Result<()> {
            // SAFETY: the caller promises that the stream is alive.
            self.check(unsafe { self.symbols.stream_synchronize.call(as_stream(stream)) })
        }

        unsafe fn stream_wait_event(&self, stream: RawStream, event: RawEvent) -> Result<()> {
            // SAFETY: the caller promises that both are alive.
            self.check(unsafe { self.symbols.stream_wait_event.call(as_stream(stream), as_event(event), 0) })
        }

        unsafe fn event_destroy(&self, event: RawEvent) -> Result<()> {
            // SAFETY: the caller owns the event.
            self.check(unsafe { self.symbols.event_destroy.call(as_event(event)) })
        }

        unsafe fn event_record(&self, event: RawEvent, stream: RawStream) -> Result<()> {
            // SAFETY: the caller promises that both are alive.
            self.check(unsafe { self.symbols.event_record.call(as_event(event), as_stream(stream)) })
        }

        unsafe fn event_query(&self, event: RawEvent) -> Result<bool> {
            // SAFETY: the caller promises that the event is alive.
            self.is_ready(unsafe { self.symbols.event_query.call(as_event(event)) })
        }

        unsafe fn event_synchronize(&self, event: RawEvent) -> Result<()> {
            // SAFETY: the caller promises that the event is alive.
            self.check(unsafe { self.symbols.event_synchronize.call(as_event(event)) })
        }
    };
}

pub(in crate::runtime) use driver_stream_calls;
