//! Statistics: each counter is declared once, where it is described.
//!
//! From the declaration come the struct, the sum over several places, and a list of the counters: a macro with the struct's
//! name, which gives the list to another macro, so that what Python and C see names no counter again.

use std::time::Duration;

/// Statistics to which those of other places are added. Peaks too, so that they are bounds of what was at once.
pub(crate) trait Sum {
    fn add(&mut self, other: &Self);
}

/// Numbers, whose sum is `+=`.
macro_rules! numbers {
    ($($number:ty),*) => {
        $(
            impl Sum for $number {
                fn add(&mut self, other: &Self) {
                    *self += *other;
                }
            }
        )*
    };
}

numbers!(u64, i64, Duration);

impl<T: Sum, const KINDS: usize> Sum for [T; KINDS] {
    fn add(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(sum, more)| sum.add(more));
    }
}

/// Makes a struct all of whose fields are counters, its [`Sum`] and its list. A counter is listed with the name that Python
/// has for it, after `as` if it is another one; `as _` leaves a field out whose own counters have a list.
///
/// It begins with a `$`, which this macro cannot write into the macro that it makes.
macro_rules! counters {
    ($dollar:tt $(#[$about:meta])* pub struct $name:ident as $list:ident {
        $($(#[$what:meta])* pub $counter:ident: $kind:ty $(as $shown:tt)?,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$what])* pub $counter: $kind,)*
        }

        impl $crate::counters::Sum for $name {
            fn add(&mut self, other: &Self) {
                $($crate::counters::Sum::add(&mut self.$counter, &other.$counter);)*
            }
        }

        $crate::counters::counters! { @list $dollar $list [] $($counter $(as $shown)?,)* }
    };
    (@list $dollar:tt $list:ident [$($listed:tt)*]) => {
        // Features and tests decide which lists are used.
        #[allow(unused_macros)]
        macro_rules! $list {
            ($dollar next:ident! { $dollar($dollar before:tt)* } $dollar($dollar lists:tt)*) => {
                $dollar next! { $dollar($dollar before)* $dollar($dollar lists)* [$($listed)*] }
            };
        }
        #[allow(unused_imports)]
        pub(crate) use $list;
    };
    (@list $dollar:tt $list:ident [$($listed:tt)*] $counter:ident as _, $($rest:tt)*) => {
        $crate::counters::counters! { @list $dollar $list [$($listed)*] $($rest)* }
    };
    (@list $dollar:tt $list:ident [$($listed:tt)*] $counter:ident as $shown:ident, $($rest:tt)*) => {
        $crate::counters::counters! { @list $dollar $list [$($listed)* $counter as $shown,] $($rest)* }
    };
    (@list $dollar:tt $list:ident [$($listed:tt)*] $counter:ident, $($rest:tt)*) => {
        $crate::counters::counters! { @list $dollar $list [$($listed)* $counter as $counter,] $($rest)* }
    };
}

pub(crate) use counters;
