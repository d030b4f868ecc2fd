//! Python objects that gpupool calls or needs later, such as callbacks, and which of its objects shows them to the garbage
//! collector; and what objects have until they end.
//!
//! What a pool or a range calls may refer to it, and keep it alive for ever unless the collector knows. So such an object is
//! held once, by what may need it, and the pool or range tells the collector of it.

use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyReferenceError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::{self, DiscardGuard, OomGuard, PoolId, SegmentEvent, SegmentEventKind, SegmentGuard};
use crate::process;
use crate::python::context::Ignored;
use crate::python::device;
use crate::python::error::{call_unasked, interrupted};
use crate::python::values::{Reduced, reduce};
use crate::sync::lock;

/// An object that is held; none once the collector has taken it. No Python runs under the lock, so that the collector never
/// finds it locked.
#[derive(Debug)]
pub(crate) struct Kept(Mutex<Option<Py<PyAny>>>);

impl Kept {
    /// # Errors
    /// `ReferenceError` once the collector has taken it.
    pub(crate) fn bind<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let object = lock(&self.0).as_ref().map(|object| object.bind(py).clone());
        object.ok_or_else(|| PyReferenceError::new_err("it was collected as garbage"))
    }

    /// Calls it, as [`call_unasked`] does, unless the collector has taken it or the interpreter is shutting down.
    pub(crate) fn call_unasked<A: for<'py> PyCallArgs<'py>>(&self, arguments: A, log: impl FnOnce(&PyErr)) {
        let _ = Python::try_attach(|py| self.bind(py).map(|callable| call_unasked(&callable, arguments, log)));
    }
}

/// The objects that are held for one object of gpupool's.
#[derive(Default)]
pub(crate) struct KeptObjects(Mutex<Vec<Weak<Kept>>>);

impl KeptObjects {
    /// Holds another object until what this returns is dropped.
    pub(crate) fn keep(&self, object: &Bound<'_, PyAny>) -> Arc<Kept> {
        let kept = Arc::new(Kept(Mutex::new(Some(object.clone().unbind()))));
        let mut all = lock(&self.0);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&kept));
        kept
    }

    fn all(&self) -> Vec<Arc<Kept>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let visited = |kept: Arc<Kept>| match kept.0.try_lock() {
            Ok(object) => visit.call(object.as_ref()),
            Err(TryLockError::Poisoned(poisoned)) => visit.call(poisoned.into_inner().as_ref()),
            Err(TryLockError::WouldBlock) => Ok(()),
        };
        self.all().into_iter().try_for_each(visited)
    }

    pub(crate) fn clear(&self) {
        for kept in self.all() {
            // Its end may run Python, and comes after that of the lock.
            let _taken = lock(&kept.0).take();
        }
    }
}

// The objects of the streams that a buffer was recorded on, which keep these alive until it is freed.
//
// A driver that is asked about a stream that is gone crashes, and Python drops the two in any order.

/// Objects of streams. To be dropped while no lock is held, since their ends may run Python.
#[derive(Default)]
pub(crate) struct Keepers(Vec<Py<PyAny>>);

impl Keepers {
    /// Keeps the stream of this object alive. A bare address has no object: its stream is in the caller's care.
    pub(crate) fn keep(&mut self, stream: &Bound<'_, PyAny>) {
        if !stream.is_exact_instance_of::<PyInt>() && self.0.iter().all(|known| !known.is(stream)) {
            self.0.push(stream.clone().unbind());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What an object has until it ends. In a forked child, where the lock may be held for ever, its uses are refused.
pub(crate) struct UntilEnd<T>(Mutex<Option<T>>);

impl<T> UntilEnd<T> {
    pub(crate) const fn new(held: Option<T>) -> Self {
        Self(Mutex::new(held))
    }

    /// Puts there what the object has from now on.
    pub(crate) fn begin(&self, held: T) {
        let _former = lock(&self.0).replace(held);
    }

    /// Takes it out; none once it is over.
    pub(crate) fn end(&self) -> Result<Option<T>> {
        process::refuse_forked()?;
        Ok(lock(&self.0).take())
    }

    /// Returns what `read` takes out of it; none once it is over.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> Result<Option<R>> {
        process::refuse_forked()?;
        Ok(lock(&self.0).as_ref().map(read))
    }

    /// The same, and drops it without the GIL.
    pub(crate) fn end_detached(&self, py: Python<'_>) -> PyResult<()>
    where
        T: Send,
    {
        let held = self.end()?;
        py.detach(|| drop(held));
        Ok(())
    }

    /// Takes it out as the object itself ends.
    pub(crate) fn take_last(&mut self) -> Option<T> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_over(&self) -> Result<bool> {
        Ok(self.read(|_| ())?.is_none())
    }

    /// Returns what a `repr` says of it: nothing while it is there, `over` after that.
    pub(crate) fn told(&self, over: &str) -> String {
        match self.is_over() {
            Ok(false) => String::new(),
            Ok(true) => format!(", {over}"),
            Err(_) => ", of the parent process".to_owned(),
        }
    }
}

// Callbacks that Python registers: for requests that find no memory, for a pool's segments, and for pages that are taken of
// a range.

/// Makes a class of callbacks of one kind, each registered until it is removed. Its name is that of the callable in Python.
macro_rules! callback_class {
    ($class:ident = $name:literal of $guard:ty) => {
        #[doc = docstring!($name)]
        #[pyclass(name = $name, module = "gpupool.typing", frozen, weakref)]
        pub(crate) struct $class {
            name: String,
            guard: UntilEnd<$guard>,
        }

        impl $class {
            pub(crate) fn new(name: String, guard: $guard) -> Self {
                Self { name, guard: UntilEnd::new(Some(guard)) }
            }
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
            fn __repr__(&self) -> String {
                format!("<gpupool.typing.{} {}{}>", $name, self.name, self.guard.told("removed"))
            }
        }

        members! { $class = $name of this, py;
            fn remove() -> PyResult<()> = this.guard.end_detached(py);
        }

        ends_with_block! { $class = $name by remove() }
    };
}

callback_class! { PyOomCallback = "OomCallback" of OomGuard }
callback_class! { PySegmentCallback = "SegmentCallback" of SegmentGuard }
callback_class! { PyDiscardCallback = "DiscardCallback" of DiscardGuard }

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
    Ok(PyOomCallback::new(name, guard))
}

#[doc = docstring!("SegmentEvent")]
#[pyclass(name = "SegmentEvent", module = "gpupool.typing", frozen, get_all, eq, hash)]
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
            "gpupool.typing.SegmentEvent(kind='{kind}', address={address:#x}, nbytes={nbytes}, device={device}, \
             pool_id={pool_id})"
        )
    }
}
