//! Events: points in a stream's work that can be queried or waited for.

use super::known_captures::{Point, WholeDevice, wait_for_work_before};
use super::{BoundDevice, ExportedEvent, RawEvent, Runtime, Stream, existing, get};
use crate::error::{Error, Result, StatusKind};
use crate::ids::Device;

/// The result of recording all work on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ContextRecord {
    Recorded,
    /// Not done: it would spoil a known capture.
    Captured,
    /// Not done: the driver, before CUDA 12.5 or HIP's, cannot. The device can be waited for.
    Unsupported,
}

/// An event without timing, destroyed when dropped.
#[derive(Debug)]
pub struct Event {
    raw: RawEvent,
    device: Device,
}

impl Event {
    /// Creates an event on the device.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Library` if the driver refuses.
    pub fn new(device: Device) -> Result<Self> {
        existing(device).and_then(Self::of)
    }

    /// Makes an event by a call that the device is bound for.
    fn by(device: Device, create: impl FnOnce(&dyn Runtime) -> Result<RawEvent>) -> Result<Self> {
        let bound = BoundDevice::on(device)?;
        let raw = create(bound.runtime).map_err(|e| e.on(device))?;
        Ok(Self { raw, device })
    }

    /// As [`Event::new`], for a caller that knows the device.
    pub(crate) fn of(device: Device) -> Result<Self> {
        Self::by(device, |runtime| runtime.event_create())
    }

    /// Makes an event on the device that can be exported to other processes.
    pub(crate) fn interprocess(device: Device) -> Result<Self> {
        Self::by(device, |runtime| runtime.event_create_interprocess())
    }

    /// Returns what another process needs to wait for an event of [`Event::interprocess`].
    pub(crate) fn export(&self) -> Result<ExportedEvent> {
        let bound = BoundDevice::on(self.device)?;
        // SAFETY: this event is ours.
        unsafe { bound.runtime.event_export(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Makes an event for another process's, which must live as long, to be waited for on a stream of this device.
    pub(crate) fn import(device: Device, exported: ExportedEvent) -> Result<Self> {
        Self::by(device, |runtime| runtime.event_import(exported))
    }

    pub(crate) const fn device(&self) -> Device {
        self.device
    }

    pub(super) fn raw(&self) -> RawEvent {
        self.raw
    }

    /// Records the stream's work so far.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if the stream is on another device, and as for [`Stream::query`]; `ErrorKind::Library` if
    /// the driver refuses.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        if stream.device() != self.device {
            return Err(Error::invalid_value(format!(
                "an event of {} cannot record a stream of {}",
                self.device,
                stream.device()
            )));
        }
        let _stream_bound = stream.begin_use()?;
        let bound = BoundDevice::on(self.device)?;
        // SAFETY: this event is ours, and a `Stream` is alive.
        unsafe { bound.runtime.event_record(self.raw, stream.raw()) }.map_err(|e| e.on(self.device))
    }

    /// Records all work on the device so far, on any stream, destroyed ones too, if that is possible now.
    pub(crate) fn record_context(&self) -> Result<ContextRecord> {
        let runtime = get()?;
        let Some(_whole) = WholeDevice::begin(runtime, self.device)? else { return Ok(ContextRecord::Captured) };
        let _bound = BoundDevice::of(runtime, self.device)?;
        // SAFETY: this event is ours and of the device just bound.
        match unsafe { runtime.event_record_context(self.raw) } {
            Ok(()) => Ok(ContextRecord::Recorded),
            Err(error) if error.is_of(StatusKind::NotSupported) => Ok(ContextRecord::Unsupported),
            Err(error) => Err(error.on(self.device)),
        }
    }

    /// As [`Event::record_context`]; if the driver has no such event, waits for that work, so that all recorded work is
    /// done. Returns false, with nothing done, if either would spoil a known capture.
    pub(crate) fn record_or_await_context(&self) -> Result<bool> {
        match self.record_context()? {
            ContextRecord::Recorded => Ok(true),
            ContextRecord::Captured => Ok(false),
            ContextRecord::Unsupported => wait_for_work_before(Point::now(), self.device),
        }
    }

    /// Makes all later work on the device, on any stream, wait for the recorded work. Returns false, with nothing done,
    /// as [`Event::record_or_await_context`].
    #[cfg(feature = "python")]
    pub(crate) fn delay_context(&self) -> Result<bool> {
        let runtime = get()?;
        let Some(_whole) = WholeDevice::begin(runtime, self.device)? else { return Ok(false) };
        let _bound = BoundDevice::of(runtime, self.device)?;
        // SAFETY: this event is ours and of the device just bound.
        unsafe { runtime.context_wait_event(self.raw) }.map_err(|e| e.on(self.device)).map(|()| true)
    }

    /// Returns whether the recorded work is done; true if nothing was recorded.
    ///
    /// # Errors
    /// `ErrorKind::Library`, also for an error of the recorded work.
    pub fn query(&self) -> Result<bool> {
        // SAFETY: this event is ours.
        unsafe { get()?.event_query(self.raw) }.map_err(|e| e.on(self.device))
    }

    /// Waits for the recorded work.
    ///
    /// # Errors
    /// `ErrorKind::Library`, also for an error of the recorded work.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: this event is ours.
        unsafe { get()?.event_synchronize(self.raw) }.map_err(|e| e.on(self.device))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // A forked child gets no runtime here, and leaves the parent's event alone.
        if let Ok(runtime) = get() {
            // SAFETY: `raw` came from `event_create` and this is its only owner.
            let _ = unsafe { runtime.event_destroy(self.raw) };
        }
    }
}
