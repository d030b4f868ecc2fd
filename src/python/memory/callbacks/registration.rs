//! A callback while it is registered.

use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;

use crate::process;
use crate::sync::lock;

/// What an object of Python's has of its callback.
#[derive(Debug)]
pub(super) struct Registration<G> {
    /// The name of the callable in Python.
    name: String,
    /// None once it is removed.
    pub(super) guard: Mutex<Option<G>>,
}

/// Returns a callable's name for logs and a `repr`.
pub(super) fn callable_name(callable: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(match callable.getattr_opt(intern!(callable.py(), "__qualname__"))? {
        Some(name) => name.to_string(),
        None => callable.get_type().name()?.to_string(),
    })
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
