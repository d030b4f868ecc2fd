//! The structs of `gpupool.h`: each is declared once, with its name there. In the test, a C compiler compares all fields
//! with the header's: their places, and their types with those of functions' arguments.

#[cfg(test)]
mod c_type;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(super) use c_type::assert_field;

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

pub(super) use {c_struct, in_header};

// Its fields are numbered here.
in_header! { PoolId as "gpupool_pool_id" [] }
stat_counters! { in_header! { Stat as "gpupool_stat" } }
device_counters! { in_header! { DeviceStats as "gpupool_device_stats" } }
