//! A request that the thread's own handles do not serve: what it finds at once, and what is left to do. The idle
//! handles are searched once, under a short lock. What takes longer (to wait, to create, to make a stream wait for
//! another) is left to [`Unfinished::finish`], so that a caller may release a lock of its own before, as Python does.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::device_pool::{DevicePool, PlaceInLine, PooledHandle, Turn};
use super::hand_over;
use super::pool::LibraryPool;
use crate::error::{Error, ErrorKind, OneLine, PoolExhausted, Result};
use crate::ids::Device;
use crate::runtime::{Runtime, Stream};
use crate::sync::{Interrupted, Interruption, MayWait};

/// How long a request waits for a handle of a pool with a limit, unless it gives a time. Not for ever: the holders of
/// handles may be waiting for the thread that requests one. The length is a choice, and rests on no measurement.
const WAIT: Duration = Duration::from_secs(30);

/// How many idle handles with foreign last streams there must be before one is made to wait for the whole
/// device. A choice: no library so far keeps scratch memory, so there is nothing to measure it with.
const IDLE_ENOUGH: usize = 4;

pub(crate) trait Claim: Sized {
    /// Holds a handle that is ready.
    ///
    /// # Errors
    /// If it cannot be held; it is idle then.
    fn claim(pool: &'static LibraryPool, stream: &Stream, pooled: Arc<PooledHandle>) -> Result<Self>;

    /// Returns a handle that the caller holds for another stream, if it may hold no more. It holds it until this request has
    /// it.
    fn own(_pool: &'static LibraryPool, _device: Device) -> Option<Arc<PooledHandle>> {
        None
    }
}

/// What a request gets without waiting.
#[derive(Debug)]
pub(crate) enum HandleAttempt<'s, T> {
    Ready(T),
    Unfinished(Unfinished<'s, T>),
}

/// A request after its search. If dropped it gives back what it found.
#[must_use = "the request is given up when this is dropped"]
pub(crate) struct Unfinished<'s, T> {
    pool: &'static LibraryPool,
    on_device: &'static DevicePool,
    runtime: &'static dyn Runtime,
    stream: &'s Stream,
    /// None once it is used.
    turn: Option<Result<Turn<PooledHandle>, PlaceInLine>>,
    wanted: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Unfinished<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").field("stream", self.stream).finish_non_exhaustive()
    }
}

impl<T> Drop for Unfinished<'_, T> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.on_device.give_up(turn);
        }
    }
}

/// Begins a request: searches the idle handles, preferably for one that last ran on the stream, and makes it ready if
/// that takes no longer than a hit.
pub(super) fn begin<'s, T: Claim>(
    pool: &'static LibraryPool,
    runtime: &'static dyn Runtime,
    stream: &'s Stream,
) -> Result<HandleAttempt<'s, T>> {
    let on_device = pool.on(stream.device())?;
    let turn = match T::own(pool, stream.device()) {
        Some(own) => Ok(on_device.take_held(own)),
        None => on_device.take(stream.raw()),
    };
    let turn = match turn {
        Ok(Turn::Handle(pooled)) if !pool.library.keeps_scratch() => {
            match pool.make_ready(on_device, pooled, stream)? {
                Some(pooled) => {
                    on_device.count_hand_over();
                    return claim(pool, on_device, stream, pooled).map(HandleAttempt::Ready);
                }
                None => Ok(Turn::Room),
            }
        }
        turn => turn,
    };
    let turn = Some(turn);
    Ok(HandleAttempt::Unfinished(Unfinished { pool, on_device, runtime, stream, turn, wanted: PhantomData }))
}

fn claim<T: Claim>(
    pool: &'static LibraryPool,
    on_device: &DevicePool,
    stream: &Stream,
    pooled: Arc<PooledHandle>,
) -> Result<T> {
    pooled.note_stream(stream.raw());
    if pool.library.keeps_scratch() {
        pooled.note_ready_for(stream);
    }
    on_device.begin_use(&pooled);
    T::claim(pool, stream, pooled)
}

impl<T: Claim> Unfinished<'_, T> {
    /// Returns whether the request has to wait its turn.
    #[cfg(feature = "python")]
    pub(crate) fn must_wait(&self) -> bool {
        matches!(self.turn, Some(Err(_)))
    }

    /// Does the rest: waits for the request's turn, and makes the handle ready or creates one.
    ///
    /// # Errors
    /// `ErrorKind::Unavailable` if the wait was interrupted; `ErrorKind::InvalidValue` for one without an end in a callback;
    /// else as the request it finishes.
    #[cold]
    pub(crate) fn finish(mut self, timeout: Option<Duration>, interruption: Interruption<'_>) -> Result<T> {
        let timeout = timeout.unwrap_or(WAIT);
        let name = OneLine(self.pool.library.name());
        if matches!(self.turn, Some(Err(_))) {
            let may_wait = MayWait::until_callbacks_end("a handle is free, without a timeout");
            may_wait.check_for(timeout).map_err(|refused| self.pool.refused(self.stream.device(), refused))?;
        }
        let turn = match self.turn.take() {
            Some(Ok(turn)) => Some(turn),
            Some(Err(place)) => {
                let waited = self.on_device.wait(place, &name, self.stream, timeout, interruption);
                waited.map_err(|Interrupted| {
                    Error::unavailable(format!("the wait for a {name} handle was interrupted"))
                })?
            }
            None => None,
        };
        let pooled = match turn {
            Some(Turn::Handle(pooled)) => self.hand_over(pooled)?,
            Some(Turn::Room) => self.create()?,
            None => return Err(self.exhausted(timeout)),
        };
        claim(self.pool, self.on_device, self.stream, pooled)
    }

    /// Makes an idle handle ready for the stream. If that might harm a capture a new one is made instead, while few are
    /// idle.
    fn hand_over(&self, pooled: Arc<PooledHandle>) -> Result<Arc<PooledHandle>> {
        match self.wait_for_former(&pooled) {
            Ok(true) => match self.pool.make_ready(self.on_device, pooled, self.stream)? {
                Some(pooled) => {
                    self.on_device.count_hand_over();
                    Ok(pooled)
                }
                None => self.create(),
            },
            Ok(false) => {
                self.on_device.put_back(pooled);
                if self.on_device.make_room() { self.create() } else { Err(self.exhausted(Duration::ZERO)) }
            }
            Err(error) => {
                self.on_device.put_back(pooled);
                Err(self.pool.refused(self.stream.device(), error))
            }
        }
    }

    /// Returns whether no work of the handle's former stream can meet the new stream's, after making it wait if needed.
    fn wait_for_former(&self, pooled: &PooledHandle) -> Result<bool> {
        let wait = |at_all_costs| {
            hand_over::wait_for_former(self.runtime, self.pool.library, pooled, self.stream, at_all_costs)
        };
        if wait(false)? {
            return Ok(true);
        }
        let must = self.on_device.idle_count() >= IDLE_ENOUGH || self.on_device.is_full();
        if must { wait(true) } else { Ok(false) }
    }

    fn create(&self) -> Result<Arc<PooledHandle>> {
        let created = self.pool.create(self.runtime, self.on_device, self.stream.device())?;
        self.pool.set_up(self.on_device, created, self.stream)
    }

    fn exhausted(&self, waited: Duration) -> Error {
        self.on_device.count_failure();
        ErrorKind::PoolExhausted(PoolExhausted {
            library: self.pool.library.name().to_owned(),
            device: self.stream.device(),
            limit: self.on_device.limit().unwrap_or(usize::MAX),
            waited,
            holders: self.on_device.holders().iter().map(ToString::to_string).collect(),
        })
        .into()
    }
}
