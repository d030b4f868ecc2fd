//! Scopes of a context, by a `contextvars.ContextVar`: of an asyncio task, and of the tasks that it starts meanwhile; and the
//! `with` blocks of an object.
//!
//! A scope entered in an asyncio task belongs to its context; any other to the thread. Requests look for scopes of their
//! context only while there is one in the process.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::error::{Error, Result};
use crate::memory::{Followers, PoolToken, Route, set_find_context_route};
use crate::python::error::with_exception_set_aside;
use crate::python::ffi::interpreter::{calling_generator, if_attached};
use crate::sync::{ThisThread, ThreadNumber, lock};

/// What the variable holds: the scopes of a context, the innermost last.
#[pyclass(frozen)]
struct ContextScopes {
    scopes: Vec<Arc<Route>>,
}

/// A scope that a context was given, until this is dropped.
pub(crate) struct EnteredContext(Arc<Route>);

thread_local! {
    /// Whether a task of this thread has entered a scope: then requests without the GIL wait for it, to look for a scope.
    static HAS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Returns the variable, made when the first such scope is entered.
fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let make = || {
        let made = py.import("contextvars")?.getattr("ContextVar")?.call1(("gpupool.scopes",))?;
        set_find_context_route(find);
        PyResult::Ok(made.unbind())
    };
    Ok(VARIABLE.get_or_try_init(py, make)?.bind(py))
}

/// Runs this with the scopes that the calling thread's context has.
fn with_scopes<R>(py: Python<'_>, run: impl FnOnce(&[Arc<Route>]) -> R) -> PyResult<R> {
    let value = variable(py)?.call_method1(intern!(py, "get"), (py.None(),))?;
    let Ok(scopes) = value.cast::<ContextScopes>() else { return Ok(run(&[])) };
    Ok(run(&scopes.get().scopes))
}

fn set_scopes(py: Python<'_>, scopes: Vec<Arc<Route>>) -> PyResult<()> {
    let value = if scopes.is_empty() { py.None() } else { Py::new(py, ContextScopes { scopes })?.into_any() };
    variable(py)?.call_method1(intern!(py, "set"), (value,)).map(drop)
}

fn look(py: Python<'_>, may_follow: &dyn Fn(&Route) -> bool) -> Option<Arc<Route>> {
    let innermost = |scopes: &[Arc<Route>]| scopes.iter().rev().find(|scope| may_follow(scope)).cloned();
    with_exception_set_aside(py, || with_scopes(py, innermost).ok().flatten())
}

/// Finds the scope that a request is in by its context. A thread in which no task has entered a scope never
/// waits for the GIL here: without it, it is in none.
fn find(may_follow: &dyn Fn(&Route) -> bool) -> Option<Arc<Route>> {
    if HAS_ENTERED.try_with(Cell::get).unwrap_or(false) {
        Python::try_attach(|py| look(py, may_follow)).flatten()
    } else {
        if_attached(|py| look(py, may_follow)).flatten()
    }
}

/// Returns the identity of the running asyncio task; none outside of one.
pub(crate) fn current_task(py: Python<'_>) -> PyResult<Option<usize>> {
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
    pub(crate) fn new(py: Python<'_>, token: &PoolToken, followers: Followers) -> PyResult<Self> {
        let entered = Self(token.enter_context(followers)?);
        let mut scopes = open_scopes(py)?;
        scopes.push(Arc::clone(&entered.0));
        set_scopes(py, scopes)?;
        HAS_ENTERED.set(true);
        Ok(entered)
    }

    /// Ends the scope, and lets the calling thread's context forget those that have ended.
    pub(crate) fn leave(self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.leave_context());
        set_scopes(py, open_scopes(py)?)
    }
}

impl Drop for EnteredContext {
    fn drop(&mut self) {
        self.0.leave_context();
    }
}

fn open_scopes(py: Python<'_>) -> PyResult<Vec<Arc<Route>>> {
    with_scopes(py, |scopes| scopes.iter().filter(|scope| scope.is_open()).cloned().collect())
}

// The `with` blocks of one object that are entered, each by a thread or a task.

/// An argument of `__exit__` that makes no difference.
pub(crate) struct Ignored;

impl<'py> FromPyObject<'_, 'py> for Ignored {
    type Error = Infallible;

    fn extract(_argument: Borrowed<'_, 'py, PyAny>) -> Result<Self, Infallible> {
        Ok(Self)
    }
}

/// A `with` block that a thread has entered and not left.
struct WithBlock<T> {
    thread: ThreadNumber,
    /// The identity of the task that entered it; none outside of tasks.
    task: Option<usize>,
    /// The identity of the generator or coroutine that it is in, until that ends.
    generator: Option<usize>,
    entered: T,
}

/// The blocks of one object that threads have entered and not left. It may be entered again, also by another thread.
pub(crate) struct WithBlocks<T> {
    open: Mutex<Vec<WithBlock<T>>>,
}

impl<T> WithBlocks<T> {
    pub(crate) const fn new() -> Self {
        Self { open: Mutex::new(Vec::new()) }
    }

    /// Adds what the calling thread, or a task of it, entered.
    pub(crate) fn enter(&self, py: Python<'_>, task: Option<usize>, entered: T) {
        let (thread, generator) = (ThisThread::get().number(), calling_generator(py));
        lock(&self.open).push(WithBlock { thread, task, generator, entered });
    }

    /// Ends a block, and returns what that entered: the one of the generator that leaves it, which another thread or task may do
    /// that ends an abandoned one; else the one that the calling thread, or the task of it, entered last. A task may also end the
    /// thread's own blocks, and the thread, outside of tasks, those of its tasks.
    ///
    /// # Errors
    /// `InvalidValue` if it entered nothing that it has not left.
    pub(crate) fn leave(&self, py: Python<'_>, task: Option<usize>, name: &str) -> Result<T> {
        let (this, generator) = (ThisThread::get().number(), calling_generator(py));
        let mut open = lock(&self.open);
        let of_generator = generator.and_then(|_| open.iter().rposition(|block| block.generator == generator));
        let own = || open.iter().rposition(|block| block.thread == this && block.task == task);
        let around = || open.iter().rposition(|block| block.thread == this && (block.task.is_none() || task.is_none()));
        let (on, one) = match of_generator.or_else(own).or_else(around) {
            Some(last) => return Ok(open.remove(last).entered),
            None if open.iter().any(|block| block.thread == this) => ("in a task", "in one task"),
            None => ("on a thread", "on one thread"),
        };
        Err(Error::invalid_value(format!("{name} was left {on} that did not enter it; enter and leave it {one}")))
    }
}
