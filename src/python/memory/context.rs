//! Scopes of a context, by a `contextvars.ContextVar`: of an asyncio task, and of the tasks that it starts meanwhile.
//!
//! A scope entered in an asyncio task belongs to its context; any other to the thread. Requests look for scopes of their
//! context only while there is one in the process.

use std::cell::Cell;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::ids::Device;
use crate::memory::{ContextScope, PoolToken, set_find_context_scope};
use crate::python::error::with_exception_set_aside;
use crate::python::ffi::if_attached;

/// What the variable holds: the scopes of a context, the innermost last.
#[pyclass(frozen)]
#[derive(Debug)]
struct ContextScopes {
    scopes: Vec<Arc<ContextScope>>,
}

/// A scope that a context was given, until this is dropped.
#[derive(Debug)]
pub(super) struct EnteredContext(Arc<ContextScope>);

thread_local! {
    /// Whether a task of this thread has entered a scope: then requests without the GIL wait for it, to look for a scope.
    static HAS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns the variable, made when the first such scope is entered.
fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let make = || {
        let made = py.import("contextvars")?.getattr("ContextVar")?.call1(("gpupool.scopes",))?;
        set_find_context_scope(find);
        PyResult::Ok(made.unbind())
    };
    Ok(VARIABLE.get_or_try_init(py, make)?.bind(py))
}

/// Runs this with the scopes that the calling thread's context has.
fn with_scopes<R>(py: Python<'_>, run: impl FnOnce(&[Arc<ContextScope>]) -> R) -> PyResult<R> {
    let value = variable(py)?.call_method1(intern!(py, "get"), (py.None(),))?;
    let Ok(scopes) = value.cast::<ContextScopes>() else { return Ok(run(&[])) };
    Ok(run(&scopes.get().scopes))
}

fn set_scopes(py: Python<'_>, scopes: Vec<Arc<ContextScope>>) -> PyResult<()> {
    let value = if scopes.is_empty() { py.None() } else { Py::new(py, ContextScopes { scopes })?.into_any() };
    variable(py)?.call_method1(intern!(py, "set"), (value,)).map(drop)
}

fn look(py: Python<'_>, device: Device, first: u64) -> Option<Arc<ContextScope>> {
    let innermost =
        |scopes: &[Arc<ContextScope>]| scopes.iter().rev().find(|scope| scope.serves(device, first)).cloned();
    with_exception_set_aside(py, || with_scopes(py, innermost).ok().flatten())
}

/// Finds the scope that a request on the device is in by its context. A thread in which no task has entered a scope never
/// waits for the GIL here: without it, it is in none.
fn find(device: Device, first: u64) -> Option<Arc<ContextScope>> {
    if HAS_ENTERED.try_with(Cell::get).unwrap_or(false) {
        Python::try_attach(|py| look(py, device, first)).flatten()
    } else {
        if_attached(|py| look(py, device, first)).flatten()
    }
}

/// Returns the identity of the running asyncio task; none outside of one.
pub(super) fn current_task(py: Python<'_>) -> PyResult<Option<usize>> {
    /// Kept, since `sys` cannot be imported any more while the interpreter ends.
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    static FUNCTIONS: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let functions = match FUNCTIONS.get(py) {
        Some(functions) => functions,
        None => {
            let loaded = MODULES.import(py, "sys", "modules")?.get_item(intern!(py, "asyncio"))?;
            // None is what keeps it from being imported.
            if loaded.is_none_or(|asyncio| asyncio.is_none()) {
                return Ok(None);
            }
            let asyncio = py.import("asyncio")?;
            let get = |name| asyncio.getattr(name).map(Bound::unbind);
            // The first returns None if no loop runs, and raises nothing.
            FUNCTIONS.get_or_try_init(py, || PyResult::Ok((get("_get_running_loop")?, get("current_task")?)))?
        }
    };
    let running = functions.0.bind(py).call0()?;
    if running.is_none() {
        return Ok(None);
    }
    let task = functions.1.bind(py).call1((running,))?;
    Ok((!task.is_none()).then(|| task.as_ptr().addr()))
}

impl EnteredContext {
    /// Enters the pool for the calling thread's context.
    pub(super) fn new(py: Python<'_>, token: &PoolToken, all_threads: bool) -> PyResult<Self> {
        let entered = Self(token.enter_context_scope(all_threads)?);
        let mut scopes = open_scopes(py)?;
        scopes.push(Arc::clone(&entered.0));
        set_scopes(py, scopes)?;
        HAS_ENTERED.set(true);
        Ok(entered)
    }

    /// Ends the scope, and lets the calling thread's context forget those that have ended.
    pub(super) fn leave(self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.leave());
        set_scopes(py, open_scopes(py)?)
    }
}

impl Drop for EnteredContext {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn open_scopes(py: Python<'_>) -> PyResult<Vec<Arc<ContextScope>>> {
    with_scopes(py, |scopes| scopes.iter().filter(|scope| scope.is_open()).cloned().collect())
}
