//! A callback while it is registered.

use std::sync::{Arc, Mutex};

use log::warn;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::Error;
use crate::ids::Device;
use crate::memory::{self, DiscardGuard, MemPool, MemoryRange, OomGuard, SegmentEvent, SegmentEventKind, SegmentGuard};
use crate::observe::target::MEMORY;
use crate::process;
use crate::python::context::Ignored;
use crate::python::device;
use crate::python::error::{call_unasked, interrupted};
use crate::python::kept::KeptObjects;
use crate::python::mem_pool::{Id, pair};
use crate::python::values::{Reduced, reduce};
use crate::sync::lock;

/// What an object of Python's has of its callback.
#[derive(Debug)]
pub(crate) struct Registration<G> {
    /// The name of the callable in Python.
    name: String,
    /// None once it is removed.
    pub(crate) guard: Mutex<Option<G>>,
}

/// Returns a callable's name for logs and a `repr`; `takes` says which function takes what, for the error if it is none.
pub(crate) fn callable_name(callable: &Bound<'_, PyAny>, takes: &str) -> PyResult<String> {
    process::refuse_forked()?;
    if !callable.is_callable() {
        return Err(Error::invalid_value(format!("{takes}, not {callable}")).into());
    }
    Ok(match callable.getattr_opt(intern!(callable.py(), "__qualname__"))? {
        Some(name) => name.to_string(),
        None => callable.get_type().name()?.to_string(),
    })
}

impl<G: Send> Registration<G> {
    pub(crate) const fn new(name: String, guard: G) -> Self {
        Self { name, guard: Mutex::new(Some(guard)) }
    }

    pub(crate) fn remove(&self, py: Python<'_>) -> PyResult<()> {
        process::refuse_forked()?;
        let guard = lock(&self.guard).take();
        py.detach(|| drop(guard));
        Ok(())
    }

    pub(crate) fn repr(&self, class: &str) -> String {
        let state = if process::is_forked() {
            ", of the parent process"
        } else if lock(&self.guard).is_none() {
            ", removed"
        } else {
            ""
        };
        format!("<gpupool.{class} {}{state}>", self.name)
    }
}

/// Makes a class of callbacks of one kind, each registered until it is removed.
macro_rules! callback_class {
    ($class:ident = $name:literal of $guard:ty) => {
        #[doc = docstring!($name)]
        #[pyclass(name = $name, module = "gpupool", frozen, weakref)]
        #[derive(Debug)]
        pub(crate) struct $class(Registration<$guard>);

        /// The callback stays registered without this object: a program may not keep it.
        impl Drop for $class {
            fn drop(&mut self) {
                if let Some(guard) = $crate::sync::lock(&self.0.guard).take() {
                    guard.keep();
                }
            }
        }

        #[pymethods]
        impl $class {
            #[doc = docstring!($name, ".remove")]
            fn remove(&self, py: Python<'_>) -> PyResult<()> {
                self.0.remove(py)
            }

            #[doc = docstring!($name, ".__enter__")]
            fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
                $crate::process::refuse_forked()?;
                Ok(slf.clone().unbind())
            }

            #[doc = docstring!($name, ".__exit__")]
            fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
                if !$crate::process::is_forked() {
                    self.remove(py)?;
                }
                Ok(false)
            }

            fn __repr__(&self) -> String {
                self.0.repr($name)
            }
        }
    };
}

// `OomCallback`: a callable that is called before a request fails for lack of memory.

callback_class! { PyOomCallback = "OomCallback" of OomGuard }

#[doc = docstring!("on_oom")]
#[pyfunction]
pub(crate) fn on_oom(callback: Bound<'_, PyAny>) -> PyResult<PyOomCallback> {
    let name = callable_name(&callback, "on_oom takes a callable(device, nbytes) -> bool")?;
    let callback = callback.unbind();
    let call = move |device: Device, nbytes: u64| {
        let freed = Python::try_attach(|py| {
            let answer = callback.call1(py, (device.ordinal(), nbytes)).and_then(|answer| answer.is_truthy(py));
            answer.map_err(|raised| interrupted(py, raised))
        });
        freed.unwrap_or(Ok(false))
    };
    let guard = memory::on_oom_as(name.clone(), Arc::new(call));
    Ok(PyOomCallback(Registration::new(name, guard)))
}

// `SegmentCallback`: a callable that is called for a pool's segments.

callback_class! { PySegmentCallback = "SegmentCallback" of SegmentGuard }

/// Registers a callable for the pool's segments.
pub(crate) fn on_segment(
    pool: &MemPool,
    kept: &KeptObjects,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PySegmentCallback> {
    let name = callable_name(callback, "on_segment takes a callable(event)")?;
    let (callable, called) = (kept.keep(callback), name.clone());
    let call = move |event: &SegmentEvent| {
        // Where the interpreter is shutting down nothing is called.
        let _ = Python::try_attach(|py| {
            let Ok(callable) = callable.bind(py) else { return };
            call_unasked(&callable, (PySegmentEvent::from(event),), |raised| {
                let pool = event.pool;
                warn!(target: MEMORY, "pool {pool}: {called}, a callback of on_segment, raised {raised} for {event:?}");
            });
        });
    };
    let guard = callback.py().detach(|| pool.on_segment(call))?;
    Ok(PySegmentCallback(Registration::new(name, guard)))
}

// `DiscardCallback`: a callable that is called for pages of a range that were taken.

callback_class! { PyDiscardCallback = "DiscardCallback" of DiscardGuard }

/// Registers a callable for the pages that are taken of a range.
pub(crate) fn on_discard(
    range: &MemoryRange,
    kept: &KeptObjects,
    callback: &Bound<'_, PyAny>,
) -> PyResult<PyDiscardCallback> {
    let name = callable_name(callback, "on_discard takes a callable(pages)")?;
    let (callable, called) = (kept.keep(callback), name.clone());
    let guard = range.on_discard(move |pages| {
        // Where the interpreter is shutting down nothing is called.
        let _ = Python::try_attach(|py| {
            let Ok(callable) = callable.bind(py) else { return };
            call_unasked(&callable, (pages.to_vec(),), |raised| {
                warn!(target: MEMORY, "{called}, a callback of on_discard, raised {raised}");
            });
        });
    });
    Ok(PyDiscardCallback(Registration::new(name, guard)))
}

// `SegmentEvent`: a segment that comes or goes.

#[doc = docstring!("SegmentEvent")]
#[pyclass(name = "SegmentEvent", module = "gpupool", frozen, get_all, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
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
    pool_id: Id,
}

impl From<&SegmentEvent> for PySegmentEvent {
    fn from(event: &SegmentEvent) -> Self {
        let kind = match event.kind {
            SegmentEventKind::Added => "added",
            SegmentEventKind::Removed => "removed",
        };
        let (device, pool_id) = (event.device.ordinal(), pair(event.pool));
        Self { kind, address: event.address, nbytes: event.nbytes, device, pool_id }
    }
}

#[pymethods]
impl PySegmentEvent {
    #[new]
    fn new(kind: &str, address: u64, nbytes: u64, device: usize, pool_id: Id) -> PyResult<Self> {
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
             pool_id={pool_id:?})"
        )
    }
}
