//! Python classes of counts, each made of a declaration of counters: with `as_dict`, `==` and a `repr`.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Error;

/// A counter's value as Python has it: a duration in seconds.
#[derive(IntoPyObject)]
pub(in crate::python) enum Shown {
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
pub(in crate::python) trait FromNumber: Sized {
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
pub(in crate::python) fn counter<C: FromNumber>(class: &str, counts: &Bound<'_, PyDict>, name: &str) -> PyResult<C> {
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
        #[pyclass(name = $name, module = "gpupool", frozen, eq)]
        #[derive(Debug, PartialEq)]
        pub(in crate::python) struct $class($rust);

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
                $($($place.$counter = $crate::python::counts::counter($name, counts, stringify!($shown))?;)*)*
                Ok(Self(made))
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<$crate::python::facts::Reduced<'py>> {
                let counts = slf.get().as_dict(slf.py())?;
                Ok((slf.get_type(), pyo3::types::PyTuple::new(slf.py(), [counts])?))
            }

            $($(
                #[doc = docstring!($name, ".", stringify!($shown))]
                #[getter]
                fn $shown(&self) -> $crate::python::counts::Shown {
                    let $stats = &self.0;
                    $place.$counter.into()
                }
            )*)*

            #[doc = docstring!($name, ".as_dict")]
            pub(in crate::python) fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
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
                $crate::python::facts::html(py, $name, &self.as_dict(py)?, Vec::new())
            }
        }
    };
}

pub(in crate::python) use counts_class;
