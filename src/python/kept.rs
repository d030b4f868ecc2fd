//! Python objects that gpupool calls or needs later, such as callbacks, and which of its objects shows them to the garbage
//! collector.
//!
//! What a pool or a range calls may refer to it, and keep it alive for ever unless the collector knows. So such an object is
//! held once, by what may need it, and the pool or range tells the collector of it.

use std::sync::{Arc, Mutex, TryLockError, Weak};

use pyo3::exceptions::PyReferenceError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyInt;

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
}

/// The objects that are held for one object of gpupool's.
#[derive(Debug, Default)]
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
#[derive(Debug, Default)]
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
