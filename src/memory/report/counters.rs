//! Statistics that can be added up over several places: each counter is declared once, where it is described.

/// Statistics to which those of other places are added. Peaks too, so that they are bounds of what was at once.
pub(in crate::memory) trait Sum {
    fn add(&mut self, other: &Self);
}

impl Sum for u64 {
    fn add(&mut self, other: &Self) {
        *self += other;
    }
}

impl Sum for i64 {
    fn add(&mut self, other: &Self) {
        *self += other;
    }
}

impl<T: Sum, const KINDS: usize> Sum for [T; KINDS] {
    fn add(&mut self, other: &Self) {
        self.iter_mut().zip(other).for_each(|(sum, more)| sum.add(more));
    }
}

/// Makes a struct all of whose fields are counters, and its [`Sum`].
macro_rules! counters {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$what:meta])* pub $counter:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$what])* pub $counter: $kind,)*
        }

        impl $crate::memory::report::counters::Sum for $name {
            fn add(&mut self, other: &Self) {
                $($crate::memory::report::counters::Sum::add(&mut self.$counter, &other.$counter);)*
            }
        }
    };
}

pub(super) use counters;
