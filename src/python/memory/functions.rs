//! The C interface's addresses, for plugs that take them.

use pyo3::prelude::*;

use crate::memory::{C_API, DEVICE_MEM_HANDLER, dlpack};

#[pyclass(name = "CApi", module = "gpupool", frozen, get_all)]
#[derive(Debug)]
pub(in crate::python) struct PyCApi {
    malloc: usize,
    free: usize,
    cupy_malloc: usize,
    cupy_free: usize,
    handler_alloc: usize,
    handler_free: usize,
    handler: usize,
    capsule: Py<PyAny>,
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
        capsule: dlpack::c_api_capsule(py)?.unbind(),
    })
}
