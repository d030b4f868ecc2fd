//! The objects of the streams that a buffer was recorded on, which keep these alive until it is freed.
//!
//! A driver that is asked about a stream that is gone crashes, and Python drops the two in any order.

use pyo3::prelude::*;
use pyo3::types::PyInt;

/// Objects of streams. To be dropped while no lock is held, since their ends may run Python.
#[derive(Debug, Default)]
pub(in crate::python) struct Keepers(Vec<Py<PyAny>>);

impl Keepers {
    /// Keeps the stream of this object alive. A bare address has no object: its stream is in the caller's care.
    pub(in crate::python) fn keep(&mut self, stream: &Bound<'_, PyAny>) {
        if !stream.is_exact_instance_of::<PyInt>() && self.0.iter().all(|known| !known.is(stream)) {
            self.0.push(stream.clone().unbind());
        }
    }

    pub(in crate::python) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
