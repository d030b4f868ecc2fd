//! The pages that a call names: bytes of the range, or page numbers.

use std::ops::Range;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::error::Error;
use crate::memory::RangePages;
use crate::python::ffi::lent_integers;
use crate::python::whole::{Nbytes, PageNumber, Start, Whole, accepted, type_error, wrong_objects};

/// The pages that a call's arguments name.
pub(super) enum NamedPages {
    Bytes(Range<u64>),
    Numbers(Vec<u32>),
}

impl NamedPages {
    pub(super) fn pages(&self) -> RangePages<'_> {
        match self {
            Self::Bytes(bytes) => bytes.clone().into(),
            Self::Numbers(numbers) => numbers.into(),
        }
    }

    /// Returns the pages and the stream of a call `(start, nbytes, stream)` or `(pages, stream)`.
    pub(super) fn of_call<'a, 'py>(
        start: &Bound<'py, PyAny>,
        second: Option<&'a Bound<'py, PyAny>>,
        stream: Option<&'a Bound<'py, PyAny>>,
    ) -> PyResult<(Self, Option<&'a Bound<'py, PyAny>>)> {
        if !is_number(start)? {
            if second.is_some() && stream.is_some() {
                return Err(PyTypeError::new_err("page numbers take no nbytes: give the pages, and the stream alone"));
            }
            return Ok((Self::Numbers(numbers(start)?), second.or(stream)));
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

/// Returns the page numbers that an object has: an array's, else those it yields.
pub(super) fn numbers(pages: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let too_large = |page: i128| Error::invalid_value(format!("page {page} is no page of a range: give {ACCEPTED}"));
    if let Some(lent) = lent_integers(pages)? {
        return Ok(lent.map_err(too_large)?);
    }
    let mut found = Vec::new();
    let items = accepted(pages.py(), pages.try_iter())?
        .ok_or_else(|| type_error(wrong_objects([pages], |[pages]| format!("pages are {ACCEPTED}, not {pages}"))))?;
    for item in items {
        let page: Whole<PageNumber> = item?.extract()?;
        found.push(u32::try_from(page.0).map_err(|_| too_large(page.0.into()))?);
    }
    Ok(found)
}

/// Whether an argument is one number rather than several.
fn is_number(argument: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(argument.is_instance_of::<PyInt>()
        || argument.hasattr("__index__")? && accepted(argument.py(), argument.try_iter())?.is_none())
}
