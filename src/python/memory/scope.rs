//! `use_mem_pool`: a scope as a `with` block, and the tokens that take a pool to other threads.

use pyo3::prelude::*;

use super::mem_pool::PyMemPool;
use super::{Id, pair};
use crate::error::Error;
use crate::memory::{EnteredScope, PoolToken};
use crate::process;
use crate::python::with_blocks::WithBlocks;

#[pyclass(name = "PoolToken", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PyPoolToken(PoolToken);

impl From<PoolToken> for PyPoolToken {
    fn from(token: PoolToken) -> Self {
        Self(token)
    }
}

#[pymethods]
impl PyPoolToken {
    #[getter]
    fn id(&self) -> Id {
        pair(self.0.id())
    }

    #[getter]
    fn device(&self) -> usize {
        self.0.device().ordinal()
    }
}

/// A pool that the thread's allocations go to for a `with` block. One object may be entered again, also by another thread.
#[pyclass(name = "PoolScope", module = "gpupool", frozen)]
#[derive(Debug)]
pub(in crate::python) struct PyPoolScope {
    pool: Py<PyAny>,
    token: PoolToken,
    blocks: WithBlocks<EnteredScope>,
}

/// What a `MemPool` or its token names, as an argument of this function.
pub(in crate::python) fn token_of(pool: &Bound<'_, PyAny>, function: &str) -> PyResult<PoolToken> {
    process::refuse_forked()?;
    if let Ok(pool) = pool.cast::<PyMemPool>() {
        Ok(pool.get().token())
    } else if let Ok(token) = pool.cast::<PyPoolToken>() {
        Ok(token.get().0.clone())
    } else {
        Err(Error::invalid_value(format!("{function} takes a MemPool or its token(), not {pool}")).into())
    }
}

/// Routes this thread's allocations into a pool for a `with` block.
#[pyfunction]
pub(in crate::python) fn use_mem_pool(pool: &Bound<'_, PyAny>) -> PyResult<PyPoolScope> {
    let token = token_of(pool, "use_mem_pool")?;
    Ok(PyPoolScope { pool: pool.clone().unbind(), token, blocks: WithBlocks::new() })
}

#[pymethods]
impl PyPoolScope {
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        process::refuse_forked()?;
        self.blocks.enter(self.token.enter_scope()?);
        Ok(self.pool.clone_ref(py))
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if process::is_forked() {
            return Ok(false);
        }
        let entered = self.blocks.leave("use_mem_pool")?;
        py.detach(|| drop(entered));
        Ok(false)
    }
}
