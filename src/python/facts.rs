//! What is told of an object, in the same words by its `repr` and, as HTML, by a notebook; and what a value is copied by.
//!
//! The HTML is made by the private package `gpupool._notebook`, which is imported at the first cell that shows an object. A
//! notebook asks for it after each such cell, and must get an answer: without one it shows the `repr`.

use std::fmt;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

/// The name of an object's class, what is known of the object by name, and the states that it is in.
pub(in crate::python) struct Facts {
    class: String,
    known: Vec<(&'static str, String)>,
    states: Vec<&'static str>,
}

impl Facts {
    pub(in crate::python) fn of(class: impl Into<String>) -> Self {
        Self { class: class.into(), known: Vec::new(), states: Vec::new() }
    }

    pub(in crate::python) fn add(&mut self, name: &'static str, value: impl fmt::Display) {
        self.known.push((name, value.to_string()));
    }

    pub(in crate::python) fn state(&mut self, state: &'static str) {
        self.states.push(state);
    }

    /// Returns them as HTML.
    pub(in crate::python) fn html(self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let known = PyDict::new(py);
        for (name, value) in self.known {
            known.set_item(name, value)?;
        }
        html(py, &self.class, &known, self.states)
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.iter().map(|(name, value)| format!("{name}={value}"));
        let told: Vec<String> = known.chain(self.states.iter().map(ToString::to_string)).collect();
        write!(text, "{}({})", self.class, told.join(", "))
    }
}

/// Returns what is known of an object as HTML; None if that fails, for an object that cannot be shown would hide what its
/// cell computed.
pub(in crate::python) fn html(
    py: Python<'_>,
    class: &str,
    known: &Bound<'_, PyDict>,
    states: Vec<&'static str>,
) -> PyResult<Option<Py<PyAny>>> {
    let made =
        py.import("gpupool._notebook.facts").and_then(|facts| facts.call_method1("html", (class, known, states)));
    match made {
        Ok(html) => Ok(Some(html.unbind())),
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        // Who interrupts a program is not to be ignored.
        Err(error) => Err(error),
    }
}

/// What `__reduce__` returns, by which a value is pickled and copied: its class, and what that makes it of.
pub(in crate::python) type Reduced<'py> = (Bound<'py, PyType>, Bound<'py, PyTuple>);

/// Reduces a value to the properties that its constructor takes, in that order.
pub(in crate::python) fn reduce<'py>(value: &Bound<'py, PyAny>, properties: &[&str]) -> PyResult<Reduced<'py>> {
    let arguments = properties.iter().map(|name| value.getattr(*name)).collect::<PyResult<Vec<_>>>()?;
    Ok((value.get_type(), PyTuple::new(value.py(), arguments)?))
}
