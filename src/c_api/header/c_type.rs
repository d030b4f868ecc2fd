//! Types as C writes them: a declarator is put where a variable's name stands.

use std::ffi::{c_char, c_int, c_void};

use super::HeaderStruct;
use crate::c_api::{Attached, Checkpoint, PoolHandle};

/// A type that C knows.
pub(in crate::c_api) trait CType {
    /// Returns the declaration of what the declarator names: of `*` for a pointer to the type.
    fn declare(declarator: &str) -> String;
}

/// A field of a struct.
#[derive(Debug)]
pub(in crate::c_api) struct Field {
    pub(super) name: &'static str,
    pub(super) offset: usize,
    /// The type of a pointer to it.
    pub(super) pointer: String,
}

impl Field {
    pub(in crate::c_api) fn new<S, T: CType>(name: &'static str, offset: usize, _: fn(&S) -> &T) -> Self {
        Self { name, offset, pointer: T::declare("*") }
    }
}

impl<T: HeaderStruct> CType for T {
    fn declare(declarator: &str) -> String {
        format!("{} {declarator}", T::NAME)
    }
}

macro_rules! named {
    ($($type:ty = $name:literal),*) => {
        $(
            impl CType for $type {
                fn declare(declarator: &str) -> String {
                    format!("{} {declarator}", $name)
                }
            }
        )*
    };
}

named! {
    () = "void", c_void = "void", c_char = "char", c_int = "int", u32 = "uint32_t", i64 = "int64_t", u64 = "uint64_t",
    isize = "ptrdiff_t", usize = "size_t", f64 = "double",
    PoolHandle = "gpupool_pool", Checkpoint = "gpupool_checkpoint", Attached = "gpupool_attached"
}

impl<T: CType> CType for *mut T {
    fn declare(declarator: &str) -> String {
        T::declare(&format!("*{declarator}"))
    }
}

impl<T: CType> CType for *const T {
    fn declare(declarator: &str) -> String {
        format!("const {}", T::declare(&format!("*{declarator}")))
    }
}

impl<T: CType, const LENGTH: usize> CType for [T; LENGTH] {
    fn declare(declarator: &str) -> String {
        T::declare(&format!("({declarator})[{LENGTH}]"))
    }
}

/// A function that may be null.
impl<F: CType> CType for Option<F> {
    fn declare(declarator: &str) -> String {
        F::declare(declarator)
    }
}

macro_rules! functions {
    ($([$($argument:ident)*])*) => {
        $(
            impl<R: CType, $($argument: CType),*> CType for unsafe extern "C" fn($($argument),*) -> R {
                fn declare(declarator: &str) -> String {
                    let arguments: &[String] = &[$($argument::declare("")),*];
                    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
                    R::declare(&format!("(*{declarator})({arguments})"))
                }
            }
        )*
    };
}

functions! { [] [A] [A B] [A B C] [A B C D] [A B C D E] [A B C D E F] [A B C D E F G] }
