//! What CuPy's compiled modules use of each other: a C function for the current stream, and the fields of objects.
//!
//! CuPy's own pool goes that way, and calls no class. Each is compared with what CuPy's public calls make before it is
//! used; one that has changed is not used, and the public calls are.

mod layout;
mod memory;
mod stream;

pub(in crate::python) use memory::Memories;
pub(in crate::python) use stream::CurrentStream;
