//! `HandlePool`: the pools of gpupool's libraries, and a user's own.

use std::time::Duration;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyInt};

use crate::error::{Error, OneLine, Result, StatusKind};
use crate::handle::{self, HandlePool, HandleStats, Lease, handle_counters};
use crate::ids::Device;
use crate::library::functions::{Create, Destroy, SetStream};
use crate::library::{Library, Origin, RawHandle, Version, simulated};
use crate::python::arguments::{Limit, Timeout, Whole, number_of, wrong_argument};
use crate::python::context::Ignored;
use crate::python::error::{call_asked, interruptible};
use crate::python::ffi::address::PythonAddress;
use crate::python::kept::UntilEnd;
use crate::python::scope::{PyPoolToken, token_of};
use crate::python::{device, stream, values};
use crate::runtime::{self, Stream};

#[doc = docstring!("HandlePool")]
#[pyclass(name = "HandlePool", module = "gpupool", frozen, weakref)]
pub(crate) struct PyHandlePool(pub(crate) HandlePool);

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
        if name.is_empty() {
            return Err(Error::invalid_value("a pool needs a name, for its errors and statistics").into());
        }
        let create = Function::new("create", create, PythonAddress::create)?;
        let destroy = Function::new("destroy", destroy, PythonAddress::destroy)?;
        let set_stream = set_stream.map(|given| Function::new("set_stream", given, PythonAddress::set_stream));
        let set_stream = set_stream.transpose()?;
        Ok(Self(HandlePool::new(CallbackLibrary { name, create, destroy, set_stream })?))
    }

    #[doc = docstring!("HandlePool.handle")]
    #[pyo3(signature = (stream = None, device = None))]
    fn handle(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>, device: Option<Device>) -> PyResult<usize> {
        let stream = stream::resolve(py, stream, device)?;
        // To give the GIL up and get it back takes longer than to take an idle handle.
        if let Some(handle) = self.0.handle_at_once(&stream) {
            return Ok(handle?.as_ptr().addr());
        }
        interruptible(py, |interruption| self.0.handle_with(&stream, interruption).map(|handle| handle.as_ptr().addr()))
    }

    #[doc = docstring!("HandlePool.lease")]
    #[pyo3(signature = (stream = None, device = None, timeout = None))]
    fn lease(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        device: Option<Device>,
        timeout: Option<Timeout>,
    ) -> PyResult<PyLease> {
        let stream = stream::resolve(py, stream, device)?;
        let lease = match self.0.lease_at_once(&stream) {
            Some(lease) => lease?,
            None => interruptible(py, |interruption| {
                self.0.lease_with(&stream, timeout.map(|timeout| timeout.0), interruption)
            })?,
        };
        let (library, address, device) = (self.0.name(), lease.as_ptr().addr(), lease.device());
        Ok(PyLease { library, address, device, lease: UntilEnd::new(Some(lease)) })
    }

    #[setter]
    fn set_limit(&self, limit: Option<Whole<Limit>>) -> PyResult<()> {
        Ok(self.0.set_limit(limit.map(|limit| usize::try_from(limit.0).unwrap_or(usize::MAX)))?)
    }

    #[doc = docstring!("HandlePool.set_mem_pool")]
    #[pyo3(signature = (pool, device = None))]
    fn set_mem_pool(&self, py: Python<'_>, pool: Option<&Bound<'_, PyAny>>, device: Option<Device>) -> PyResult<()> {
        let pool = pool.map(|pool| token_of(pool, "set_mem_pool")).transpose()?;
        let devices = match (device, &pool) {
            (Some(device), _) => vec![device],
            (None, Some(pool)) => vec![pool.device()],
            (None, None) => (0..py.detach(runtime::get)?.device_count()).map(Device::from_ordinal).collect(),
        };
        let set = |device| self.0.set_mem_pool(device, pool.as_ref());
        // The last use of a former pool may end here, and its allocator be called.
        Ok(py.detach(|| devices.into_iter().try_for_each(set))?)
    }

    #[doc = docstring!("HandlePool.warm")]
    #[pyo3(signature = (count, device = None, background = false))]
    fn warm(&self, count: &Bound<'_, PyAny>, device: Option<Device>, background: bool) -> PyResult<usize> {
        let py = count.py();
        let wrong = || wrong_argument("count", count, "a whole number of handles from 0 to 2**63 - 1");
        let number = usize::try_from(number_of::<i64>(count.as_borrowed(), wrong)?).map_err(|_| wrong())?;
        let device = device::or_current(py, device)?;
        if background {
            // The handles show up in the statistics, and a failure there too.
            drop(self.0.warm_in_background(number, device)?);
            return Ok(0);
        }
        Ok(py.detach(|| self.0.warm(number, device))?)
    }

    fn __repr__(&self) -> String {
        let closed = if self.0.is_closed() { " (closed)" } else { "" };
        format!("<gpupool.HandlePool {}{closed}>", OneLine(self.0.name()))
    }

    #[doc = docstring!("HandlePool._repr_html_")]
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let (known, is_loaded) = (PyDict::new(py), self.0.is_loaded());
        known.set_item("name", self.0.name())?;
        if let Some(limit) = self.0.limit() {
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
        values::html(py, "gpupool.HandlePool", &known, states)
    }
}

members! { PyHandlePool = "HandlePool" of this, py;
    get limit: Option<usize> = this.0.limit();
    get available: bool = py.detach(|| this.0.is_available());
    get version: Result<Option<Version>> = py.detach(|| this.0.version());
    get origin: Result<Option<&'static str>> = Ok(py.detach(|| this.0.origin())?.map(Origin::name));
    get path: Result<Option<String>> =
        Ok(py.detach(|| this.0.path())?.map(|path| path.to_string_lossy().into_owned()));
    get loaded: bool = this.0.is_loaded();
    get name: &'static str = this.0.name();

    fn get_mem_pool(device: Option<Device> = None) -> PyResult<Option<PyPoolToken>> =
        Ok(device::detached(py, device, |device| this.0.mem_pool(device))?.map(PyPoolToken));
    fn trim(device: Option<Device> = None) -> Result<usize> = py.detach(|| this.0.trim(device));
    fn close() -> Result<usize> = py.detach(|| this.0.close());
    fn stats(device: Option<Device> = None) -> PyResult<PyHandleStats> =
        Ok(py.detach(|| this.0.stats(device))?.into());
    fn reset_peak_stats(device: Option<Device> = None) -> Result<()> = py.detach(|| this.0.reset_peak_stats(device));
}

// A handle for a `with` block.
#[doc = docstring!("Lease")]
#[pyclass(name = "Lease", module = "gpupool.typing", frozen, weakref)]
pub(crate) struct PyLease {
    library: &'static str,
    address: usize,
    device: Device,
    lease: UntilEnd<Lease>,
}

#[pymethods]
impl PyLease {
    fn __index__(&self) -> Result<usize> {
        let over = || {
            let library = self.library;
            Error::invalid_value(format!(
                "this lease of a {library} handle is over; use the handle inside the with block"
            ))
        };
        self.lease.read(|_| self.address)?.ok_or_else(over)
    }

    fn __int__(&self) -> Result<usize> {
        self.__index__()
    }

    #[doc = docstring!("Lease.discard")]
    fn discard(&self, py: Python<'_>) -> Result<()> {
        if let Some(lease) = self.lease.end()? {
            py.detach(|| lease.discard());
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        let (library, device) = (OneLine(self.library), device::shown(self.device.ordinal()));
        match self.lease.is_over() {
            Ok(false) => format!("<gpupool.typing.Lease {library} {:#x}, device={device}>", self.address),
            Ok(true) => format!("<gpupool.typing.Lease {library} (over)>"),
            Err(_) => format!("<gpupool.typing.Lease {library} (of the parent process)>"),
        }
    }
}

members! { PyLease = "Lease" of this, py;
    get device: Device = this.device;
    get _as_parameter_: PyResult<Py<PyAny>> =
        Ok(py.import(intern!(py, "ctypes"))?.getattr(intern!(py, "c_void_p"))?.call1((this.__index__()?,))?.unbind());

    fn release() -> Result<()> = this.lease.end().map(drop);
}

ends_with_block! { PyLease = "Lease" if __index__ by release() }

/// A function of a user's own library: a Python callable, or a C function.
enum Function<C> {
    Callable(Py<PyAny>),
    C(C),
}

impl<C> Function<C> {
    fn new(name: &str, function: &Bound<'_, PyAny>, at: impl FnOnce(PythonAddress) -> Result<C>) -> PyResult<Self> {
        if function.is_exact_instance_of::<PyInt>() {
            let wrong = || Error::invalid_value(format!("{name}: {function} is not the address of a C function"));
            let address = function.extract().map_err(|_| wrong())?;
            return Ok(Function::C(at(address)?));
        }
        if function.is_callable() {
            return Ok(Function::Callable(function.clone().unbind()));
        }
        Err(wrong_argument(name, function, "a callable, or the address of a C function as an int").into())
    }
}

/// The library that the three functions make.
struct CallbackLibrary {
    name: String,
    create: Function<Create>,
    destroy: Function<Destroy>,
    set_stream: Option<Function<SetStream>>,
}

impl CallbackLibrary {
    /// Runs a callable, whose exception is the cause of a refusal.
    fn call<R>(&self, function: &str, call: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R> {
        call_asked(call, |status, cause| {
            Error::refused(&self.name, function, status, -1, StatusKind::Other)
                .map_library(|refused| refused.cause = cause)
        })
    }
}

impl Library for CallbackLibrary {
    fn is_of_program(&self) -> bool {
        true
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        match &self.create {
            Function::C(create) => create.call(&self.name),
            Function::Callable(create) => {
                let created: PythonAddress = self.call("create", |py| create.call0(py)?.extract(py))?;
                created.created_handle(&self.name)
            }
        }
    }

    fn destroy(&self, handle: RawHandle) -> Result<()> {
        match &self.destroy {
            Function::C(destroy) => destroy.call(&self.name, handle),
            Function::Callable(destroy) => {
                self.call("destroy", |py| destroy.call1(py, (handle.as_ptr().addr(),)).map(drop))
            }
        }
    }

    fn set_stream(&self, handle: &RawHandle, stream: &Stream) -> Result<()> {
        match &self.set_stream {
            None => Ok(()),
            Some(Function::C(set_stream)) => set_stream.call(&self.name, handle, stream.raw()),
            Some(Function::Callable(set_stream)) => self.call("set_stream", |py| {
                set_stream.call1(py, (handle.as_ptr().addr(), stream.raw().address())).map(drop)
            }),
        }
    }
}

handle_counters! { counts_class! { PyHandleStats = "HandleStats" from stats: HandleStats { stats } } }

#[doc = docstring!("handle_stats")]
#[pyfunction(signature = (device = None))]
pub(crate) fn handle_stats<'py>(py: Python<'py>, device: Option<Device>) -> PyResult<Bound<'py, PyDict>> {
    let all = py.detach(|| handle::handle_stats(device))?;
    all.into_iter().map(|(name, stats)| (name, PyHandleStats::from(stats))).into_py_dict(py)
}

#[doc = docstring!("simulate_costly_handles")]
#[pyfunction]
pub(crate) fn simulate_costly_handles(create_seconds: f64, nbytes: u64) -> PyResult<()> {
    let cost = Duration::try_from_secs_f64(create_seconds).map_err(|error| Error::invalid_value(error.to_string()))?;
    simulated::set_create_cost(cost);
    simulated::set_handle_bytes(nbytes);
    Ok(())
}
