//! Device memory for Python, one file a concept.

use std::sync::{Arc, Mutex, OnceLock};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};

use crate::error::{Cause, Error, OWN_ALLOCATOR, Result, StatusKind};
use crate::memory::{
    self, Backup, EnteredCapture, GraphMemory, MemPool, PoolId, PoolToken, SegmentSource, TorchAllocator,
};
use crate::observe::recording::{Purpose, hold_stack};
use crate::process;
use crate::python::arguments::{
    Limit, Nbytes, PageBytes, PoolIdPart, Reserve, Whole, type_error, wrong_argument, wrong_objects,
};
use crate::python::buffer::PyDeviceBuffer;
use crate::python::callbacks::{PySegmentCallback, on_segment};
use crate::python::context::Ignored;
use crate::python::device::PyBackup;
use crate::python::error::{call_unasked, interrupted_or};
use crate::python::ffi::address::{Keeping, PythonAddress, PythonSource, Trusted, torch_allocator};
use crate::python::kept::{Kept, KeptObjects};
use crate::python::range::PyMemoryRange;
use crate::python::recording::segments;
use crate::python::scope::{PyPoolToken, ScopeBlocks, wake_for_use};
use crate::python::stats::PyPoolStats;
use crate::python::values::Facts;
use crate::python::{device, stream};
use crate::runtime::Stream;
use crate::sync::{ThisThread, ThreadNumber, lock};

/// An id as Python sees it.
pub(crate) type Id = (u64, u64);

pub(crate) const fn pair(id: PoolId) -> Id {
    (id.0, id.1)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct IdArgument(pub(crate) PoolId);

impl<'py> FromPyObject<'_, 'py> for IdArgument {
    type Error = PyErr;

    fn extract(id: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // A tuple of another length is a plain ValueError.
        if id.cast::<PyTuple>().is_ok_and(|pair| pair.len() != 2) {
            return Err(wrong_objects([&id], |[id]| format!("a pool's id is a pair of numbers, not {id}")).into());
        }
        if id.cast::<PyTuple>().is_err() {
            let wrong = wrong_argument(
                "pool_id",
                &id,
                "a pool's id, a pair of numbers: that of graph_pool_handle() or of a MemPool",
            );
            return Err(type_error(wrong));
        }
        let (first, second): (Whole<PoolIdPart>, Whole<PoolIdPart>) = id.extract()?;
        Ok(Self(PoolId(first.0, second.0)))
    }
}

// `MemPool`, and pools by their ids.

#[doc = docstring!("MemPool")]
#[pyclass(name = "MemPool", module = "gpupool", frozen, subclass, dict, weakref)]
#[derive(Debug)]
pub(crate) struct PyMemPool {
    /// False for an object that has no fields yet, which the collector of garbage may find all the same: see [`Self::new`].
    has_fields: bool,
    made: OnceLock<MadePool>,
    blocks: ScopeBlocks,
    /// Its allocator's functions and its callbacks, which its memory needs as long as there is some.
    kept: KeptObjects,
}

/// What `__init__` makes.
#[derive(Debug)]
struct MadePool {
    pool: MemPool,
    allocator: Option<Py<PyAny>>,
    /// Whether `MemPool.__del__` ends it before the collector clears what it calls; not where a class has one of its own.
    is_ended_first: bool,
}

impl PyMemPool {
    /// Returns what is told of a pool; None if it was not made.
    fn facts(slf: &Bound<'_, Self>) -> PyResult<Option<Facts>> {
        let Some(MadePool { pool, .. }) = slf.get().made.get() else {
            return Ok(None);
        };
        let mut facts = Facts::of(slf.get_type().fully_qualified_name()?.to_string());
        facts.add("id", format_args!("{:?}", pair(pool.id())));
        facts.add("device", device::shown(pool.device().ordinal()));
        if let Some(limit) = pool.limit() {
            facts.add("limit", limit);
        }
        // A forked child has none.
        if let Some(stats) = slf.py().detach(|| pool.stats().ok()) {
            facts.add("live_bytes", stats.live_bytes);
            facts.add("reserved_bytes", stats.reserved_bytes);
        }
        if pool.is_closed() {
            facts.state("closed");
        }
        if pool.is_asleep() {
            facts.state("asleep");
        }
        Ok(Some(facts))
    }

    fn made(&self) -> PyResult<&MadePool> {
        let unmade =
            || Error::invalid_value("this MemPool was not made: call MemPool.__init__ first, as super().__init__()");
        Ok(self.made.get().ok_or_else(unmade)?)
    }

    fn pool(&self) -> PyResult<&MemPool> {
        Ok(&self.made()?.pool)
    }

    pub(crate) fn token(&self) -> PyResult<memory::PoolToken> {
        Ok(self.pool()?.token())
    }
}

#[pymethods]
impl PyMemPool {
    // A subclass's `__init__` takes what it likes; the text is of this one's.
    #[new]
    #[pyo3(
        signature = (*_arguments, **_named),
        text_signature = "(allocator=None, use_on_oom=False, no_split=False, limit=None, device=None, segments=False, *, \
                          is_user_created=True, reserve=0, sleeps_for_others=False, wakes_on_use=False)"
    )]
    fn new(py: Python<'_>, _arguments: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) -> Self {
        // Python 3.11 makes the object's dict while the object has no fields yet, and may collect garbage for it, which
        // could find the object: unless it has a dict at hand that was given back.
        drop(PyDict::new(py));
        Self { has_fields: true, made: OnceLock::new(), blocks: ScopeBlocks::new(), kept: KeptObjects::default() }
    }

    #[pyo3(signature = (
        allocator = None, use_on_oom = false, no_split = false, limit = None, device = None, segments = false, *,
        is_user_created = true, reserve = Whole::new(0), sleeps_for_others = false, wakes_on_use = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is one of Python's, most with a default")]
    fn __init__(
        slf: &Bound<'_, Self>,
        allocator: Option<&Bound<'_, PyAny>>,
        use_on_oom: bool,
        no_split: bool,
        limit: Option<Whole<Limit>>,
        device: Option<&Bound<'_, PyAny>>,
        segments: bool,
        is_user_created: bool,
        reserve: Whole<Reserve>,
        sleeps_for_others: bool,
        wakes_on_use: bool,
    ) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let device = device::extract_or_current(py, device)?;
        let mut builder = MemPool::builder()
            .device(device)
            .use_on_oom(use_on_oom)
            .no_split(no_split)
            .segments(segments)
            .user_created(is_user_created)
            .reserve(reserve.0)
            .sleeps_for_others(sleeps_for_others)
            .wakes_on_use(wakes_on_use);
        if let Some(limit) = limit {
            builder = builder.limit(limit.0);
        }
        if let Some(allocator) = allocator {
            builder = builder.allocator(source(allocator, &this.kept)?);
        }
        let pool = py.detach(|| builder.build())?;
        let finalizer = intern!(py, "__del__");
        let is_ended_first = slf.get_type().getattr(finalizer)?.is(&py.get_type::<Self>().getattr(finalizer)?);
        let allocator = allocator.map(|allocator| allocator.clone().unbind());
        let made = MadePool { pool, allocator, is_ended_first };
        // What is not used of it goes outside of the lock.
        this.made.set(made).map_err(|_| Error::invalid_value("this MemPool was made before; make another").into())
    }

    #[doc = docstring!("MemPool.id")]
    #[getter]
    fn id(&self) -> PyResult<Id> {
        Ok(pair(self.pool()?.id()))
    }

    #[doc = docstring!("MemPool.device")]
    #[getter]
    fn device(&self) -> PyResult<usize> {
        Ok(self.pool()?.device().ordinal())
    }

    #[doc = docstring!("MemPool.allocator")]
    #[getter]
    fn allocator(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        process::refuse_forked()?;
        Ok(self.made()?.allocator.as_ref().map(|allocator| allocator.clone_ref(py)))
    }

    #[doc = docstring!("MemPool.use_on_oom")]
    #[getter]
    fn use_on_oom(&self) -> PyResult<bool> {
        Ok(self.pool()?.use_on_oom())
    }

    #[doc = docstring!("MemPool.no_split")]
    #[getter]
    fn no_split(&self) -> PyResult<bool> {
        Ok(self.pool()?.no_split())
    }

    #[doc = docstring!("MemPool.sleeps_for_others")]
    #[getter]
    fn sleeps_for_others(&self) -> PyResult<bool> {
        Ok(self.pool()?.sleeps_for_others())
    }

    #[doc = docstring!("MemPool.wakes_on_use")]
    #[getter]
    fn wakes_on_use(&self) -> PyResult<bool> {
        Ok(self.pool()?.wakes_on_use())
    }

    #[doc = docstring!("MemPool.reserve")]
    #[getter]
    fn reserve(&self) -> PyResult<u64> {
        Ok(self.pool()?.reserve())
    }

    #[doc = docstring!("MemPool.use_count")]
    fn use_count(&self) -> PyResult<u32> {
        process::refuse_forked()?;
        Ok(self.pool()?.use_count())
    }

    #[doc = docstring!("MemPool.limit")]
    #[getter]
    fn limit(&self) -> PyResult<Option<u64>> {
        Ok(self.pool()?.limit())
    }

    #[setter]
    fn set_limit(&self, limit: Option<Whole<Limit>>) -> PyResult<()> {
        process::refuse_forked()?;
        self.pool()?.set_limit(limit.map(|limit| limit.0));
        Ok(())
    }

    #[doc = docstring!("MemPool.stats")]
    fn stats(&self, py: Python<'_>) -> PyResult<PyPoolStats> {
        let pool = self.pool()?;
        Ok(py.detach(|| pool.stats())?.into())
    }

    #[doc = docstring!("MemPool.reset_peak_stats")]
    fn reset_peak_stats(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool()?;
        Ok(py.detach(|| pool.reset_peak_stats())?)
    }

    #[doc = docstring!("MemPool.trim")]
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Free);
        Ok(py.detach(|| pool.trim())?)
    }

    #[doc = docstring!("MemPool.close")]
    fn close(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Free);
        Ok(py.detach(|| pool.close())?)
    }

    #[doc = docstring!("MemPool.sleep")]
    #[pyo3(signature = (backup = PyBackup(Backup::Host)), text_signature = "($self, backup='host')")]
    fn sleep(&self, py: Python<'_>, backup: PyBackup) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Allocation);
        Ok(py.detach(|| pool.sleep(backup.0))?)
    }

    #[doc = docstring!("MemPool.wake")]
    fn wake(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.pool()?;
        let _stack = hold_stack(Purpose::Allocation);
        Ok(py.detach(|| pool.wake())?)
    }

    #[doc = docstring!("MemPool.is_asleep")]
    #[getter]
    fn is_asleep(&self) -> PyResult<bool> {
        process::refuse_forked()?;
        Ok(self.pool()?.is_asleep())
    }

    #[doc = docstring!("MemPool.on_segment")]
    fn on_segment(&self, callback: &Bound<'_, PyAny>) -> PyResult<PySegmentCallback> {
        on_segment(self.pool()?, &self.kept, callback)
    }

    #[doc = docstring!("MemPool.snapshot")]
    #[pyo3(signature = (include_traces = true))]
    fn snapshot<'py>(&self, py: Python<'py>, include_traces: bool) -> PyResult<Bound<'py, PyList>> {
        let _ = include_traces;
        let pool = self.pool()?;
        let found = py.detach(|| pool.snapshot())?;
        segments(py, &found)
    }

    #[doc = docstring!("MemPool.token")]
    #[pyo3(name = "token")]
    fn py_token(&self) -> PyResult<PyPoolToken> {
        process::refuse_forked()?;
        Ok(PyPoolToken::from(self.token()?))
    }

    #[doc = docstring!("MemPool.empty")]
    #[pyo3(signature = (nbytes, stream = None))]
    fn empty(
        &self,
        py: Python<'_>,
        nbytes: Whole<Nbytes>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyDeviceBuffer> {
        let pool = self.pool()?;
        let stream = stream::resolve_on(py, stream, Some(pool.device()))?;
        let token = pool.token();
        wake_for_use(py, &token)?;
        let _scope = token.enter_scope(false)?;
        PyDeviceBuffer::new(py, nbytes.0, &stream)
    }

    #[doc = docstring!("MemPool.reserve_range")]
    #[pyo3(signature = (nbytes, page_bytes = Whole::new(2 << 20)), text_signature = "($self, nbytes, page_bytes=2097152)")]
    fn reserve_range(
        &self,
        py: Python<'_>,
        nbytes: Whole<Nbytes>,
        page_bytes: Whole<PageBytes>,
    ) -> PyResult<PyMemoryRange> {
        let pool = self.pool()?;
        Ok(py.detach(|| pool.reserve_range(nbytes.0, page_bytes.0))?.into())
    }

    #[doc = docstring!("MemPool.__enter__")]
    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<Py<Self>> {
        process::refuse_forked()?;
        let this = slf.get();
        this.blocks.enter(slf.py(), &this.token()?, false)?;
        Ok(slf.clone().unbind())
    }

    #[doc = docstring!("MemPool.__exit__")]
    fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
        if !process::is_forked() {
            self.blocks.leave(py, "a MemPool's block")?;
        }
        Ok(false)
    }

    #[doc = docstring!("MemPool.__del__")]
    fn __del__(&self, py: Python<'_>) {
        if let Some(MadePool { pool, .. }) = self.made.get() {
            py.detach(|| pool.end());
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if !self.has_fields {
            return Ok(());
        }
        let Some(MadePool { pool, allocator, is_ended_first }) = self.made.get() else { return Ok(()) };
        visit.call(allocator)?;
        // What outlives the pool needs them itself.
        if (pool.is_owned() && *is_ended_first) || pool.is_gone() { self.kept.traverse(&visit) } else { Ok(()) }
    }

    fn __clear__(&self) {
        if self.made.get().is_some_and(|made| made.pool.is_gone()) {
            self.kept.clear();
        }
    }

    #[doc = docstring!("MemPool.capture")]
    fn capture(slf: &Bound<'_, Self>, stream: &Bound<'_, PyAny>) -> PyResult<PyCapture> {
        let stream = stream::resolve(slf.py(), Some(stream), None)?;
        PyCapture::new(slf, &stream)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(match Self::facts(slf)? {
            Some(facts) => facts.to_string(),
            None => format!("<{} that was not made>", slf.get_type().fully_qualified_name()?),
        })
    }

    #[doc = docstring!("MemPool._repr_html_")]
    fn _repr_html_(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        Self::facts(slf)?.map_or(Ok(None), |facts| facts.html(slf.py()))
    }
}

#[doc = docstring!("graph_pool_handle")]
#[pyfunction]
#[pyo3(signature = (is_user_created = true))]
pub(crate) fn graph_pool_handle(is_user_created: bool) -> PyResult<Id> {
    process::refuse_forked()?;
    Ok(pair(memory::graph_pool_handle(is_user_created)))
}

#[doc = docstring!("begin_allocate_to_pool")]
#[pyfunction]
pub(crate) fn begin_allocate_to_pool(py: Python<'_>, device: &Bound<'_, PyAny>, pool_id: IdArgument) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(memory::begin_allocate_to_pool(device, pool_id.0)?)
}

#[doc = docstring!("end_allocate_to_pool")]
#[pyfunction]
pub(crate) fn end_allocate_to_pool(py: Python<'_>, device: &Bound<'_, PyAny>, pool_id: IdArgument) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(memory::end_allocate_to_pool(device, pool_id.0)?)
}

#[doc = docstring!("release_pool")]
#[pyfunction]
pub(crate) fn release_pool(py: Python<'_>, device: &Bound<'_, PyAny>, pool_id: IdArgument) -> PyResult<()> {
    let device = device::extract(py, device)?;
    Ok(py.detach(|| memory::release_pool(device, pool_id.0))?)
}

#[doc = docstring!("pool_use_count")]
#[pyfunction]
pub(crate) fn pool_use_count(py: Python<'_>, device: &Bound<'_, PyAny>, pool_id: IdArgument) -> PyResult<Option<u32>> {
    let device = device::extract(py, device)?;
    Ok(memory::pool_use_count(device, pool_id.0)?)
}

// `MemPool.capture`: the memory of a graph, for the `with` block in which it is captured.

#[doc = docstring!("Capture")]
#[pyclass(name = "Capture", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct PyCapture {
    /// Kept as long as it may be entered.
    pool: Py<PyMemPool>,
    token: PoolToken,
    stream: Stream,
    state: Mutex<Option<(ThreadNumber, EnteredCapture, Py<PyGraphMemory>)>>,
}

#[doc = docstring!("GraphMemory")]
#[pyclass(name = "GraphMemory", module = "gpupool", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct PyGraphMemory {
    pool_id: Id,
    device: usize,
    /// None before the block ends, and after the reset.
    memory: Mutex<Option<GraphMemory>>,
}

impl PyCapture {
    pub(crate) fn new(pool: &Bound<'_, PyMemPool>, stream: &Stream) -> PyResult<Self> {
        let token = pool.get().token()?;
        Ok(Self { pool: pool.clone().unbind(), token, stream: stream.kept(), state: Mutex::new(None) })
    }
}

#[pymethods]
impl PyCapture {
    #[doc = docstring!("Capture.__enter__")]
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyGraphMemory>> {
        process::refuse_forked()?;
        let wrong = || Error::invalid_value("this capture was entered before; call MemPool.capture for each");
        if lock(&self.state).is_some() {
            return Err(wrong().into());
        }
        let memory = PyGraphMemory {
            pool_id: pair(self.token.id()),
            device: self.token.device().ordinal(),
            memory: Mutex::new(None),
        };
        let memory = Py::new(py, memory)?;
        // It waits for calls for the whole device, and they for work that may need Python.
        let entered = py.detach(|| EnteredCapture::new(&self.token, &self.stream))?;
        let is_first = {
            let mut state = lock(&self.state);
            let is_first = state.is_none();
            if is_first {
                *state = Some((ThisThread::get().number(), entered, memory.clone_ref(py)));
            }
            is_first
        };
        if !is_first {
            return Err(wrong().into());
        }
        Ok(memory)
    }

    #[doc = docstring!("Capture.__exit__")]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if process::is_forked() {
            return Ok(false);
        }
        let left = {
            let mut state = lock(&self.state);
            state.take_if(|(thread, _, _)| *thread == ThisThread::get().number())
        };
        let wrong = "this capture was left on a thread that did not enter it; enter and leave it on one thread";
        let (_, entered, place) = left.ok_or_else(|| Error::invalid_value(wrong))?;
        let memory = entered.leave()?;
        if kind.is_none() {
            *lock(&place.get().memory) = Some(memory);
        } else {
            // The capture failed, so there will be no graph.
            py.detach(|| drop(memory));
        }
        Ok(false)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.pool)
    }

    fn __repr__(&self) -> String {
        let (pool_id, stream) = (pair(self.token.id()), self.stream.raw().address());
        let device = device::shown(self.stream.device().ordinal());
        format!("gpupool.Capture(pool_id={pool_id:?}, stream={stream:#x}, device={device})")
    }
}

#[pymethods]
impl PyGraphMemory {
    #[doc = docstring!("GraphMemory.pool_id")]
    #[getter]
    const fn pool_id(&self) -> Id {
        self.pool_id
    }

    #[doc = docstring!("GraphMemory.reset")]
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        process::refuse_forked()?;
        let memory = lock(&self.memory).take();
        py.detach(|| drop(memory));
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = if process::is_forked() {
            ", of the parent process"
        } else if lock(&self.memory).is_none() {
            ", without memory: its capture has not ended, or it was reset"
        } else {
            ""
        };
        let Self { pool_id, device, .. } = self;
        format!("gpupool.GraphMemory(pool_id={pool_id:?}, device={}{state})", device::shown(device))
    }
}

// A user's own allocator for a pool: two functions, Python callables or addresses of C functions, or an allocator
// object of PyTorch's.

/// The source that an `allocator` argument names.
pub(crate) fn source(allocator: &Bound<'_, PyAny>, kept: &KeptObjects) -> PyResult<Arc<dyn SegmentSource>> {
    let wrong = || {
        Error::invalid_value(
            "allocator must be a pair (malloc, free): callables malloc(size, device, stream) -> address and \
             free(address, size, device, stream), or the addresses of C functions of these forms; or a \
             CUDAPluggableAllocator of PyTorch",
        )
    };
    if allocator.is_exact_instance_of::<PyInt>() || allocator.is_exact_instance_of::<PyFloat>() {
        return Err(Error::invalid_value(format!(
            "MemPool's first argument is its allocator, and {allocator} is a number: was limit={allocator} meant, the most \
             bytes of the pool, or reserve={allocator}?"
        ))
        .into());
    }
    let Ok((allocate, free)) = allocator.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>() else {
        return Ok(Arc::new(torch_source(allocator, kept)?.ok_or_else(wrong)?));
    };
    if allocate.is_exact_instance_of::<PyInt>() && free.is_exact_instance_of::<PyInt>() {
        let address = |function: &Bound<'_, PyAny>| function.extract::<PythonAddress>().map_err(|_| wrong());
        return Ok(Arc::new(PythonAddress::segment_functions(address(&allocate)?, address(&free)?)?));
    }
    if allocate.is_callable() && free.is_callable() {
        let callables = Callables { allocate: kept.keep(&allocate), free: kept.keep(&free) };
        return Ok(Arc::new(Trusted(callables)));
    }
    Err(wrong().into())
}

/// Returns a source of an allocator of PyTorch's; none if the object is nothing of PyTorch's.
fn torch_source(object: &Bound<'_, PyAny>, kept: &KeptObjects) -> PyResult<Option<Keeping<TorchAllocator>>> {
    let py = object.py();
    let module = py.import(intern!(py, "gpupool._frameworks.torch_allocator"))?;
    let found: Option<[usize; 3]> = module.call_method1(intern!(py, "addresses"), (object,))?.extract()?;
    found.map(|addresses| Ok(Keeping::new(torch_allocator(addresses)?, kept.keep(object)))).transpose()
}

#[derive(Debug)]
struct Callables {
    allocate: Arc<Kept>,
    free: Arc<Kept>,
}

fn refused(status: &str, cause: Option<Cause>) -> Error {
    Error::refused(OWN_ALLOCATOR, "malloc", status, -1, StatusKind::OutOfMemory)
        .map_library(|refused| refused.cause = cause)
}

impl PythonSource for Callables {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        let arguments = (bytes, stream.device().ordinal(), stream.raw().address());
        let called = Python::try_attach(|py| {
            let address = self.allocate.bind(py).and_then(|allocate| allocate.call1(arguments)?.extract::<u64>());
            address.map_err(|raised| interrupted_or(py, raised, |cause| refused("an exception", Some(cause))))
        });
        match called {
            None => Err(refused("the interpreter is shutting down", None)),
            Some(Ok(0)) => Err(refused("a null pointer", None)),
            Some(outcome) => outcome,
        }
    }

    fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        let arguments = (address, bytes, stream.device().ordinal(), stream.raw().address());
        // Nor is memory freed once the interpreter has ended.
        let _ = Python::try_attach(|py| self.free.bind(py).map(|free| call_unasked(&free, arguments, |_| ())));
        Ok(())
    }
}
