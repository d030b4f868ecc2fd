//! Python classes of counts, each field said once: with `as_dict`, `==` and a `repr`.

/// Makes a class from a Rust struct of statistics: whole numbers by the names that they have there, others by their own.
macro_rules! counts_class {
    ($class:ident = $name:literal from $stats:ident: $rust:ty {
        $(
            $(u64 of $source:expr => [$($field:ident),* $(,)?])?
            $(f64 $number:ident = $value:expr)?
        ;)*
    }) => {
        #[doc = docstring!($name)]
        #[pyclass(name = $name, module = "gpupool", frozen, eq, get_all)]
        #[derive(Debug, PartialEq)]
        pub(in crate::python) struct $class {
            $(
                $($(#[doc = docstring!($name, ".", stringify!($field))] $field: u64,)*)?
                $(#[doc = docstring!($name, ".", stringify!($number))] $number: f64,)?
            )*
        }

        impl From<$rust> for $class {
            fn from($stats: $rust) -> Self {
                Self { $($($($field: $source.$field,)*)? $($number: $value,)?)* }
            }
        }

        #[pymethods]
        impl $class {
            #[doc = docstring!($name, ".as_dict")]
            pub(in crate::python) fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let dict = PyDict::new(py);
                $(
                    $($(dict.set_item(stringify!($field), self.$field)?;)*)?
                    $(dict.set_item(stringify!($number), self.$number)?;)?
                )*
                Ok(dict)
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                let counts = self.as_dict(py)?;
                let counts: Vec<String> = counts.iter().map(|(name, value)| format!("{name}={value}")).collect();
                Ok(format!("{}({})", $name, counts.join(", ")))
            }
        }
    };
}

pub(in crate::python) use counts_class;
