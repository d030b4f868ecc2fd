//! Callbacks that Python registers: for requests that find no memory, for a pool's segments, and for pages that are taken of
//! a range.

use std::sync::Arc;

use log::warn;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::Error;
use crate::ids::Device;
use crate::memory::{
    self, DiscardGuard, MemPool, MemoryRange, OomGuard, PoolId, SegmentEvent, SegmentEventKind, SegmentGuard,
};
use crate::observe::target::MEMORY;
use crate::process;
use crate::python::context::Ignored;
use crate::python::device;
use crate::python::error::interrupted;
use crate::python::kept::{KeptObjects, UntilEnd};
use crate::python::values::{Reduced, reduce};

/// Makes a class of callbacks of one kind, each registered until it is removed. Its name is that of the callable in Python.
macro_rules! callback_class {
    ($class:ident = $name:literal of $guard:ty) => {
        #[doc = docstring!($name)]
        #[pyclass(name = $name, module = "gpupool", frozen, weakref)]
        pub(crate) struct $class {
            name: String,
            guard: UntilEnd<$guard>,
        }

        /// The callback stays registered without this object: a program may not keep it.
        impl Drop for $class {
            fn drop(&mut self) {
                if let Some(guard) = self.guard.take_last() {
                    guard.keep();
                }
            }
        }

        #[pymethods]
        impl $class {
            #[doc = docstring!($name, ".remove")]
            fn remove(&self, py: Python<'_>) -> PyResult<()> {
                self.guard.end_detached(py)
            }

            #[doc = docstring!($name, ".__enter__")]
            fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
                process::refuse_forked()?;
                Ok(slf)
            }

            #[doc = docstring!($name, ".__exit__")]
            fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
                if !process::is_forked() {
                    self.remove(py)?;
                }
                Ok(false)
            }

            fn __repr__(&self) -> String {
                format!("<gpupool.{} {}{}>", $name, self.name, self.guard.told("removed"))
            }
        }
    };
}

callback_class! { PyOomCallback = "OomCallback" of OomGuard }
callback_class! { PySegmentCallback = "SegmentCallback" of SegmentGuard }
callback_class! { PyDiscardCallback = "DiscardCallback" of DiscardGuard }

/// Returns a callable's name for logs and a `repr`; `takes` says which function takes what, for the error if it is none.
fn callable_name(callable: &Bound<'_, PyAny>, takes: &str) -> PyResult<String> {
    process::refuse_forked()?;
    if !callable.is_callable() {
        return Err(Error::invalid_value(format!("{takes}, not {callable}")).into());
    }
    Ok(match callable.getattr_opt(intern!(callable.py(), "__qualname__"))? {
        Some(name) => name.to_string(),
        None => callable.get_type().name()?.to_string(),
    })
}

#[doc = docstring!("on_oom")]
#[pyfunction]
pub(crate) fn on_oom(callback: Bound<'_, PyAny>) -> PyResult<PyOomCallback> {
    let name = callable_name(&callback, "on_oom takes a callable(device, nbytes) -> bool")?;
    let callback = callback.unbind();
    let call = move |device: Device, nbytes: u64| {
        let freed = Python::try_attach(|py| {
            let answer = callback.call1(py, (device, nbytes)).and_then(|answer| answer.is_truthy(py));
            answer.map_err(|raised| interrupted(py, raised))
        });
        freed.unwrap_or(Ok(false))
    };
    let guard = memory::on_oom_as(name.clone(), Arc::new(call));
    Ok(PyOomCallback { name, guard: UntilEnd::new(Some(guard)) })
}

/// Registers a callable for the pool's segments.
pub(crate) fn on_segment(
    pool: &MemPool,
    kept: &KeptObjects,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PySegmentCallback> {
    let name = callable_name(callback, "on_segment takes a callable(event)")?;
    let (callable, called) = (kept.keep(callback), name.clone());
    let call = move |event: &SegmentEvent| {
        callable.call_unasked((PySegmentEvent::from(event),), |raised| {
            let pool = event.pool;
            warn!(target: MEMORY, "pool {pool}: {called}, a callback of on_segment, raised {raised} for {event:?}");
        });
    };
    let guard = callback.py().detach(|| pool.on_segment(call))?;
    Ok(PySegmentCallback { name, guard: UntilEnd::new(Some(guard)) })
}

/// Registers a callable for the pages that are taken of a range.
pub(crate) fn on_discard(
    range: &MemoryRange,
    kept: &KeptObjects,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PyDiscardCallback> {
    let name = callable_name(callback, "on_discard takes a callable(pages)")?;
    let (callable, called) = (kept.keep(callback), name.clone());
    let guard = range.on_discard(move |pages| {
        callable.call_unasked((pages.to_vec(),), |raised| {
            warn!(target: MEMORY, "{called}, a callback of on_discard, raised {raised}");
        });
    });
    Ok(PyDiscardCallback { name, guard: UntilEnd::new(Some(guard)) })
}

#[doc = docstring!("SegmentEvent")]
#[pyclass(name = "SegmentEvent", module = "gpupool", frozen, get_all, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PySegmentEvent {
    #[doc = docstring!("SegmentEvent.kind")]
    kind: &'static str,
    #[doc = docstring!("SegmentEvent.address")]
    address: u64,
    #[doc = docstring!("SegmentEvent.nbytes")]
    nbytes: u64,
    #[doc = docstring!("SegmentEvent.device")]
    device: usize,
    #[doc = docstring!("SegmentEvent.pool_id")]
    pool_id: PoolId,
}

impl From<&SegmentEvent> for PySegmentEvent {
    fn from(event: &SegmentEvent) -> Self {
        let kind = match event.kind {
            SegmentEventKind::Added => "added",
            SegmentEventKind::Removed => "removed",
        };
        let (device, pool_id) = (event.device.ordinal(), event.pool);
        Self { kind, address: event.address, nbytes: event.nbytes, device, pool_id }
    }
}

#[pymethods]
impl PySegmentEvent {
    #[new]
    fn new(kind: &str, address: u64, nbytes: u64, device: usize, pool_id: PoolId) -> PyResult<Self> {
        let kinds = ["added", "removed"];
        let Some(kind) = kinds.into_iter().find(|known| *known == kind) else {
            return Err(Error::invalid_value(format!("kind is {kind:?}: give 'added' or 'removed'")).into());
        };
        Ok(Self { kind, address, nbytes, device, pool_id })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        reduce(slf, &["kind", "address", "nbytes", "device", "pool_id"])
    }

    fn __repr__(&self) -> String {
        let Self { kind, address, nbytes, pool_id, .. } = self;
        let device = device::shown(self.device);
        format!(
            "gpupool.SegmentEvent(kind='{kind}', address={address:#x}, nbytes={nbytes}, device={device}, \
             pool_id={pool_id})"
        )
    }
}
