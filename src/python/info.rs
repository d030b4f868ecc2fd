//! What platforms and devices report, for `gpupool.info()`.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::device;
use crate::library::{
    CUBLAS, CUBLASLT, CUDNN, CUDSS, CUSOLVER, CUSPARSE, CUSPARSELT, CUSTATEVEC, CUTENSOR, CUTENSORNET, Library, Vendor,
};
use crate::runtime;

#[doc = docstring!("driver_version")]
#[pyfunction]
pub(super) fn driver_version(py: Python<'_>) -> PyResult<Option<(u32, u32)>> {
    Ok(device::get(py)?.driver_version())
}

#[doc = docstring!("device_info")]
#[pyfunction]
pub(super) fn device_info<'py>(py: Python<'py>, device: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let device = device::extract(py, device)?;
    let info = py.detach(|| runtime::device_info(device))?;
    let dict = PyDict::new(py);
    dict.set_item("name", info.name)?;
    dict.set_item("uuid", info.uuid)?;
    dict.set_item("compute_capability", info.compute_capability)?;
    dict.set_item("pci_bus_id", info.pci_bus_id)?;
    dict.set_item("is_mig", info.is_mig)?;
    dict.set_item("is_shareable", info.is_shareable)?;
    dict.set_item("is_rdma", info.is_rdma)?;
    dict.set_item("total_bytes", info.total_bytes)?;
    dict.set_item("free_bytes", info.free_bytes)?;
    Ok(dict)
}

#[doc = docstring!("runtimes_passed_over")]
#[pyfunction]
pub(super) fn runtimes_passed_over() -> Vec<(&'static str, String, bool)> {
    let all = runtime::passed_over().iter();
    all.map(|passed| (passed.kind.name(), passed.reason.clone(), passed.is_present)).collect()
}

#[doc = docstring!("cuda_builds")]
#[pyfunction]
pub(super) fn cuda_builds() -> Vec<(&'static str, Option<u32>, BTreeMap<u32, &'static str>)> {
    let vendors: [&'static Vendor; 10] =
        [&CUDNN, &CUBLAS, &CUBLASLT, &CUSOLVER, &CUSPARSE, &CUDSS, &CUSTATEVEC, &CUTENSORNET, &CUTENSOR, &CUSPARSELT];
    vendors.into_iter().map(|vendor| (vendor.name(), vendor.cuda(), vendor.packages())).collect()
}
