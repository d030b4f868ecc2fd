//! A callback while it is registered.

use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;

use crate::error::Error;
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

/// Makes a class of callbacks of one kind, each registered until it is removed.
macro_rules! callback_class {
    ($class:ident = $name:literal of $guard:ty) => {
        #[doc = docstring!($name)]
        #[pyclass(name = $name, module = "gpupool", frozen, weakref)]
        #[derive(Debug)]
        pub(in crate::python) struct $class(Registration<$guard>);

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

pub(super) use callback_class;
