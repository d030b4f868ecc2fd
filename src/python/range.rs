//! `MemoryRange`: addresses whose pages come and go.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use log::warn;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt};

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::{CommitOptions, MemoryRange, PoolId, RangePages};
use crate::observe::recording::Purpose;
use crate::observe::target::MEMORY;
use crate::process;
use crate::python::arguments::{Fill, Nbytes, PageNumber, Pages, Start, Whole, accepted, type_error, wrong_objects};
use crate::python::buffer::cuda_array_interface;
use crate::python::context::Ignored;
use crate::python::ffi::buffers::{self, DLMemory, DLPlace, DLRequest, lends_by_dlpack, lent_integers};
use crate::python::kept::{KeptObjects, PyDiscardCallback, callable_name};
use crate::python::values::Facts;
use crate::python::{device, stream};
use crate::runtime::Stream;
use crate::sync::lock;

#[doc = docstring!("MemoryRange")]
#[pyclass(name = "MemoryRange", module = "gpupool", frozen, weakref)]
pub(crate) struct PyMemoryRange {
    /// DLPack's consumers have shares of it.
    range: Arc<MemoryRange>,
    /// The calls that are just freeing it. Meanwhile no consumer gets a share.
    frees: Mutex<u32>,
    /// Its callbacks.
    kept: KeptObjects,
}

impl PyMemoryRange {
    pub(crate) fn new(range: MemoryRange) -> Self {
        Self { range: Arc::new(range), frees: Mutex::new(0), kept: KeptObjects::default() }
    }

    /// Returns whether the range ends with this object.
    fn is_last(&self) -> bool {
        Arc::strong_count(&self.range) == 1
    }

    /// Begins to free it.
    ///
    /// # Errors
    /// `InvalidValue` while a consumer has a share.
    fn begin_free(&self) -> Result<()> {
        let mut frees = lock(&self.frees);
        if !self.is_last() {
            return Err(Error::invalid_value(
                "this range is shared by DLPack; it is freed when this object and the last array that uses it die",
            ));
        }
        *frees += 1;
        Ok(())
    }

    /// Returns a share for a consumer.
    ///
    /// # Errors
    /// `InvalidValue` while a call frees it, and once it was freed; `Forked`.
    fn shared(&self) -> Result<Arc<MemoryRange>> {
        process::refuse_forked()?;
        let shared = {
            let frees = lock(&self.frees);
            (*frees == 0).then(|| Arc::clone(&self.range))
        };
        let freeing = || Error::invalid_value("another call is just freeing this range: take no array of it");
        let shared = shared.ok_or_else(freeing)?;
        shared.committed_bytes()?;
        Ok(shared)
    }

    /// Returns what is told of a range.
    fn facts(&self) -> Facts {
        let mut facts = Facts::of("gpupool.MemoryRange");
        if process::is_forked() {
            facts.states.push("of the parent process");
            return facts;
        }
        match self.range.committed_bytes() {
            Ok(committed) => {
                facts.add("ptr", format_args!("{:#x}", self.range.ptr()));
                facts.add("nbytes", self.range.nbytes());
                facts.add("committed_bytes", committed);
                let device = self.range.device().map(|on| device::shown(on.ordinal()));
                facts.add("device", device.unwrap_or_else(|_| "unknown".to_owned()));
            }
            Err(_) => facts.states.push("freed"),
        }
        facts
    }

    fn place(&self) -> DLPlace {
        buffers::place(Some(self.range.device().unwrap_or(Device::from_ordinal(0))))
    }

    /// Its pages are ordered by their commits, not by this.
    fn lend<'py>(&self, py: Python<'py>, asked: &DLRequest<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let range = self.shared()?;
        let memory = DLMemory { address: range.ptr(), nbytes: range.nbytes(), place: self.place() };
        asked.check("MemoryRange", memory.place)?;
        asked.export(py, range, memory)
    }

    fn stream_or_current(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
        let device = self.range.device()?;
        // A named one may be of a peer.
        stream::resolve(py, stream, stream.is_none().then_some(device))
    }
}

#[pymethods]
impl PyMemoryRange {
    #[doc = docstring!("MemoryRange.commit")]
    #[pyo3(signature = (start, nbytes = None, stream = None, *, priority = None, fill = None))]
    fn commit(
        &self,
        py: Python<'_>,
        start: &Bound<'_, PyAny>,
        nbytes: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        priority: Option<i32>,
        fill: Option<Whole<Fill>>,
    ) -> PyResult<()> {
        process::refuse_forked()?;
        let (named, stream) = NamedPages::of_call(start, nbytes, stream)?;
        let stream = self.stream_or_current(py, stream)?;
        let options = CommitOptions { priority, fill: fill.map(Whole::narrow).transpose()? };
        device::detached_for(py, Purpose::Allocation, || self.range.commit(named.pages(), &stream, options))
    }

    #[doc = docstring!("MemoryRange.decommit")]
    #[pyo3(signature = (start, nbytes = None, stream = None))]
    fn decommit(
        &self,
        py: Python<'_>,
        start: &Bound<'_, PyAny>,
        nbytes: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        process::refuse_forked()?;
        let (named, stream) = NamedPages::of_call(start, nbytes, stream)?;
        let stream: Option<Stream> = stream.map(|stream| stream.extract()).transpose()?;
        device::detached_for(py, Purpose::Free, || self.range.decommit(named.pages(), stream.as_ref()))
    }

    #[doc = docstring!("MemoryRange.prepare")]
    fn prepare(&self, py: Python<'_>, pages: Whole<Pages>) -> PyResult<()> {
        let most = || Error::invalid_value(format!("pages is {}: the range has fewer", pages.0));
        let pages = u32::try_from(pages.0).map_err(|_| most())?;
        Ok(py.detach(|| self.range.prepare(pages))?)
    }

    #[doc = docstring!("MemoryRange.on_discard")]
    fn on_discard(&self, callback: &Bound<'_, PyAny>) -> PyResult<PyDiscardCallback> {
        let name = callable_name(callback, "on_discard takes a callable(pages)")?;
        let (callable, called) = (self.kept.keep(callback), name.clone());
        let guard = self.range.on_discard(move |pages| {
            callable.call_unasked((pages.to_vec(),), |raised| {
                warn!(target: MEMORY, "{called}, a callback of on_discard, raised {raised}");
            });
        });
        Ok(PyDiscardCallback::new(name, guard))
    }

    #[doc = docstring!("MemoryRange.free")]
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<Stream>) -> PyResult<()> {
        process::refuse_forked()?;
        self.begin_free()?;
        let outcome = device::detached_for(py, Purpose::Free, || self.range.free(stream.as_ref()));
        *lock(&self.frees) -= 1;
        outcome
    }

    #[doc = docstring!("MemoryRange.__cuda_array_interface__")]
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.range.committed_bytes()?;
        cuda_array_interface(py, self.range.ptr(), self.range.nbytes())
    }

    #[doc = docstring!("MemoryRange.__del__")]
    fn __del__(&self) {
        if self.is_last() {
            self.kept.clear();
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if self.is_last() { self.kept.traverse(&visit) } else { Ok(()) }
    }

    fn __clear__(&self) {
        self.__del__();
    }

    fn __repr__(&self) -> String {
        self.facts().to_string()
    }

    #[doc = docstring!("MemoryRange._repr_html_")]
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.facts().html(py)
    }
}

members! { PyMemoryRange = "MemoryRange" of this, py;
    get ptr: u64 = this.range.ptr();
    get nbytes: u64 = this.range.nbytes();
    get page_bytes: u64 = this.range.page_bytes();
    get committed_bytes: Result<u64> = this.range.committed_bytes();
    get discardable_bytes: Result<u64> = this.range.discardable_bytes();
    get device: Result<Device> = this.range.device();
    get pool_id: PoolId = this.range.pool_id();

    fn __dlpack_device__() -> Result<DLPlace> = process::refuse_forked().map(|()| this.place());
    // It waits for a thread that commits the pages, which may need the interpreter.
    fn pin(pages: PageNumbers, stream: Option<Stream> = None) -> Result<Vec<u8>> =
        py.detach(|| this.range.pin(&pages.0, stream.as_ref()));
    fn unpin(pages: PageNumbers, stream: Option<Stream> = None) -> Result<()> =
        py.detach(|| this.range.unpin(&pages.0, stream.as_ref()));
}

ends_with_block! { PyMemoryRange = "MemoryRange" by free(None) }

lends_by_dlpack! { PyMemoryRange = "MemoryRange" by lend }

/// The pages that a call's arguments name.
enum NamedPages {
    Bytes(Range<u64>),
    Numbers(PageNumbers),
}

impl NamedPages {
    pub(crate) fn pages(&self) -> RangePages<'_> {
        match self {
            Self::Bytes(bytes) => bytes.clone().into(),
            Self::Numbers(numbers) => (&numbers.0).into(),
        }
    }

    /// Returns the pages and the stream of a call `(start, nbytes, stream)` or `(pages, stream)`.
    fn of_call<'a, 'py>(
        start: &Bound<'py, PyAny>,
        second: Option<&'a Bound<'py, PyAny>>,
        stream: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<(Self, Option<&'a Bound<'py, PyAny>>)> {
        if !is_number(start)? {
            if second.is_some() && stream.is_some() {
                return Err(PyTypeError::new_err("page numbers take no nbytes: give the pages, and the stream alone"));
            }
            return Ok((Self::Numbers(start.extract()?), second.or(stream)));
        }
        let start: Whole<Start> = start.extract()?;
        let nbytes = second.ok_or_else(|| {
            PyTypeError::new_err("a start needs nbytes: give both, in bytes, or a sequence of page numbers instead")
        })?;
        let nbytes: Whole<Nbytes> = nbytes.extract()?;
        Ok((Self::Bytes(start.0..start.0.saturating_add(nbytes.0)), stream))
    }
}

const ACCEPTED: &str = "whole numbers of pages: a sequence of them, or an array of integers with one dimension";

/// The page numbers that an object has: an array's, else those it yields.
struct PageNumbers(Vec<u32>);

impl<'py> FromPyObject<'_, 'py> for PageNumbers {
    type Error = PyErr;

    fn extract(pages: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        process::refuse_forked()?;
        let too_large =
            |page: i128| Error::invalid_value(format!("page {page} is no page of a range: give {ACCEPTED}"));
        if let Some(lent) = lent_integers(&pages)? {
            return Ok(Self(lent.map_err(too_large)?));
        }
        let mut found = Vec::new();
        let items = accepted(pages.py(), pages.try_iter())?.ok_or_else(|| {
            type_error(wrong_objects([&pages], |[pages]| format!("pages are {ACCEPTED}, not {pages}")))
        })?;
        for item in items {
            let page: Whole<PageNumber> = item?.extract()?;
            found.push(u32::try_from(page.0).map_err(|_| too_large(page.0.into()))?);
        }
        Ok(Self(found))
    }
}

/// Whether an argument is one number rather than several.
fn is_number(argument: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(argument.is_instance_of::<PyInt>()
        || argument.hasattr("__index__")? && accepted(argument.py(), argument.try_iter())?.is_none())
}
