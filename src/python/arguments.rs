//! Arguments: the error of a wrong one names the argument, its value, and what is accepted. A number out of range is an
//! `InvalidValue`. So is a bool, which Python accepts as 0 or 1: most likely another argument was meant. What is no number is
//! a `TypeError`.

use std::marker::PhantomData;
use std::time::Duration;

use pyo3::exceptions::{PyBufferError, PyException, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::NumaNode;
use crate::memory::PoolId;
use crate::python::error::interrupted;
use crate::runtime::no_host_node;

pub(crate) trait ArgumentName {
    const NAME: &str;
    /// The numbers that are accepted.
    const ACCEPTED: &str = "a whole number from 0 to 2**64 - 1";
}

macro_rules! names {
    ($($argument:ident $name:literal $(= $accepted:literal)?)*) => {
        $(
            pub(crate) struct $argument;

            impl ArgumentName for $argument {
                const NAME: &str = $name;
                $(const ACCEPTED: &str = $accepted;)?
            }
        )*
    };
}

names! {
    Address "address"
    Byte "byte" = "a whole number from 0 to 255"
    Fill "fill" = "a whole number from 0 to 255"
    Guarantee "guarantee"
    Limit "limit"
    PageBytes "page_bytes"
    PageNumber "a page"
    Pages "pages"
    MaxEntries "max_entries"
    Most "most"
    Nbytes "nbytes"
    Numa "numa" = "the number of a NUMA node of the host"
    PoolIdPart "a number of a pool's id"
    Reserve "reserve"
    Size "size"
    Start "start"
}

/// An argument that is a number from 0 to 2**64 - 1.
pub(crate) struct Whole<N>(pub(crate) u64, PhantomData<N>);

impl<N> Whole<N> {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number, PhantomData)
    }
}

impl<N: ArgumentName> Whole<N> {
    /// Returns the number as one of fewer bits.
    pub(crate) fn narrow<T: TryFrom<u64>>(self) -> Result<T> {
        let wrong = |_| Error::invalid_value(format!("{} is {}: give {}", N::NAME, self.0, N::ACCEPTED));
        T::try_from(self.0).map_err(wrong)
    }
}

/// The error of objects that cannot be right, with a text of their reprs. What one raises that is no `Exception` is for the
/// program, and raised in its place.
#[cold]
pub(crate) fn wrong_objects<const N: usize>(
    objects: [&Bound<'_, PyAny>; N],
    text: impl FnOnce([String; N]) -> String,
) -> Error {
    let mut shown = [const { String::new() }; N];
    for (object, shown) in objects.into_iter().zip(&mut shown) {
        *shown = match object.repr() {
            Ok(repr) => repr.to_string(),
            Err(raised) if raised.is_instance_of::<PyException>(object.py()) => "an object without a repr".to_owned(),
            Err(raised) => return interrupted(object.py(), raised),
        };
    }
    Error::invalid_value(text(shown))
}

/// The same of an argument.
pub(crate) fn wrong_argument(name: &str, value: &Bound<'_, PyAny>, accepted: &str) -> Error {
    wrong_objects([value], |[value]| format!("{name} is {value}: give {accepted}"))
}

/// Such an error as a `TypeError`.
pub(crate) fn type_error(wrong: Error) -> PyErr {
    match wrong.kind() {
        ErrorKind::InvalidValue(text) => PyTypeError::new_err(text.clone()),
        _ => wrong.into(),
    }
}

/// Refuses an argument that is a bool and was extracted as this number. Only 0 and 1 can be one, so others take no time.
#[inline]
pub(crate) fn refuse_bool(argument: &Bound<'_, PyAny>, number: u64, wrong: impl FnOnce() -> Error) -> Result<()> {
    if number <= 1 && argument.is_exact_instance_of::<PyBool>() { Err(wrong()) } else { Ok(()) }
}

/// Returns a number as Rust has it: one that is too large for that is `wrong`, and what is no number is a `TypeError` with the
/// same text. A bool is none.
#[inline]
pub(crate) fn number_of<'a, 'py, T>(argument: Borrowed<'a, 'py, PyAny>, wrong: impl Fn() -> Error) -> PyResult<T>
where
    T: FromPyObject<'a, 'py, Error = PyErr>,
{
    if argument.is_exact_instance_of::<PyBool>() {
        return Err(wrong().into());
    }
    argument.extract().map_err(|error: PyErr| {
        let py = argument.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            return wrong().into();
        }
        if error.is_instance_of::<PyTypeError>(py) {
            let with_name = type_error(wrong());
            with_name.set_cause(py, Some(error));
            return with_name;
        }
        error
    })
}

/// Whether an exception only says that an object is not of the kind that was tried.
pub(crate) fn is_refusal(py: Python<'_>, raised: &PyErr) -> bool {
    raised.is_instance_of::<PyTypeError>(py)
        || raised.is_instance_of::<PyOverflowError>(py)
        || raised.is_instance_of::<PyBufferError>(py)
}

/// Returns what an object was tried as; none if it is refused as that. What its own code raises else is for the caller.
#[inline]
pub(crate) fn accepted<T>(py: Python<'_>, tried: PyResult<T>) -> PyResult<Option<T>> {
    match tried {
        Ok(found) => Ok(Some(found)),
        Err(raised) if is_refusal(py, &raised) => Ok(None),
        Err(raised) => Err(raised),
    }
}

impl<'py, N: ArgumentName> FromPyObject<'_, 'py> for Whole<N> {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        number_of(number, || wrong_argument(N::NAME, &number, N::ACCEPTED)).map(Self::new)
    }
}

/// A NUMA node of the host. Whether it exists is checked where it is used.
impl<'py> FromPyObject<'_, 'py> for NumaNode {
    type Error = PyErr;

    fn extract(node: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let number = Whole::<Numa>::extract(node)?.0;
        Ok(u32::try_from(number).map(Self::from_number).map_err(|_| no_host_node(number))?)
    }
}

/// A pool's id: a pair of numbers.
impl<'py> FromPyObject<'_, 'py> for PoolId {
    type Error = PyErr;

    fn extract(id: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let Ok(pair) = id.cast::<PyTuple>() else {
            let accepted = "a pool's id, a pair of numbers: that of graph_pool_handle() or of a MemPool";
            return Err(type_error(wrong_argument("pool_id", &id, accepted)));
        };
        // A tuple of another length is a plain ValueError.
        if pair.len() != 2 {
            return Err(wrong_objects([&id], |[id]| format!("a pool's id is a pair of numbers, not {id}")).into());
        }
        let (first, second): (Whole<PoolIdPart>, Whole<PoolIdPart>) = id.extract()?;
        Ok(Self(first.0, second.0))
    }
}

impl<'py> IntoPyObject<'py> for PoolId {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        (self.0, self.1).into_pyobject(py)
    }
}

/// A timeout in seconds, of which there may be infinitely many.
pub(crate) struct Timeout(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(timeout: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let wrong = || wrong_argument("timeout", &timeout, "a number of seconds of at least 0");
        let seconds: f64 = number_of(timeout, wrong)?;
        if seconds.is_nan() || seconds < 0.0 {
            return Err(wrong().into());
        }
        Ok(Self(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
    }
}
