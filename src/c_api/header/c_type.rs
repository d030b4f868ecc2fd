//! Types as C writes them: a declarator is put where a variable's name stands.

use std::ffi::{c_char, c_int, c_void};

use super::HeaderStruct;
use crate::c_api::{Attached, Checkpoint, ClaimHandle, PoolHandle, RangeHandle};

pub(in crate::c_api) trait CType {
    /// Returns the declaration of what the declarator names: of `*` for a pointer to the type.
    fn declare(declarator: &str) -> String;
}

/// Returns C that fails to compile unless the header's struct has a field of this type at this place.
pub(in crate::c_api) fn assert_field<S: HeaderStruct, T: CType>(name: &str, offset: usize, _: fn(&S) -> &T) -> String {
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
    [] PoolHandle, of => format!("gpupool_pool {of}");
    [] Checkpoint, of => format!("gpupool_checkpoint {of}");
    [] Attached, of => format!("gpupool_attached {of}");
    [] RangeHandle, of => format!("gpupool_range {of}");
    [] ClaimHandle, of => format!("gpupool_claim {of}");
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
