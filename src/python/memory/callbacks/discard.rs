//! `DiscardCallback`: a callable that is called for pages of a range that were taken.

use log::warn;
use pyo3::prelude::*;

use super::registration::{Registration, callable_name, callback_class};
use crate::memory::{DiscardGuard, MemoryRange};
use crate::observe::target::MEMORY;
use crate::python::program::{KeptObjects, call_unasked};
use crate::python::with_blocks::Ignored;

callback_class! { PyDiscardCallback = "DiscardCallback" of DiscardGuard }

/// Registers a callable for the pages that are taken of a range.
pub(in crate::python::memory) fn on_discard(
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
