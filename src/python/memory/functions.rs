//! The C interface's addresses, for plugs that take them.

use pyo3::prelude::*;

use super::scope::token_of;
use crate::c_api::C_API;
use crate::memory::{self, DEVICE_MEM_HANDLER, PINNED_MEM_HANDLER};
use crate::python::ffi::dlpack;

#[doc = docstring!("CApi")]
#[pyclass(name = "CApi", module = "gpupool", frozen, get_all)]
#[derive(Debug)]
pub(in crate::python) struct PyCApi {
    #[doc = docstring!("CApi.malloc")]
    malloc: usize,
    #[doc = docstring!("CApi.free")]
    free: usize,
    #[doc = docstring!("CApi.cupy_malloc")]
    cupy_malloc: usize,
    #[doc = docstring!("CApi.cupy_free")]
    cupy_free: usize,
    #[doc = docstring!("CApi.handler_alloc")]
    handler_alloc: usize,
    #[doc = docstring!("CApi.handler_free")]
    handler_free: usize,
    #[doc = docstring!("CApi.handler")]
    handler: usize,
    #[doc = docstring!("CApi.pinned_handler")]
    pinned_handler: usize,
    #[doc = docstring!("CApi.capsule")]
    capsule: Py<PyAny>,
}

#[pymethods]
impl PyCApi {
    #[doc = docstring!("CApi.feed")]
    #[pyo3(signature = (pool = None))]
    fn feed(&self, pool: Option<&Bound<'_, PyAny>>) -> PyResult<(usize, usize)> {
        let token = pool.map(|pool| token_of(pool, "feed")).transpose()?;
        let (malloc, free) = memory::feed(token.as_ref())?;
        Ok((malloc as usize, free as usize))
    }

    #[doc = docstring!("CApi.bare_feed")]
    #[pyo3(signature = (pool = None))]
    fn bare_feed(&self, pool: Option<&Bound<'_, PyAny>>) -> PyResult<(usize, usize, usize)> {
        let token = pool.map(|pool| token_of(pool, "bare_feed")).transpose()?;
        let (allocate, free, empty_cache) = memory::bare_feed(token.as_ref())?;
        Ok((allocate as usize, free as usize, empty_cache as usize))
    }

    fn __repr__(&self) -> String {
        format!("<gpupool.CApi: addresses of C functions, malloc={:#x}, free={:#x}>", self.malloc, self.free)
    }
}

pub(in crate::python) fn c_api(py: Python<'_>) -> PyResult<PyCApi> {
    Ok(PyCApi {
        malloc: C_API.malloc as usize,
        free: C_API.free as usize,
        cupy_malloc: C_API.cupy_malloc as usize,
        cupy_free: C_API.cupy_free as usize,
        handler_alloc: C_API.handler_alloc as usize,
        handler_free: C_API.handler_free as usize,
        handler: (&raw const DEVICE_MEM_HANDLER).addr(),
        pinned_handler: (&raw const PINNED_MEM_HANDLER).addr(),
        capsule: dlpack::c_api_capsule(py)?.unbind(),
    })
}
