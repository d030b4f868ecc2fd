//! Statistics that can be summed over several places. Each counter is declared once, with its description.

/// Statistics that add others'. The sum of peaks is an upper bound of the common peak.
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

/// Defines a struct of counters, and its [`Sum`].
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
