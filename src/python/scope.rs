//! `use_mem_pool`: a scope as a `with` block, and the tokens that take a pool to other threads.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::error::Error;
use crate::ids::Device;
use crate::memory::{EnteredRoute, Followers, PoolId, PoolToken};
use crate::process;
use crate::python::arguments::wrong_objects;
use crate::python::context::{EnteredContext, Ignored, WithBlocks, current_task};
use crate::python::device;
use crate::python::mem_pool::PyMemPool;

#[doc = docstring!("PoolToken")]
#[pyclass(name = "PoolToken", module = "gpupool.typing", frozen, weakref)]
pub(crate) struct PyPoolToken(pub(crate) PoolToken);

#[pymethods]
impl PyPoolToken {
    #[doc = docstring!("PoolToken.enter")]
    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        wake_for_use(py, &self.0)?;
        self.0.enter_scope(Followers::Thread)?.stay();
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("gpupool.typing.PoolToken(id={}, device={})", self.0.id(), device::shown(self.0.device().ordinal()))
    }
}

members! { PyPoolToken = "PoolToken" of this, py;
    get id: PoolId = this.0.id();
    get device: Device = this.0.device();
}

/// Wakes a pool that sleeps for another process before it is entered, which would do so with the GIL.
pub(crate) fn wake_for_use(py: Python<'_>, token: &PoolToken) -> PyResult<()> {
    if token.is_taken() {
        py.detach(|| token.wake_for_use())?;
    }
    Ok(())
}

/// What a `with` block entered: a scope of its thread, or of its asyncio task.
enum Entered {
    Thread(EnteredRoute),
    Context(EnteredContext),
}

/// The scopes of one object's `with` blocks. It may be entered again, also in another thread or task.
pub(crate) struct ScopeBlocks(WithBlocks<Entered>);

impl ScopeBlocks {
    pub(crate) const fn new() -> Self {
        Self(WithBlocks::new())
    }

    pub(crate) fn enter(&self, py: Python<'_>, token: &PoolToken, followers: Followers) -> PyResult<()> {
        wake_for_use(py, token)?;
        match current_task(py)? {
            Some(task) => {
                let entered = EnteredContext::new(py, token, followers)?;
                self.0.enter(py, Some(task), Entered::Context(entered));
            }
            None => self.0.enter(py, None, Entered::Thread(token.enter_scope(followers)?)),
        }
        Ok(())
    }

    /// What `__exit__` does; nothing in a forked child.
    pub(crate) fn leave(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        if process::is_forked() {
            return Ok(false);
        }
        match self.0.leave(py, current_task(py)?, name)? {
            Entered::Thread(entered) => py.detach(|| drop(entered)),
            Entered::Context(entered) => entered.leave(py)?,
        }
        Ok(false)
    }
}

#[doc = docstring!("PoolScope")]
#[pyclass(name = "PoolScope", module = "gpupool.typing", frozen, weakref)]
pub(crate) struct PyPoolScope {
    pool: Py<PyAny>,
    token: PoolToken,
    followers: Followers,
    blocks: ScopeBlocks,
}

/// What a `MemPool` or its token names, as an argument of this function.
pub(crate) fn token_of(pool: &Bound<'_, PyAny>, function: &str) -> PyResult<PoolToken> {
    process::refuse_forked()?;
    if let Ok(pool) = pool.cast::<PyMemPool>() {
        Ok(pool.get().pool_token()?)
    } else if let Ok(token) = pool.cast::<PyPoolToken>() {
        Ok(token.get().0.clone())
    } else {
        Err(wrong_objects([pool], |[pool]| format!("{function} takes a MemPool or its token(), not {pool}")).into())
    }
}

#[doc = docstring!("use_mem_pool")]
#[pyfunction(signature = (pool, device = None, *, all_threads = false))]
pub(crate) fn use_mem_pool(
    pool: &Bound<'_, PyAny>,
    device: Option<Device>,
    all_threads: bool,
) -> PyResult<PyPoolScope> {
    let token = token_of(pool, "use_mem_pool")?;
    if let Some(device) = device
        && device != token.device()
    {
        let (id, own) = (token.id(), token.device());
        return Err(
            Error::invalid_value(format!("pool {id} is of {own}, not of {device}: leave out the device")).into()
        );
    }
    let followers = if all_threads { Followers::AllThreads } else { Followers::Thread };
    Ok(PyPoolScope { pool: pool.clone().unbind(), token, followers, blocks: ScopeBlocks::new() })
}

#[pymethods]
impl PyPoolScope {
    #[doc = docstring!("PoolScope.__enter__")]
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        process::refuse_forked()?;
        self.blocks.enter(py, &self.token, self.followers)?;
        Ok(self.pool.clone_ref(py))
    }

    #[doc = docstring!("PoolScope.__exit__")]
    fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
        self.blocks.leave(py, "use_mem_pool")
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pool)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let all_threads = if self.followers == Followers::AllThreads { ", all_threads=True" } else { "" };
        Ok(format!("gpupool.use_mem_pool({}{all_threads})", self.pool.bind(py).repr()?))
    }
}
