//! The structs of `gpupool.h`, compared with it by a C compiler in a test: bindgen needs libclang at builds.
//!
//! Each is declared once, with its name there. The test compares all fields with the header's: their places, and their
//! types with those of functions' arguments.

#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::ptr;

use crate::error::{Error, Result};
use crate::memory::plug::call::null;
use crate::memory::pool::PoolId;
use crate::memory::report::{DeviceStats, Stat, device_counters, stat_counters};

pub(super) trait HeaderStruct {
    /// Its name there.
    const NAME: &'static str;

    /// Returns C that fails to compile unless the header's fields are these.
    #[cfg(test)]
    fn assert_fields() -> String;
}

/// Names a struct as the header does. Its fields have the same names there; they follow in the form in which `counters!`
/// lists them.
macro_rules! in_header {
    ($name:ident as $c:literal [$($field:ident as $same:ident,)*]) => {
        impl $crate::c_api::header::HeaderStruct for $name {
            const NAME: &'static str = $c;

            #[cfg(test)]
            fn assert_fields() -> String {
                let fields: &[String] = &[$($crate::c_api::header::assert_field(
                    stringify!($field),
                    std::mem::offset_of!($name, $field),
                    |it: &Self| &it.$field,
                )),*];
                fields.concat()
            }
        }
    };
}

/// Declares a struct of the header.
macro_rules! c_struct {
    ($(#[$about:meta])* pub struct $name:ident as $c:literal {
        $($(#[$what:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $($(#[$what])* pub $field: $type,)*
        }

        $crate::c_api::header::in_header! { $name as $c [$($field as $field,)*] }
    };
}

#[cfg(test)]
pub(super) use c_type::assert_field;
pub(super) use {c_struct, in_header};

// Its fields are numbered here.
in_header! { PoolId as "gpupool_pool_id" [] }
stat_counters! { in_header! { Stat as "gpupool_stat" } }
device_counters! { in_header! { DeviceStats as "gpupool_device_stats" } }

/// A struct of the header that begins with its size.
///
/// # Safety
/// It has the layout of C, begins with a `u64`, and all of its bytes may be zero.
pub(super) unsafe trait SizedStruct: Copy + HeaderStruct {}

const LEAST: u64 = size_of::<u64>() as u64;

/// Returns how many bytes of a struct both sides know.
///
/// # Safety
/// The place begins with the struct's size, or is null.
unsafe fn known<T: SizedStruct>(place: *const T) -> Result<usize> {
    if place.is_null() {
        return Err(null(T::NAME));
    }
    // SAFETY: the caller promises that the struct begins with its size.
    let size = unsafe { place.cast::<u64>().read_unaligned() };
    if size < LEAST {
        let name = T::NAME;
        return Err(Error::invalid_value(format!("the size of a {name} is {size}; set it to sizeof({name})")));
    }
    Ok(usize::try_from(size).unwrap_or(usize::MAX).min(size_of::<T>()))
}

/// Returns what a caller passes. Fields that the caller's version lacks are zero.
///
/// # Safety
/// The place is null, or a struct of the caller's version, which begins with its size.
///
/// # Errors
/// `ErrorKind::InvalidValue` for a null pointer, or a size that is none.
pub(super) unsafe fn read<T: SizedStruct>(place: *const T) -> Result<T> {
    // SAFETY: the caller promises as much.
    let known = unsafe { known(place) }?;
    // SAFETY: by the trait's promise all of its bytes may be zero.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: both are at least `known` bytes long: the caller's struct by its size, ours by `known`.
    unsafe { ptr::copy_nonoverlapping(place.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
    Ok(value)
}

/// Fills the fields of the caller's struct that the caller's version has. Its size stays as it is.
///
/// # Safety
/// As [`read`], and the struct may be written.
///
/// # Errors
/// As [`read`].
pub(super) unsafe fn write<T: SizedStruct>(place: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller promises as much.
    let known = unsafe { known(place) }?;
    let skipped = size_of::<u64>();
    let (from, to) = ((&raw const value).cast::<u8>(), place.cast::<u8>());
    // SAFETY: both are at least `known` bytes long, and `known` is no less than the size's own.
    unsafe { ptr::copy_nonoverlapping(from.add(skipped), to.add(skipped), known - skipped) };
    Ok(())
}

/// A function and the context that it is called with. Together they identify a registration.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Callback<F> {
    pub(super) function: F,
    pub(super) context: *mut c_void,
}

// SAFETY: the program that registers the function promises that any thread may call it with this context.
unsafe impl<F: Send> Send for Callback<F> {}
// SAFETY: the program promises it of any number of threads at a time.
unsafe impl<F: Sync> Sync for Callback<F> {}

impl<F> Callback<F> {
    /// # Errors
    /// `ErrorKind::InvalidValue` without a function.
    pub(super) fn new(function: Option<F>, context: *mut c_void) -> Result<Self> {
        Ok(Self { function: function.ok_or_else(|| null("callback"))?, context })
    }
}

/// Types as C writes them: a declarator is put where a variable's name stands.
#[cfg(test)]
mod c_type {
    use std::ffi::{c_char, c_int, c_void};

    use super::HeaderStruct;

    pub(in crate::c_api) trait CType {
        /// Returns the declaration of what the declarator names: of `*` for a pointer to the type.
        fn declare(declarator: &str) -> String;
    }

    /// Returns C that fails to compile unless the header's struct has a field of this type at this place.
    pub(in crate::c_api) fn assert_field<S: HeaderStruct, T: CType>(
        name: &str,
        offset: usize,
        _: fn(&S) -> &T,
    ) -> String {
        let (of, pointer) = (S::NAME, T::declare("*"));
        format!(
            "_Static_assert(offsetof({of}, {name}) == {offset}, \"place of {of}.{name}\");\n\
             _Static_assert(_Generic(&(({of} *)0)->{name}, {pointer}: 1, default: 0), \"{of}.{name} is at a {pointer}\");\n"
        )
    }

    impl<T: HeaderStruct> CType for T {
        fn declare(declarator: &str) -> String {
            format!("{} {declarator}", T::NAME)
        }
    }

    macro_rules! c_types {
        ($([$($generic:tt)*] $type:ty, $declarator:ident => $declaration:expr;)*) => {
            $(
                impl<$($generic)*> CType for $type {
                    fn declare($declarator: &str) -> String {
                        $declaration
                    }
                }
            )*
        };
    }

    c_types! {
        [] (), of => format!("void {of}");
        [] c_void, of => format!("void {of}");
        [] c_char, of => format!("char {of}");
        [] c_int, of => format!("int {of}");
        [] u32, of => format!("uint32_t {of}");
        [] i64, of => format!("int64_t {of}");
        [] u64, of => format!("uint64_t {of}");
        [] isize, of => format!("ptrdiff_t {of}");
        [] usize, of => format!("size_t {of}");
        [] f64, of => format!("double {of}");
        [T: CType] *mut T, of => T::declare(&format!("*{of}"));
        [T: CType] *const T, of => format!("const {}", T::declare(&format!("*{of}")));
        [T: CType, const LENGTH: usize] [T; LENGTH], of => T::declare(&format!("({of})[{LENGTH}]"));
        [F: CType] Option<F>, of => F::declare(of);
    }

    macro_rules! functions {
        ($([$($argument:ident)*])*) => {
            c_types! {
                $([R: CType, $($argument: CType),*] unsafe extern "C" fn($($argument),*) -> R, of => {
                    let arguments: &[String] = &[$($argument::declare("")),*];
                    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
                    R::declare(&format!("(*{of})({arguments})"))
                };)*
            }
        };
    }

    functions! { [] [A] [A B] [A B C] [A B C D] [A B C D E] [A B C D E F] [A B C D E F G] }

    pub(super) use c_types;
}
