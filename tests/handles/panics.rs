//! A user's library that panics: the request ends so, and the pool has lost nothing by it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::common::{assert_none_lost, stream};
use gpupool::library::{Library, RawHandle};
use gpupool::{Device, HandlePool, Result, Stream};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Place {
    Nowhere,
    Create,
    SetStream,
    Reset,
}

/// A library that panics in one place.
struct Panicking(Arc<AtomicU8>);

impl Panicking {
    fn come_to(&self, place: Place) {
        assert_ne!(self.0.load(Ordering::Relaxed), place as u8, "a library that panics");
    }
}

impl Library for Panicking {
    fn name(&self) -> &str {
        "panicking"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        self.come_to(Place::Create);
        // SAFETY: the box is leaked for this handle.
        Ok(unsafe { RawHandle::from_ptr(NonNull::from(Box::leak(Box::new(0_u64))).cast()) })
    }

    fn destroy(&self, _handle: RawHandle) -> Result<()> {
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
        self.come_to(Place::SetStream);
        Ok(())
    }

    fn reset(&self, _handle: &RawHandle) -> Result<()> {
        self.come_to(Place::Reset);
        Ok(())
    }
}

#[test]
fn a_panic_costs_no_place_of_the_limit() {
    host!();
    let place = Arc::new(AtomicU8::new(0));
    let pool = HandlePool::new(Panicking(Arc::clone(&place))).unwrap();
    pool.set_limit(Some(1)).unwrap();
    let (first, second) = (stream(0), stream(0));
    let panics_in = |at: Place, stream: &Stream| {
        place.store(at as u8, Ordering::Relaxed);
        catch_unwind(AssertUnwindSafe(|| pool.lease(stream).map(drop))).unwrap_err();
        place.store(Place::Nowhere as u8, Ordering::Relaxed);
        // The only place there is.
        drop(pool.lease(stream).unwrap());
        assert_none_lost(pool.stats(None).unwrap());
    };
    panics_in(Place::Create, &first);
    panics_in(Place::SetStream, &first);
    panics_in(Place::Reset, &second);
    panics_in(Place::SetStream, &first);
    let stats = pool.stats(None).unwrap();
    // Each of the four requests has failed.
    assert_eq!((stats.created, stats.idle, stats.failures), (1, 1, 4), "{stats:?}");
}

#[test]
fn a_new_handle_that_no_stream_could_be_set_of_lies_idle() {
    host!();
    let place = Arc::new(AtomicU8::new(Place::SetStream as u8));
    let pool = HandlePool::new(Panicking(Arc::clone(&place))).unwrap();
    pool.set_limit(Some(1)).unwrap();
    catch_unwind(AssertUnwindSafe(|| pool.handle(&stream(0)).map(drop))).unwrap_err();
    assert_eq!(pool.stats(None).unwrap().idle, 1);
    place.store(Place::Nowhere as u8, Ordering::Relaxed);
    pool.handle(&stream(0)).unwrap();
    assert_none_lost(pool.stats(None).unwrap());
}
