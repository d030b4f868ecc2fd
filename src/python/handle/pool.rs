//! `HandlePool`: the pools of gpupool's libraries, and a user's own.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::callbacks::CallbackLibrary;
use super::lease::PyLease;
use super::stats::PyHandleStats;
use crate::error::OneLine;
use crate::handle::{Claim, HandleAttempt, HandlePool, Unfinished};
use crate::ids::Device;
use crate::library::{Origin, Version};
use crate::python::memory::{PyPoolToken, token_of};
use crate::python::waiting::Timeout;
use crate::python::waiting::interruptible;
use crate::python::whole::{Limit, Whole, number_of, refuse_bool, wrong_argument};
use crate::python::{device, facts, stream};
use crate::runtime;
use crate::sync::Interruption;

#[doc = docstring!("HandlePool")]
#[pyclass(name = "HandlePool", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(in crate::python) struct PyHandlePool(HandlePool);

impl From<HandlePool> for PyHandlePool {
    fn from(pool: HandlePool) -> Self {
        Self(pool)
    }
}

/// Does what is left of a request, without the GIL, and returns what is made of what it gets.
fn finish<T: Claim, R: Send>(
    py: Python<'_>,
    left: Unfinished<'_, T>,
    timeout: Option<Duration>,
    made: impl FnOnce(T) -> R + Send,
) -> PyResult<R> {
    if left.must_wait() {
        return interruptible(py, |interruption| left.finish(timeout, interruption).map(made));
    }
    Ok(py.detach(|| left.finish(timeout, Interruption::default()).map(made))?)
}

#[pymethods]
impl PyHandlePool {
    #[new]
    #[pyo3(signature = (name, create, destroy, set_stream = None))]
    fn new(
        name: String,
        create: &Bound<'_, PyAny>,
        destroy: &Bound<'_, PyAny>,
        set_stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self(HandlePool::new(CallbackLibrary::new(name, create, destroy, set_stream)?)?))
    }

    #[doc = docstring!("HandlePool.handle")]
    #[pyo3(signature = (stream = None, device = None))]
    fn handle(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let stream = stream::resolve(py, stream, device)?;
        // To give the GIL up and get it back takes longer than to take an idle handle.
        match self.0.try_handle(&stream)? {
            HandleAttempt::Ready(handle) => Ok(handle.as_ptr().addr()),
            HandleAttempt::Unfinished(left) => finish(py, left, None, |handle| handle.as_ptr().addr()),
        }
    }

    #[doc = docstring!("HandlePool.lease")]
    #[pyo3(signature = (stream = None, device = None, timeout = None))]
    fn lease(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
        timeout: Option<Timeout>,
    ) -> PyResult<PyLease> {
        let stream = stream::resolve(py, stream, device)?;
        let lease = match self.0.try_lease(&stream)? {
            HandleAttempt::Ready(lease) => lease,
            HandleAttempt::Unfinished(left) => finish(py, left, timeout.map(|timeout| timeout.0), |lease| lease)?,
        };
        Ok(PyLease::new(self.0.name(), lease))
    }

    #[doc = docstring!("HandlePool.limit")]
    #[getter]
    fn limit(&self) -> Option<usize> {
        self.0.limit()
    }

    #[setter]
    fn set_limit(&self, limit: Option<Whole<Limit>>) -> PyResult<()> {
        Ok(self.0.set_limit(limit.map(|limit| usize::try_from(limit.0).unwrap_or(usize::MAX)))?)
    }

    #[doc = docstring!("HandlePool.set_mem_pool")]
    #[pyo3(signature = (pool, device = None))]
    fn set_mem_pool(
        &self,
        py: Python<'_>,
        pool: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let pool = pool.map(|pool| token_of(pool, "set_mem_pool")).transpose()?;
        let devices = match (device, &pool) {
            (Some(device), _) => vec![device::extract(py, device)?],
            (None, Some(pool)) => vec![pool.device()],
            (None, None) => (0..py.detach(runtime::get)?.device_count()).map(Device::from_ordinal).collect(),
        };
        let set = |device| self.0.set_mem_pool(device, pool.as_ref());
        // The last use of a former pool may end here, and its allocator be called.
        Ok(py.detach(|| devices.into_iter().try_for_each(set))?)
    }

    #[doc = docstring!("HandlePool.get_mem_pool")]
    #[pyo3(signature = (device = None))]
    fn get_mem_pool(&self, py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<Option<PyPoolToken>> {
        let device = device::extract_or_current(py, device)?;
        Ok(py.detach(|| self.0.mem_pool(device))?.map(PyPoolToken::from))
    }

    #[doc = docstring!("HandlePool.warm")]
    #[pyo3(signature = (count, device = None, background = false))]
    fn warm(
        &self,
        py: Python<'_>,
        count: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
        background: bool,
    ) -> PyResult<usize> {
        let wrong = || wrong_argument("count", count, "a whole number of handles from 0 to 2**63 - 1");
        let number = usize::try_from(number_of::<i64>(count.as_borrowed(), wrong)?).map_err(|_| wrong())?;
        refuse_bool(count, number as u64, wrong)?;
        let count = number;
        let device = device::extract_or_current(py, device)?;
        if background {
            // The handles show up in the statistics, and a failure there too.
            drop(self.0.warm_in_background(count, device)?);
            return Ok(0);
        }
        Ok(py.detach(|| self.0.warm(count, device))?)
    }

    #[doc = docstring!("HandlePool.trim")]
    #[pyo3(signature = (device = None))]
    fn trim(&self, py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let device = device.map(|device| device::extract(py, device)).transpose()?;
        Ok(py.detach(|| self.0.trim(device))?)
    }

    #[doc = docstring!("HandlePool.close")]
    fn close(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.0.close())?)
    }

    #[doc = docstring!("HandlePool.stats")]
    #[pyo3(signature = (device = None))]
    fn stats(&self, py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyHandleStats> {
        let device = device.map(|device| device::extract(py, device)).transpose()?;
        Ok(py.detach(|| self.0.stats(device))?.into())
    }

    #[doc = docstring!("HandlePool.reset_peak_stats")]
    #[pyo3(signature = (device = None))]
    fn reset_peak_stats(&self, py: Python<'_>, device: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let device = device.map(|device| device::extract(py, device)).transpose()?;
        Ok(py.detach(|| self.0.reset_peak_stats(device))?)
    }

    #[doc = docstring!("HandlePool.available")]
    #[getter]
    fn available(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.is_available())
    }

    #[doc = docstring!("HandlePool.version")]
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<Option<Version>> {
        Ok(py.detach(|| self.0.version())?)
    }

    #[doc = docstring!("HandlePool.path")]
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let path = py.detach(|| self.0.path())?;
        Ok(path.map(|path| path.to_string_lossy().into_owned()))
    }

    #[doc = docstring!("HandlePool.origin")]
    #[getter]
    fn origin(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(py.detach(|| self.0.origin())?.map(Origin::name))
    }

    #[doc = docstring!("HandlePool.loaded")]
    #[getter]
    fn loaded(&self) -> bool {
        self.0.is_loaded()
    }

    #[doc = docstring!("HandlePool.name")]
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        let closed = if self.0.is_closed() { " (closed)" } else { "" };
        format!("<gpupool.HandlePool {}{closed}>", OneLine(self.0.name()))
    }

    #[doc = docstring!("HandlePool._repr_html_")]
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let (known, is_loaded) = (PyDict::new(py), self.loaded());
        known.set_item("name", self.name())?;
        if let Some(limit) = self.limit() {
            known.set_item("handle_limit", limit)?;
        }
        // To show a pool loads no library. In a forked child these fail, and the name is all that is shown.
        if is_loaded && let Ok(Some((major, minor, patch))) = self.version(py) {
            known.set_item("version", format!("{major}.{minor}.{patch}"))?;
        }
        if is_loaded && let (Ok(Some(path)), Ok(Some(origin))) = (self.path(py), self.origin(py)) {
            known.set_item("path", path)?;
            known.set_item("origin", origin)?;
        }
        if let Ok(stats) = self.stats(py, None) {
            known.update(stats.as_dict(py)?.as_mapping())?;
        }
        let states = [("not loaded", !is_loaded), ("closed", self.0.is_closed())];
        let states = states.into_iter().filter_map(|(state, is_so)| is_so.then_some(state)).collect();
        facts::html(py, "gpupool.HandlePool", &known, states)
    }
}
