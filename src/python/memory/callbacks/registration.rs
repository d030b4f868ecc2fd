//! A callback while it is registered.

use std::sync::Mutex;

use pyo3::call::PyCallArgs;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::Error;
use crate::process;
use crate::python::error::with_exception_set_aside;
use crate::sync::lock;

/// What an object of Python's has of its callback.
#[derive(Debug)]
pub(super) struct Registration<G> {
    /// The name of the callable in Python.
    name: String,
    /// None once it is removed.
    pub(super) guard: Mutex<Option<G>>,
}

/// Returns a callable's name for logs and a `repr`; `takes` says which function takes what, for the error if it is none.
pub(super) fn callable_name(callable: &Bound<'_, PyAny>, takes: &str) -> PyResult<String> {
    process::refuse_forked()?;
    if !callable.is_callable() {
        return Err(Error::invalid_value(format!("{takes}, not {callable}")).into());
    }
    Ok(match callable.getattr_opt(intern!(callable.py(), "__qualname__"))? {
        Some(name) => name.to_string(),
        None => callable.get_type().name()?.to_string(),
    })
}

/// Calls a callable. What it raises is logged and given to `sys.unraisablehook`: the code that runs is another's.
pub(super) fn call<A>(callable: &Py<PyAny>, arguments: A, log: impl FnOnce(&PyErr))
where
    A: for<'py> PyCallArgs<'py>,
{
    // Where the interpreter is shutting down nothing is called.
    let _ = Python::try_attach(|py| {
        if let Err(raised) = with_exception_set_aside(py, || callable.call1(py, arguments)) {
            log(&raised);
            raised.write_unraisable(py, Some(callable.bind(py)));
        }
    });
}

impl<G: Send> Registration<G> {
    pub(super) const fn new(name: String, guard: G) -> Self {
        Self { name, guard: Mutex::new(Some(guard)) }
    }

    pub(super) fn remove(&self, py: Python<'_>) -> PyResult<()> {
        process::refuse_forked()?;
        let guard = lock(&self.guard).take();
        py.detach(|| drop(guard));
        Ok(())
    }

    pub(super) fn repr(&self, class: &str) -> String {
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
