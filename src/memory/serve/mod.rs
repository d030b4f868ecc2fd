//! A request's way: from a free block of the thread's cache to pages that move or grow, and to what is tried when memory
//! runs out; and the way back.

pub(in crate::memory) mod allocate;
pub(in crate::memory) mod grow;
pub(in crate::memory) mod lending;
pub(in crate::memory) mod miss;
pub(in crate::memory) mod settle;
pub(in crate::memory) mod trim;
