//! Values of Python: dictionaries, classes of counts, each made of a declaration of counters, and classes of what is told.

use std::fmt;
use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::error::Error;

/// Adds names and what they stand for to a dictionary, which it returns.
macro_rules! with_items {
    ($dict:expr, { $($name:literal: $value:expr,)* }) => {{
        let dict = $dict;
        $(dict.set_item(pyo3::intern!(dict.py(), $name), $value)?;)*
        dict
    }};
}

/// A counter's value as Python has it: a duration in seconds.
#[derive(IntoPyObject)]
pub(crate) enum Shown {
    Whole(u64),
    Seconds(f64),
}

impl From<u64> for Shown {
    fn from(count: u64) -> Self {
        Self::Whole(count)
    }
}

impl From<Duration> for Shown {
    fn from(time: Duration) -> Self {
        Self::Seconds(time.as_secs_f64())
    }
}

/// A counter of which Python has a number.
pub(crate) trait FromNumber: Sized {
    fn of(number: &Bound<'_, PyAny>) -> PyResult<Self>;
}

impl FromNumber for u64 {
    fn of(number: &Bound<'_, PyAny>) -> PyResult<Self> {
        number.extract()
    }
}

impl FromNumber for Duration {
    fn of(number: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::try_from_secs_f64(number.extract()?).map_err(|wrong| Error::invalid_value(wrong.to_string()).into())
    }
}

/// Returns the counter of this name of a dictionary that has them all.
pub(crate) fn counter<C: FromNumber>(class: &str, counts: &Bound<'_, PyDict>, name: &str) -> PyResult<C> {
    match counts.get_item(name)? {
        Some(number) => C::of(&number),
        None => Err(Error::invalid_value(format!("{class} needs {name}, too: give it what as_dict() returns")).into()),
    }
}

/// Makes a class of a Rust struct of statistics, with what the lists name of each place in it. The lists follow, given by
/// the macros of [`counters`](crate::counters::counters).
macro_rules! counts_class {
    ($class:ident = $name:literal from $stats:ident: $rust:ty { $($place:expr),* }
        $([$($counter:ident as $shown:ident,)*])*
    ) => {
        #[doc = docstring!($name)]
        #[pyclass(name = $name, module = "gpupool.typing", frozen, eq)]
        #[derive(PartialEq)]
        pub(crate) struct $class($rust);

        impl From<$rust> for $class {
            fn from(stats: $rust) -> Self {
                Self(stats)
            }
        }

        #[pymethods]
        impl $class {
            #[new]
            #[pyo3(signature = (counts, /))]
            fn new(counts: &Bound<'_, PyDict>) -> PyResult<Self> {
                let mut made = <$rust>::default();
                let $stats = &mut made;
                $($($place.$counter = $crate::python::values::counter($name, counts, stringify!($shown))?;)*)*
                Ok(Self(made))
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<$crate::python::values::Reduced<'py>> {
                let counts = slf.get().as_dict(slf.py())?;
                Ok((slf.get_type(), pyo3::types::PyTuple::new(slf.py(), [counts])?))
            }

            $($(
                #[doc = docstring!($name, ".", stringify!($shown))]
                #[getter]
                fn $shown(&self) -> $crate::python::values::Shown {
                    let $stats = &self.0;
                    $place.$counter.into()
                }
            )*)*

            #[doc = docstring!($name, ".as_dict")]
            pub(crate) fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $($(dict.set_item(stringify!($shown), self.$shown())?;)*)*
                Ok(dict)
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                let counts = self.as_dict(py)?;
                let counts: Vec<String> = counts.iter().map(|(name, value)| format!("{name}={value}")).collect();
                Ok(format!("{}({})", $name, counts.join(", ")))
            }

            #[doc = docstring!($name, "._repr_html_")]
            fn _repr_html_(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
                $crate::python::values::html(py, $name, &self.as_dict(py)?, Vec::new())
            }
        }
    };
}

// What is told of an object, in the same words by its `repr` and, as HTML, by a notebook; and what a value is copied by.
//
// The HTML is made by the private package `gpupool._notebook`, which is imported at the first cell that shows an object. A
// notebook asks for it after each such cell, and must get an answer: without one it shows the `repr`.

/// The name of an object's class, what is known of the object by name, and the states that it is in.
pub(crate) struct Facts {
    class: String,
    known: Vec<(&'static str, String)>,
    pub(crate) states: Vec<&'static str>,
}

impl Facts {
    pub(crate) fn of(class: impl Into<String>) -> Self {
        Self { class: class.into(), known: Vec::new(), states: Vec::new() }
    }

    pub(crate) fn add(&mut self, name: &'static str, value: impl fmt::Display) {
        self.known.push((name, value.to_string()));
    }

    /// Returns them as HTML.
    pub(crate) fn html(self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
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
pub(crate) fn html(
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
pub(crate) type Reduced<'py> = (Bound<'py, PyType>, Bound<'py, PyTuple>);

/// Reduces a value to the properties that its constructor takes, in that order.
pub(crate) fn reduce<'py>(value: &Bound<'py, PyAny>, properties: &[&str]) -> PyResult<Reduced<'py>> {
    let arguments = properties.iter().map(|name| value.getattr(*name)).collect::<PyResult<Vec<_>>>()?;
    Ok((value.get_type(), PyTuple::new(value.py(), arguments)?))
}

/// Makes a class of properties, each with what it is in the Rust value that an object is made from.
macro_rules! told_class {
    ($(#[$about:meta])* $class:ident = $name:literal from $value:ident: $rust:ty {
        $($property:ident: $kind:ty = $found:expr,)*
    }) => {
        #[doc = docstring!($name)]
        $(#[$about])*
        pub(crate) struct $class {
            $(
                #[doc = docstring!($name, ".", stringify!($property))]
                $property: $kind,
            )*
        }

        impl From<$rust> for $class {
            fn from($value: $rust) -> Self {
                Self { $($property: $found,)* }
            }
        }
    };
}

/// Makes such a class of values, which are made, copied and pickled by their properties; `told by` is their `repr`.
macro_rules! value_class {
    ($(#[$about:meta])* $class:ident = $name:literal from $value:ident: $rust:ty {
        $($property:ident: $kind:ty = $found:expr,)*
    } $(told by $told:path)?) => {
        told_class! {
            $(#[$about])* $class = $name from $value: $rust { $($property: $kind = $found,)* }
        }

        #[pymethods]
        impl $class {
            #[new]
            #[allow(clippy::too_many_arguments, reason = "each is one of its properties")]
            fn new($($property: $kind),*) -> Self {
                Self { $($property,)* }
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<$crate::python::values::Reduced<'py>> {
                $crate::python::values::reduce(slf, &[$(stringify!($property)),*])
            }

            $(
                fn __repr__(&self) -> String {
                    $told(self)
                }
            )?
        }
    };
}
