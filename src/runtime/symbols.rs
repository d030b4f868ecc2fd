//! Tables of a driver library's functions: pointers, looked up once, when the library is opened. What a function
//! returns or writes is declared as a number, never as an enum: a newer driver's number in an enum is undefined
//! behaviour.

use std::ffi::c_int;

pub(in crate::runtime) type Status = c_int;

pub(in crate::runtime) const SUCCESS: Status = 0;

/// Defines `Symbols`, with a field for each function. Optional ones are none if the library lacks them.
macro_rules! symbols {
    (
        required {$($field:ident $name:literal ($($argument:ty),*) -> $result:ty;)*}
        $(optional {$($later:ident $later_name:literal ($($later_argument:ty),*) -> $later_result:ty;)*})?
    ) => {
        /// The functions, by their names without the common prefix.
        pub(super) struct Symbols {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            $($(pub(super) $later: Option<unsafe extern "C" fn($($later_argument),*) -> $later_result>,)*)?
        }

        impl Symbols {
            /// Looks every function up; the first name that the library lacks is the error.
            ///
            /// # Safety
            /// The library is the driver's that the table is about, and stays loaded as long as the result is used.
            pub(super) unsafe fn of(library: &$crate::shared_object::Library) -> Result<Self, &'static std::ffi::CStr> {
                Ok(Self {
                    // SAFETY: the type is the function's prototype in the vendor's header.
                    $($field: unsafe { library.get($name) }.map(|symbol| *symbol).map_err(|_| $name)?,)*
                    // SAFETY: the type is the function's prototype in the vendor's header.
                    $($($later: unsafe { library.get($later_name) }.map(|symbol| *symbol).ok(),)*)?
                })
            }
        }
    };
}

pub(in crate::runtime) use symbols;
