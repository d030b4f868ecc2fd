//! PyTorch's pluggable allocator: its functions, its exceptions, which streams are its own, and objects of it that others
//! have made.

mod allocator;
mod exception;
mod functions;
mod stream;

pub(crate) use allocator::TorchAllocator;
pub(crate) use functions::functions as torch_functions;
