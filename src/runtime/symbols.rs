//! Tables of the functions that gpupool calls in a driver's library: pointers, looked up once, when the library is opened.
//!
//! What such a function returns or writes is declared as a number, never as an enum: newer drivers have numbers that no
//! binding knows, and an enum with one of those is undefined behaviour.

use std::ffi::c_int;

/// What a driver's function returns.
pub(in crate::runtime) type Status = c_int;

/// What every driver returns where all went well.
pub(in crate::runtime) const SUCCESS: Status = 0;

/// Defines `Symbols`, with a field for each function. One that is optional is none where the library lacks it.
macro_rules! symbols {
    (
        required {$($field:ident $name:literal ($($argument:ty),*) -> $result:ty;)*}
        $(optional {$($later:ident $later_name:literal ($($later_argument:ty),*) -> $later_result:ty;)*})?
    ) => {
        /// The functions, by their names without what all names begin with.
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
