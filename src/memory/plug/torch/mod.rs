//! PyTorch's pluggable allocator: its functions, its exceptions, and which streams are its own.

mod exception;
mod functions;
mod stream;

pub(crate) use functions::functions as torch_functions;
