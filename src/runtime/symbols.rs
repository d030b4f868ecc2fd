//! Tables of a driver library's functions: pointers, looked up once, when the library is opened. What a function
//! returns or writes is declared as a number, never as an enum: a newer driver's number in an enum is undefined
//! behaviour.

use std::ffi::{CStr, c_int};

use crate::shared_object::Library;

pub(in crate::runtime) type Status = c_int;

pub(in crate::runtime) const SUCCESS: Status = 0;

/// A function, with the name that it was looked up by.
#[derive(Clone, Copy)]
pub(in crate::runtime) struct Symbol<F> {
    pub(in crate::runtime) name: &'static CStr,
    pub(in crate::runtime) function: F,
}

/// A function that the library may lack; then its name.
pub(in crate::runtime) type OptionalSymbol<F> = Result<Symbol<F>, &'static CStr>;

#[derive(Clone, Copy)]
pub(in crate::runtime) struct CallStatus {
    pub(in crate::runtime) name: &'static CStr,
    pub(in crate::runtime) status: Status,
}

/// Returns the name by which the vendor documents a function: the header defines it as a macro for a version's symbol.
pub(in crate::runtime) fn documented_name(symbol: &'static CStr) -> &'static str {
    let name = symbol.to_str().unwrap_or_default();
    name.strip_suffix("_v2").or_else(|| name.strip_suffix("_v3")).unwrap_or(name)
}

macro_rules! callable {
    ($([$($argument:ident: $type:ident),*])*) => {
        $(impl<$($type),*> Symbol<unsafe extern "C" fn($($type),*) -> Status> {
            /// # Safety
            /// That of the function.
            #[inline]
            pub(in crate::runtime) unsafe fn call(&self, $($argument: $type),*) -> CallStatus {
                // SAFETY: the caller promises what the function needs.
                CallStatus { name: self.name, status: unsafe { (self.function)($($argument),*) } }
            }
        })*
    };
}

callable! {
    []
    [a: A]
    [a: A, b: B]
    [a: A, b: B, c: C]
    [a: A, b: B, c: C, d: D]
    [a: A, b: B, c: C, d: D, e: E]
}

/// Defines `Symbols`, with a field for each function.
macro_rules! symbols {
    (
        required {$($field:ident $name:literal ($($argument:ty),*) -> $result:ty;)*}
        optional {$($later:ident $later_name:literal ($($later_argument:ty),*) -> $later_result:ty;)*}
    ) => {
        /// The functions, by their names without the common prefix.
        pub(super) struct Symbols {
            $(pub(super) $field: $crate::runtime::symbols::Symbol<unsafe extern "C" fn($($argument),*) -> $result>,)*
            $(pub(super) $later: $crate::runtime::symbols::OptionalSymbol<
                unsafe extern "C" fn($($later_argument),*) -> $later_result
            >,)*
        }

        impl Symbols {
            /// Looks every function up; the first name of a required one that the library lacks is the error.
            ///
            /// # Safety
            /// The library is the driver's that the table is about, and stays loaded as long as the result is used.
            pub(super) unsafe fn of(library: &$crate::shared_object::Library) -> Result<Self, &'static std::ffi::CStr> {
                use $crate::runtime::symbols::look_up;
                Ok(Self {
                    // SAFETY: the type is the function's prototype in the vendor's header.
                    $($field: unsafe { look_up(library, $name) }?,)*
                    // SAFETY: the type is the function's prototype in the vendor's header.
                    $($later: unsafe { look_up(library, $later_name) },)*
                })
            }
        }
    };
}

/// # Safety
/// `F` is the function's prototype, and the library stays loaded as long as the result is used.
pub(in crate::runtime) unsafe fn look_up<F: Copy>(library: &Library, name: &'static CStr) -> OptionalSymbol<F> {
    // SAFETY: the caller promises that this is the function's prototype.
    let symbol = unsafe { library.get::<F>(name) };
    symbol.map(|symbol| Symbol { name, function: *symbol }).map_err(|_| name)
}

pub(in crate::runtime) use symbols;
