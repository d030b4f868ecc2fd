//! PyTorch's pluggable allocator: its functions, its exceptions, and which streams are its own.

mod exception;
pub(crate) mod functions;
mod stream;
