//! Tables of what Python calls, for functions and members that are one expression: the name, the arguments with their
//! defaults, what is returned, and the expression. The docstring is that of the name.

/// Makes functions of the module. The table begins with a name for the interpreter.
macro_rules! functions {
    ($py:ident; $(
        fn $name:ident($($argument:ident: $kind:ty $(= $default:tt)?),*) $(-> $returned:ty)? = $found:expr;
    )*) => {
        $(
            #[doc = docstring!(stringify!($name))]
            #[pyfunction(signature = ($($argument $(= $default)?),*))]
            pub(crate) fn $name($py: Python<'_>, $($argument: $kind),*) $(-> $returned)? {
                let _ = $py;
                $found
            }
        )*
    };
}

/// Makes properties and methods of a class. The table begins with names for the object and the interpreter.
macro_rules! members {
    ($class:ident = $documented:literal of $this:ident, $py:ident;
        $(get $property:ident: $kind:ty = $value:expr;)*
        $(fn $name:ident($($argument:ident: $accepted:ty $(= $default:tt)?),*) $(-> $returned:ty)? = $found:expr;)*
    ) => {
        #[pymethods]
        impl $class {
            $(
                #[doc = docstring!($documented, ".", stringify!($property))]
                #[getter]
                fn $property(&self, $py: Python<'_>) -> $kind {
                    let ($this, _) = (self, $py);
                    $value
                }
            )*

            $(
                #[doc = docstring!($documented, ".", stringify!($name))]
                #[pyo3(signature = ($($argument $(= $default)?),*))]
                fn $name(&self, $py: Python<'_>, $($argument: $accepted),*) $(-> $returned)? {
                    let ($this, _) = (self, $py);
                    $found
                }
            )*
        }
    };
}

/// Makes an object end, at the latest, with the `with` block that it is for, which is entered `if` this method succeeds. In a
/// forked child there is nothing to end.
macro_rules! ends_with_block {
    ($class:ident = $documented:literal $(if $check:ident)? by $end:ident($($argument:expr),*)) => {
        #[pymethods]
        impl $class {
            #[doc = docstring!($documented, ".__enter__")]
            fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
                $crate::process::refuse_forked()?;
                $(slf.$check()?;)?
                Ok(slf)
            }

            #[doc = docstring!($documented, ".__exit__")]
            fn __exit__(&self, py: Python<'_>, _kind: Ignored, _value: Ignored, _traceback: Ignored) -> PyResult<bool> {
                if !$crate::process::is_forked() {
                    self.$end(py, $($argument),*)?;
                }
                Ok(false)
            }
        }
    };
}
