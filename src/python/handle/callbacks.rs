//! A user's own library: three functions, each a Python callable or the address of a C function.

use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::error::{Cause, Error, Result, StatusKind};
use crate::ids::Device;
use crate::library::functions::{Create, Destroy, SetStream};
use crate::library::{Library, RawHandle};
use crate::python::ffi::PythonAddress;
use crate::python::program::interrupted_or;
use crate::python::whole::wrong_argument;
use crate::runtime::Stream;

/// A Python callable, or a C function.
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
pub(super) struct CallbackLibrary {
    name: String,
    create: Function<Create>,
    destroy: Function<Destroy>,
    set_stream: Option<Function<SetStream>>,
}

impl CallbackLibrary {
    pub(super) fn new(
        name: String,
        create: &Bound<'_, PyAny>,
        destroy: &Bound<'_, PyAny>,
        set_stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if name.is_empty() {
            return Err(Error::invalid_value("a pool needs a name, for its errors and statistics".to_owned()).into());
        }
        Ok(Self {
            name,
            create: Function::new("create", create, PythonAddress::create)?,
            destroy: Function::new("destroy", destroy, PythonAddress::destroy)?,
            set_stream: set_stream
                .map(|function| Function::new("set_stream", function, PythonAddress::set_stream))
                .transpose()?,
        })
    }

    /// Runs a callable, and turns what it raises into a refusal with the exception as its cause.
    fn call<R>(&self, function: &str, call: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R> {
        let called = Python::try_attach(|py| {
            call(py).map_err(|raised| {
                let name = raised.get_type(py).name().map(|name| name.to_string()).unwrap_or_default();
                interrupted_or(py, raised, |cause| self.refused(function, name, Some(cause)))
            })
        });
        called.unwrap_or_else(|| Err(self.refused(function, "the interpreter is shutting down".to_owned(), None)))
    }

    fn refused(&self, function: &str, status: String, cause: Option<Cause>) -> Error {
        Error::refused(&self.name, function, status, -1, StatusKind::Other).map_library(|refused| refused.cause = cause)
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
