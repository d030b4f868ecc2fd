//! The functions of PyTorch's pluggable allocator, for a process whose PyTorch has no allocator but this one.
//!
//! <https://docs.pytorch.org/docs/stable/notes/cuda.html#using-custom-memory-allocators-for-cuda>. What PyTorch calls
//! a pool is here one for graphs: it makes no other over a pluggable allocator. Its captures take memory on any thread
//! (backward passes have theirs), so a capture is known by its stream being captured, not by the thread.

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{exception, stream};
use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::plug::c_api::{C_API, address_of, guard, stream_of};
use crate::memory::pool::{Pool, PoolId, PoolUse, Purpose, only_in};
use crate::memory::serve;
use crate::memory::{empty_cache, set_per_process_memory_fraction};
use crate::process;
use crate::runtime::{self, ExpectedCaptures, Stream};
use crate::sync::{Ordering, ThisThread, ThreadNumber, lock};

/// A pool's id as PyTorch has it: `c10::MempoolId_t`, a pair that C passes as two numbers.
type TorchId = (u64, u64);

/// Returns the addresses of the functions for PyTorch, by the names of the setters that take them. `address_of` returns
/// where a symbol of PyTorch's library is.
///
/// # Safety
/// Each address is 0 or that of the symbol asked for, in a library that stays loaded.
///
/// # Errors
/// What `address_of` returns; `ErrorKind::InvalidValue` if a symbol that is needed has no address.
pub(crate) unsafe fn functions<E: From<Error>>(
    mut address_of: impl FnMut(&'static str) -> Result<usize, E>,
) -> Result<[(&'static str, usize); 8], E> {
    let mut addresses = [0; exception::SYMBOLS.len()];
    for (address, symbol) in addresses.iter_mut().zip(exception::SYMBOLS) {
        *address = address_of(symbol)?;
    }
    // SAFETY: the caller promises that these are the symbols' addresses.
    unsafe { exception::set_symbols(addresses) }?;
    let addresses = stream::SYMBOLS.map(|symbol| address_of(symbol).unwrap_or(0));
    // SAFETY: the caller promises that these are the symbols' addresses.
    unsafe { stream::set_symbols(addresses) };
    Ok([
        ("malloc", malloc as *const () as usize),
        ("free", C_API.free as *const () as usize),
        ("set_record_stream_fn", record_stream as *const () as usize),
        ("set_reset_fn", reset as *const () as usize),
        ("set_memory_fraction_fn", memory_fraction as *const () as usize),
        ("set_begin_allocate_to_pool", begin_allocate_to_pool as *const () as usize),
        ("set_end_allocate_to_pool_fn", end_allocate_to_pool as *const () as usize),
        ("set_release_pool", release_pool as *const () as usize),
    ])
}

/// The memory of graphs that have one id.
#[derive(Debug)]
struct GraphPool {
    device: Device,
    id: TorchId,
    /// Its own use first, then those of pools that captures at the same time have taken memory of: which stream is
    /// whose is not asked.
    uses: Vec<PoolUse>,
    /// How often it was begun and not released.
    begun: usize,
}

impl GraphPool {
    fn is(&self, device: Device, id: TorchId) -> bool {
        self.device == device && self.id == id
    }

    fn pool(&self) -> Option<&Arc<Pool>> {
        self.uses.first().map(PoolUse::pool)
    }
}

/// A capture that is about to begin, or under way, or has failed: PyTorch does not always tell of the end of one that did.
#[derive(Debug)]
struct Route {
    /// Which of all that were made.
    number: u64,
    device: Device,
    id: TorchId,
    pool: Arc<Pool>,
    /// The thread that begins it.
    thread: ThreadNumber,
    /// Its stream, if that can be asked whether it is captured: one that lasts.
    stream: Option<Stream>,
    /// What other threads know of it before it has begun, and until its end if its stream cannot be asked.
    expected: Option<ExpectedCaptures>,
}

impl Route {
    fn is_into(&self, device: Device, id: TorchId) -> bool {
        self.device == device && self.id == id
    }
}

#[derive(Debug, Default)]
struct Graphs {
    pools: Vec<GraphPool>,
    routes: Vec<Route>,
    /// How many routes were made.
    made: u64,
}

impl Graphs {
    /// Takes what was expected of captures that have begun, or will not, and whose streams are asked from now on.
    fn take_announcements(&mut self, mut is_wanted: impl FnMut(&Route) -> bool) -> Vec<ExpectedCaptures> {
        let asked = self.routes.iter_mut().filter(|route| route.stream.is_some() && is_wanted(route));
        asked.filter_map(|route| route.expected.take()).collect()
    }

    /// Takes routes out. They are to be dropped outside the lock.
    fn take_routes(&mut self, mut is_wanted: impl FnMut(&Route) -> bool) -> Vec<Route> {
        let taken = self.routes.extract_if(.., |route| is_wanted(route)).collect();
        ROUTES.store(self.routes.len(), Ordering::Release);
        taken
    }
}

static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs { pools: Vec::new(), routes: Vec::new(), made: 0 });
/// How many routes there are, for the requests made while there are none.
static ROUTES: AtomicUsize = AtomicUsize::new(0);

fn graphs() -> MutexGuard<'static, Graphs> {
    lock(&GRAPHS)
}

/// Returns the pool of the capture that the stream is in, if it is in one of PyTorch's.
fn captured_in(stream: &Stream) -> Result<Option<Arc<Pool>>> {
    if ROUTES.load(Ordering::Acquire) == 0 {
        return Ok(None);
    }
    let is_captured = stream.is_captured()?;
    // PyTorch begins a capture before the thread that does allocates again, or has failed to.
    let begun = graphs().take_announcements(|route| route.thread == ThisThread::get().number());
    drop(begun);
    if !is_captured {
        return Ok(None);
    }
    let (pool, unknown) = {
        let graphs = graphs();
        let Some(route) = graphs.routes.iter().rfind(|route| route.device == stream.device()) else { return Ok(None) };
        let is_known = route.stream.is_some() || route.expected.is_some();
        (Arc::clone(&route.pool), (!is_known).then_some(route.number))
    };
    if let Some(number) = unknown {
        note_stream(number, stream);
    }
    Ok(Some(pool))
}

/// Notes which stream a route's capture is of.
#[cold]
fn note_stream(number: u64, stream: &Stream) {
    let lasting = Some(stream.kept()).filter(Stream::is_lasting);
    // Outside the lock, for it waits for calls of other threads.
    let expected = if lasting.is_none() { Some(ExpectedCaptures::new(stream.device())) } else { None };
    if let Some(route) = graphs().routes.iter_mut().find(|route| route.number == number) {
        (route.stream, route.expected) = (lasting, expected);
    }
}

/// # Safety
/// PyTorch's allocator called, which names a stream that is alive and lets C++ exceptions through.
unsafe fn allocate(size: usize, device: c_int, stream: *mut c_void) -> Result<*mut c_void> {
    if size == 0 {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: the caller promises that the stream is alive.
    let stream = unsafe { stream_of(device, stream) }?;
    // SAFETY: the caller promises that PyTorch called.
    unsafe { stream::note(&stream) };
    let allocate = || serve::allocate(size as u64, &stream);
    address_of(match captured_in(&stream)? {
        None => allocate(),
        Some(pool) => only_in(&pool, Purpose::Graph, allocate),
    })
}

fn device_of(ordinal: c_int) -> Result<Device> {
    runtime::device(ordinal.into())
}

/// Returns a use for a graph of PyTorch's, of a new pool.
fn new_pool(device: Device) -> Result<PoolUse> {
    let pool = serve::make_pool(device, PoolId::next(false), serve::PoolOptions::default())?;
    Ok(PoolUse::first(pool, true))
}

/// Drops the routes of captures that failed, of which PyTorch does not always tell: those that have begun on streams that can be
/// asked and are not captured any more, and what the calling thread has begun in the pool that it begins again.
fn forget_failed(device: Device, id: TorchId) -> Result<()> {
    let thread = ThisThread::get().number();
    let begins_again = |route: &Route| route.is_into(device, id) && route.thread == thread;
    let (asked, _begun): (Vec<_>, _) = {
        let mut graphs = graphs();
        let now_asked = graphs.take_announcements(|route| route.thread == thread);
        let begun = graphs.routes.iter().filter(|route| route.expected.is_none());
        (begun.filter_map(|route| Some((route.number, route.stream.clone()?))).collect(), now_asked)
    };
    let mut over = Vec::new();
    for (number, stream) in asked {
        if !stream.is_captured()? {
            over.push(number);
        }
    }
    let is_over = |route: &Route| over.contains(&route.number) || begins_again(route);
    let ended = graphs().take_routes(is_over);
    drop(ended);
    Ok(())
}

/// # Safety
/// PyTorch's allocator called, and lets C++ exceptions through.
unsafe fn begin(device: c_int, id: TorchId) -> Result<()> {
    process::refuse_forked()?;
    let device = device_of(device)?;
    forget_failed(device, id)?;
    // SAFETY: the caller promises that PyTorch called.
    let (stream, expected) = unsafe { stream::expect_capture(device) };
    let is_known = graphs().pools.iter().any(|pool| pool.is(device, id));
    // Made outside the lock, and dropped again if another thread was first.
    let made = if is_known { None } else { Some(new_pool(device)?) };
    let mut graphs = graphs();
    let place = match graphs.pools.iter().position(|pool| pool.is(device, id)) {
        Some(place) => place,
        None => {
            let uses = made.into_iter().collect();
            graphs.pools.push(GraphPool { device, id, uses, begun: 0 });
            graphs.pools.len() - 1
        }
    };
    let Some(pool) = graphs.pools[place].pool().cloned() else {
        return Err(Error::invalid_value("PyTorch released a pool that it has just begun to use"));
    };
    // From here on this pool serves them too.
    let Graphs { pools, routes, made } = &mut *graphs;
    for route in routes.iter().filter(|route| route.device == device && route.id != id) {
        if let Some(other) = pools.iter_mut().find(|pool| pool.is(device, route.id)) {
            other.uses.push(PoolUse::new(&pool, true)?);
        }
    }
    pools[place].begun += 1;
    *made += 1;
    let thread = ThisThread::get().number();
    routes.push(Route { number: *made, device, id, pool, thread, stream, expected });
    ROUTES.store(routes.len(), Ordering::Release);
    Ok(())
}

fn end(device: c_int, id: TorchId) -> Result<()> {
    let device = device_of(device)?;
    let mut graphs = graphs();
    let place = graphs.routes.iter().rposition(|route| route.device == device && route.id == id);
    let ended = place.map(|place| graphs.routes.remove(place));
    ROUTES.store(graphs.routes.len(), Ordering::Release);
    drop(graphs);
    drop(ended);
    Ok(())
}

fn release(device: c_int, id: TorchId) -> Result<()> {
    let device = device_of(device)?;
    let released = {
        let mut graphs = graphs();
        let place = graphs.pools.iter().position(|pool| pool.is(device, id));
        let Some(place) = place else {
            return Err(Error::invalid_value(format!("PyTorch released pool {id:?}, which it had not begun")));
        };
        graphs.pools[place].begun -= 1;
        (graphs.pools[place].begun == 0).then(|| {
            let pool = graphs.pools.swap_remove(place);
            // Of captures that failed, whose ends PyTorch 2.11 does not tell of.
            let routes = graphs.take_routes(|route| route.is_into(device, id));
            (routes, pool)
        })
    };
    // Outside the lock, for it gives memory back.
    drop(released);
    Ok(())
}

/// Throws what goes wrong.
///
/// # Safety
/// As [`exception::throw`].
unsafe fn or_throw<R>(run: impl FnOnce() -> Result<R> + std::panic::UnwindSafe) -> R {
    let outcome = catch_unwind(run);
    match outcome {
        Ok(Ok(result)) => result,
        // SAFETY: the caller's promise.
        Ok(Err(error)) => unsafe { exception::throw(error) },
        // SAFETY: the caller's promise.
        Err(_) => unsafe { exception::throw(Error::internal("a call of PyTorch's panicked")) },
    }
}

/// `void *(size_t size, int device, cudaStream_t stream)`.
unsafe extern "C-unwind" fn malloc(size: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    // SAFETY: PyTorch's allocator calls, with a live stream, and its callers take exceptions for failures.
    unsafe { or_throw(|| allocate(size, device, stream)) }
}

/// `void (void *pointer, cudaStream_t stream)`.
unsafe extern "C-unwind" fn record_stream(pointer: *mut c_void, stream: *mut c_void) {
    // SAFETY: PyTorch's allocator calls, and its callers take exceptions for failures.
    unsafe {
        or_throw(|| {
            if pointer.is_null() {
                return Ok(());
            }
            let stream = stream_of(-1, stream)?;
            serve::record_stream(serve::find(pointer.addr() as u64, None)?, &stream)
        });
    }
}

/// `void ()`: `torch.cuda.empty_cache`.
unsafe extern "C-unwind" fn reset() {
    // SAFETY: PyTorch's allocator calls, and its callers take exceptions for failures.
    unsafe { or_throw(|| empty_cache().map(drop)) }
}

/// `void (double fraction, int device)`.
unsafe extern "C-unwind" fn memory_fraction(fraction: f64, device: c_int) {
    // SAFETY: PyTorch's allocator calls, and its callers take exceptions for failures.
    unsafe { or_throw(|| set_per_process_memory_fraction(fraction, device_of(device)?)) }
}

/// `void (int device, MempoolId_t id, std::function<bool(cudaStream_t)> filter)`. C++ passes the last by its address.
unsafe extern "C-unwind" fn begin_allocate_to_pool(device: c_int, first: u64, second: u64, _filter: *const c_void) {
    // SAFETY: PyTorch's allocator calls, and its callers take exceptions for failures.
    unsafe { or_throw(|| begin(device, (first, second))) }
}

/// `void (int device, MempoolId_t id)`.
unsafe extern "C-unwind" fn end_allocate_to_pool(device: c_int, first: u64, second: u64) {
    // SAFETY: PyTorch's allocator calls, and its callers take exceptions for failures.
    unsafe { or_throw(|| end(device, (first, second))) }
}

/// The same. Graphs end in destructors, out of which nothing may be thrown.
unsafe extern "C" fn release_pool(device: c_int, first: u64, second: u64) {
    guard((), || release(device, (first, second)));
}
