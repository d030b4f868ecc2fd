//! Pinned memory allocated in advance.

use std::thread;

use log::info;

use super::place::node_of;
use crate::error::{Bytes, Error, Result};
use crate::memory::{route, serve};
use crate::observe::nvtx;
use crate::observe::target::MEMORY;

/// The most bytes of one segment: drivers register no 512 GiB at once.
const SEGMENT_MOST: u64 = 0x40_0000_0000;
/// The name of the thread; the system keeps 15 bytes.
const THREAD: &str = "gpupool-pin";

/// Makes sure that so many contiguous bytes of pinned memory are free, on the NUMA node with this number, otherwise on
/// the one nearest to the calling thread's current device: allocates them if needed. With `background` a separate
/// thread does so, requests are served as usual meanwhile, and a failure is logged.
///
/// # Errors
/// `ErrorKind::OutOfMemory` if there is not enough memory, or this process can lock no more; `ErrorKind::InvalidValue`
/// if the host has no such node; `ErrorKind::Unavailable` if the system cannot start a thread.
pub fn warm_pinned(nbytes: u64, numa: Option<u32>, background: bool) -> Result<()> {
    // That of the calling thread, which is to have the memory.
    let cache = route::cache_on(&node_of(numa.map(i64::from), None)?)?;
    if !background {
        return serve::warm_by_segments(cache, nbytes, SEGMENT_MOST);
    }
    let work = move || {
        nvtx::name_thread(THREAD);
        if let Err(error) = serve::warm_by_segments(cache, nbytes, SEGMENT_MOST) {
            info!(target: MEMORY, "{} of pinned memory were not made ahead: {error}", Bytes(nbytes));
        }
    };
    let started = thread::Builder::new().name(THREAD.to_owned()).spawn(work);
    started.map(drop).map_err(|e| Error::unavailable(format!("no thread could be started to make pinned memory: {e}")))
}
