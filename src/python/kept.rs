//! Python objects that gpupool calls or needs later, such as callbacks, and which of its objects shows them to the garbage
//! collector.
//!
//! What a pool or a range calls may refer to it, and keep it alive for ever unless the collector knows. So such an object is
//! held once, by what may need it, and the pool or range tells the collector of it.

use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyReferenceError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::error::Result;
use crate::process;
use crate::python::error::call_unasked;
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
            let taken = lock(&kept.0).take();
            // Its end may run Python.
            drop(taken);
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
        let former = lock(&self.0).replace(held);
        drop(former);
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
        process::refuse_forked()?;
        Ok(lock(&self.0).is_none())
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
