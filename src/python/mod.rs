//! The Python module `gpupool._native`, one file for each concept.
//!
//! Hits keep the GIL, because they take nanoseconds. Every call that may wait, create or load something releases it. No
//! `Drop` here runs Python.

// Except in `ffi`.
#![deny(unsafe_code)]
// Docstrings have Google's form, which is no Markdown.
#![allow(clippy::doc_lazy_continuation)]

/// The docstring that the stubs, `python/gpupool/_native.pyi`, have for a name, such as "MemPool.trim"; see `build.rs`.
macro_rules! docstring {
    ($($part:expr),+) => {
        include_str!(concat!(env!("OUT_DIR"), "/docstrings/", $($part),+))
    };
}

#[macro_use]
mod tables;
#[macro_use]
mod values;

mod arguments;
mod buffer;
mod context;
mod device;
mod error;
mod ffi;
mod handle;
mod holder;
mod kept;
mod logging;
mod mem_pool;
mod neighbour;
mod plugs;
mod range;
mod recording;
mod scope;
#[cfg(feature = "fault-injection")]
mod simulation;
mod stats;
mod stream;
mod traces;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
#[cfg(Py_GIL_DISABLED)]
use pyo3::types::{PyCFunction, PyType};

use crate::handle::pool_of_number;
use crate::library;

functions! { py;
    fn add_site_packages(folders: Vec<PathBuf>) = library::add_site_packages(folders);
}

/// Refuses a second interpreter of the process: exceptions, callbacks and handles belong to the first.
fn refuse_second_interpreter(py: Python<'_>) -> PyResult<()> {
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    // Each interpreter has a `builtins` of its own, as long as it lives.
    let this = py.import("builtins")?.as_ptr().addr();
    match FIRST.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed) {
        Err(first) if first != this => Err(PyImportError::new_err(
            "gpupool was imported in another interpreter of this process, and cannot be used in a second one \
             (subinterpreter); use threads of one interpreter, or processes",
        )),
        _ => Ok(()),
    }
}

#[pymodule(gil_used = false)]
mod _native {
    use super::*;

    #[cfg(feature = "fault-injection")]
    #[pymodule_export]
    use super::simulation::{
        host_begin_capture, host_clear_faults, host_complete, host_create_stream, host_destroy_stream,
        host_end_capture, host_inject, host_reuse_extent_numbers, host_set_clock, host_stream_of, host_submit,
    };
    #[pymodule_export]
    use super::{
        add_site_packages,
        buffer::{PyDeviceBuffer, PyShareToken, attach, empty, fence, follow_blocking, share_at},
        device::{
            cuda_builds, current_device, device_count, device_info, driver_version, runtime, runtimes_passed_over,
            sleep, wake,
        },
        ffi::buffers::{PyPinnedBuffer, empty_pinned},
        handle::{PyHandlePool, PyHandleStats, PyLease, handle_stats, simulate_costly_handles},
        holder::{holders, is_watched},
        kept::{PyDiscardCallback, PyOomCallback, PySegmentCallback, PySegmentEvent, on_oom},
        logging::{clear_log_records, end_log, pause_log, resume_log, set_log_level, start_log},
        mem_pool::{
            PyCapture, PyGraphMemory, PyMemPool, begin_allocate_to_pool, end_allocate_to_pool, graph_pool_handle,
            pool_use_count, release_pool,
        },
        neighbour::{PyClaim, PyNeighbour, PyNeighbourPool, available_memory, claim, neighbours, set_neighbour},
        plugs::{PyCApi, PyCudaCoreMemory, PyCupyAllocator, PyCupyPinnedAllocator, PyCupyPinnedMemory},
        range::PyMemoryRange,
        recording::{get_memory_history, memory_snapshot, record_memory_history},
        scope::{PyPoolScope, PyPoolToken, use_mem_pool},
        stats::{
            PyMemoryStats, PyPoolStats, devices_in_use, empty_cache, empty_pinned_cache, enable_peer_access,
            get_memory_limit, get_per_process_memory_fraction, get_pinned_limit, memory_stats, nearest_numa_node,
            oom_callbacks, owns, peers, pinned_stats, pinned_times, request_counts, reset_peak_pinned_stats,
            reset_peak_stats, set_memory_limit, set_per_process_memory_fraction, set_pinned_limit, summarize,
            summarize_pinned, warm_pinned,
        },
        stream::{PyStream, PyStreamScope, current_stream, is_captured, set_stream_source, stream, synchronize},
        traces::{PyReplayResult, replay, replay_reserved, unpickle},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        refuse_second_interpreter(module.py())?;
        error::add_exceptions(module)?;
        logging::install();
        crate::sync::set_detach(ffi::interpreter::wait_detached);
        crate::memory::begin();
        // Python calls the finalizer of a class only where it was set.
        for class in [module.py().get_type::<mem_pool::PyMemPool>(), module.py().get_type::<range::PyMemoryRange>()] {
            class.setattr("__del__", class.getattr("__del__")?)?;
        }
        module.add("c_api", plugs::PyCApi::from(ffi::buffers::c_api_capsule(module.py())?.unbind()))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        for pool in (0..).map_while(pool_of_number) {
            module.add(pool.name(), PyHandlePool(pool))?;
        }
        // Its functions, classes and pools, of which threads would wait for each other otherwise.
        #[cfg(Py_GIL_DISABLED)]
        for object in module.dict().values() {
            if object.is_instance_of::<PyType>()
                || object.is_instance_of::<PyCFunction>()
                || object.is_instance_of::<PyHandlePool>()
            {
                ffi::interpreter::make_immortal(&object);
            }
        }
        Ok(())
    }
}
