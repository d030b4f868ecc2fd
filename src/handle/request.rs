//! A request that the thread's own handles do not serve: it takes an idle handle and makes it ready, creates one, or
//! waits for one.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{info, warn};

use super::device_pool::DevicePool;
use super::events::HandleAction;
use super::handle_queue::{HoldKind, Turn};
use super::pooled_handle::PooledHandle;
use super::window;
use crate::error::{Error, ErrorKind, PoolExhausted, Result};
use crate::ids::CaptureStatus;
use crate::observe::{Activity, target::HANDLE};
use crate::runtime::{BoundDevice, Event, RelaxedCapture, Runtime, Stream};
use crate::sync::{FOREVER, Interrupted, Interruption, MayWait};

/// How long a request waits for a handle of a pool with a limit, unless it gives a time. Not for ever: the holders of
/// handles may be waiting for the thread that requests one. The length is a choice, and rests on no measurement.
const WAIT: Duration = Duration::from_secs(30);

/// How many idle handles with foreign last streams there must be before one is made to wait for the whole
/// device. A choice: no library so far keeps scratch memory, so there is nothing to measure it with.
const IDLE_ENOUGH: usize = 4;

/// A handle that is being made ready. If a library refuses that or panics, the handle goes back, unless it is held
/// still, and the request has failed.
struct Unready<'a>(&'a Arc<PooledHandle>);

impl Drop for Unready<'_> {
    fn drop(&mut self) {
        self.0.home.count_failure();
        self.0.home.put_back(self.0);
    }
}

/// Resets what the former owner of a handle may have changed, and sets its memory and stream. Returns none if it has no
/// use for the request, since something of its former owner's is in use: then there is room for another, which the
/// caller uses or leaves.
///
/// # Errors
/// The library's. The handle is where it was then: idle, or held.
#[inline(always)]
pub(super) fn make_ready(pooled: Arc<PooledHandle>, stream: &Stream) -> Result<Option<Arc<PooledHandle>>> {
    let (on, unready) = (pooled.home, Unready(&pooled));
    if let Err(error) = on.library.reset(&pooled.handle).and_then(|()| on.give_memory(&pooled.handle)) {
        return give_up(unready, error).map(|()| None);
    }
    on.library.set_stream(&pooled.handle, stream)?;
    mem::forget(unready);
    Ok(Some(pooled))
}

/// Ends a refused hand-over: no request gets the handle again if the reason is what its former owner has in use, who
/// may hold it still and goes on with it.
#[cold]
fn give_up(unready: Unready<'_>, error: Error) -> Result<()> {
    let (pooled, on) = (unready.0, unready.0.home);
    let is_held = pooled.state.holder().is_some();
    if !on.library.cannot_be_reset(&pooled.handle) || (is_held && !on.queue.make_room()) {
        return Err(error);
    }
    mem::forget(unready);
    if !is_held {
        let (name, error) = (on.name(), error.on(on.device));
        warn!(target: HANDLE, "{name}: a handle is given up, as something of its former owner's is in use: {error}");
        on.discard(Arc::clone(pooled));
    }
    Ok(())
}

impl DevicePool {
    /// Takes a handle back that its request does not use, unless it has a holder still.
    fn put_back(&self, pooled: &PooledHandle) {
        if pooled.state.holder().is_none() {
            self.put_idle(pooled);
        }
    }

    /// Serves a request for which a handle lies idle, preferably one that last ran on the stream, if that takes no
    /// longer than a hit. None if it does: to wait, to create, or to make a stream wait for another.
    pub(super) fn serve_at_once(&self, stream: &Stream, hold: HoldKind) -> Option<Result<Arc<PooledHandle>>> {
        if self.has_handle_for_each_stream {
            return None;
        }
        let pooled = self.queue.take(|pooled| pooled.last_ran_on(stream.raw()))?;
        let ready = make_ready(pooled, stream).transpose().or_else(|| {
            self.queue.leave_room();
            None
        })?;
        self.count(|counts| counts.misses += 1);
        Some(ready.and_then(|pooled| self.handed_over(pooled, stream, hold)))
    }

    /// Serves a request, for a caller that may wait.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the wait was interrupted; `ErrorKind::InvalidValue` for one without an end in a
    /// callback; `ErrorKind::PoolExhausted` after the timeout; what the library or the driver refused.
    pub(super) fn serve(
        &'static self,
        runtime: &'static dyn Runtime,
        stream: &Stream,
        hold: HoldKind,
        timeout: Option<Duration>,
        interruption: Interruption<'_>,
    ) -> Result<Arc<PooledHandle>> {
        if let Some(served) = self.serve_at_once(stream, hold) {
            return served;
        }
        self.count(|counts| counts.misses += 1);
        let oldest = if hold == HoldKind::Window { window::to_reuse(self) } else { None };
        let idle = oldest.or_else(|| self.queue.take(|pooled| pooled.last_ran_on(stream.raw())));
        let turn = match idle {
            Some(pooled) => Turn::Handle(pooled),
            None if self.queue.make_room() => Turn::Room,
            None => self.wait(timeout.unwrap_or(WAIT), interruption)?,
        };
        let pooled = match turn {
            Turn::Room => None,
            Turn::Handle(pooled) => {
                let unready = Unready(&pooled);
                let is_in_order = self.order(runtime, &pooled, stream)?;
                mem::forget(unready);
                if is_in_order {
                    make_ready(pooled, stream)?
                } else {
                    // Another one, which need not wait.
                    self.put_back(&pooled);
                    if !self.queue.make_room() {
                        return Err(self.exhausted(Duration::ZERO));
                    }
                    None
                }
            }
        };
        match pooled {
            Some(pooled) => self.handed_over(pooled, stream, hold),
            None => self.begin(self.create_for(runtime, stream)?, stream, hold),
        }
    }

    fn handed_over(&self, pooled: Arc<PooledHandle>, stream: &Stream, hold: HoldKind) -> Result<Arc<PooledHandle>> {
        self.count(|counts| counts.hand_overs += 1);
        self.begin(pooled, stream, hold)
    }

    /// Begins the hold of a handle that is ready.
    fn begin(&self, pooled: Arc<PooledHandle>, stream: &Stream, hold: HoldKind) -> Result<Arc<PooledHandle>> {
        pooled.note_stream(stream.raw());
        if self.has_handle_for_each_stream {
            pooled.note_ready_for(stream);
        }
        self.begin_use(&pooled);
        self.note(HandleAction::Take, &pooled.handle);
        match hold {
            HoldKind::Window => window::hold(&pooled)?,
            HoldKind::Lease => pooled.state.hold(hold),
        }
        Ok(pooled)
    }

    /// Waits for the request's turn.
    fn wait(&self, timeout: Duration, interruption: Interruption<'_>) -> Result<Turn<PooledHandle>> {
        let may_wait = MayWait::until_callbacks_end("a handle is free, without a timeout");
        may_wait.check_for(timeout).inspect_err(|_| self.count_failure())?;
        self.count(|counts| counts.waits += 1);
        let name = self.name();
        let waiting = Activity::begin(format_args!("wait for {name} handle"));
        let now = Instant::now();
        let deadline = now.checked_add(timeout).unwrap_or_else(|| now + FOREVER);
        let turn = self.queue.wait(deadline, interruption);
        let in_vain = if matches!(turn, Ok(Some(_))) { "" } else { " in vain" };
        let (took, device) = (waiting.took(), self.device);
        info!(target: HANDLE, "{name}: waited {took}{in_vain} for a handle on {device}, all of its limit in use");
        match turn {
            Ok(turn) => turn.ok_or_else(|| self.exhausted(timeout)),
            Err(Interrupted) => Err(Error::unavailable(format!("the wait for a {name} handle was interrupted"))),
        }
    }

    /// Creates a handle, and sets its memory and stream.
    fn create_for(&'static self, runtime: &'static dyn Runtime, stream: &Stream) -> Result<Arc<PooledHandle>> {
        let pooled = self.create(runtime)?;
        let unready = Unready(&pooled);
        self.give_memory(&pooled.handle)?;
        self.library.set_stream(&pooled.handle, stream)?;
        mem::forget(unready);
        Ok(pooled)
    }

    /// Makes the stream wait for the work of the handle's former stream, where that may use its scratch memory. False
    /// if it cannot now, or if few handles are idle and it would be by way of the whole device, for a foreign stream
    /// that may be gone: that spoils captures unknown to gpupool. Then another handle is to be used.
    fn order(&self, runtime: &'static dyn Runtime, pooled: &PooledHandle, stream: &Stream) -> Result<bool> {
        let former = pooled.ready_for().filter(|_| self.has_handle_for_each_stream && !pooled.is_ready_for(stream));
        let Some(former) = former else { return Ok(true) };
        let _activity = Activity::begin(format_args!("hand over {} handle", self.name()));
        let _bound = BoundDevice::of(runtime, self.device)?;
        let _relaxed = RelaxedCapture::new(runtime)?;
        // A captured stream cannot wait for work outside of its graph, nor the legacy default one beside a capture.
        if stream.capture_status()? != CaptureStatus::None {
            return Ok(false);
        }
        let event = Event::of(self.device)?;
        let must = || self.queue.idle_count() >= IDLE_ENOUGH || self.queue.is_full();
        // Another stream may have its address by now, also one of gpupool's.
        match former.lasting().filter(|alive| former.is_named_by(alive)) {
            Some(former) if former.capture_status()? != CaptureStatus::None => return Ok(false),
            Some(former) => event.record(&former)?,
            // It may be destroyed by now, so this waits for all work on the device.
            None if must() && event.record_or_await_context()? => {}
            None => return Ok(false),
        }
        stream.wait(&event).map(|()| true)
    }

    fn exhausted(&self, waited: Duration) -> Error {
        self.count_failure();
        ErrorKind::PoolExhausted(PoolExhausted {
            library: self.library.name().to_owned(),
            device: self.device,
            limit: self.queue.limit(),
            waited,
            holders: self.holders().iter().map(ToString::to_string).collect(),
        })
        .into()
    }
}
