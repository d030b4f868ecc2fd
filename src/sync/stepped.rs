//! The atomics of `std` with a choice of a [`schedule`](super::schedule) at each operation, and locks that do not block
//! a thread of one. For tests; the wheel has those of `std`.

use std::sync::atomic::{self, Ordering};

use super::schedule::point;

/// Defines a type with the operations of an atomic that gpupool uses.
macro_rules! stepped {
    ($($name:ident($value:ty) { $($operation:ident)* })*) => {
        $(
            #[doc = concat!("[`", stringify!($name), "`](atomic::", stringify!($name), "), with choices.")]
            #[derive(Debug, Default)]
            pub(crate) struct $name(atomic::$name);

            #[allow(dead_code, reason = "all have the operations that some need")]
            impl $name {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }

                #[inline]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    point();
                    self.0.load(order)
                }

                #[inline]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    point();
                    self.0.store(value, order);
                }

                #[inline]
                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }

                #[inline]
                pub(crate) fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    f: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    point();
                    self.0.fetch_update(set, fetch, f)
                }

                $(
                    #[inline]
                    pub(crate) fn $operation(&self, value: $value, order: Ordering) -> $value {
                        point();
                        self.0.$operation(value, order)
                    }
                )*
            }
        )*
    };
}

stepped! {
    AtomicBool(bool) { swap }
    AtomicU32(u32) { swap fetch_add fetch_sub fetch_or fetch_and }
    AtomicU64(u64) { swap fetch_add fetch_sub fetch_max fetch_or fetch_and }
    AtomicUsize(usize) { swap fetch_add fetch_sub fetch_max fetch_or fetch_and }
}
