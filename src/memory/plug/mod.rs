//! How other programs take memory from here: C functions, feeds of other allocators, libraries' handles, PyTorch.

pub mod c_api;
#[cfg(feature = "c-api")]
mod exports;
mod feed;
#[cfg(feature = "python")]
mod fence;
mod library_memory;
#[cfg(feature = "python")]
mod torch_allocator;

pub use c_api::{Api, C_API, DEVICE_MEM_HANDLER, PINNED_MEM_HANDLER};
pub use feed::feed;
#[cfg(feature = "python")]
pub(crate) use fence::fence;
pub(crate) use library_memory::LibraryMemory;
#[cfg(feature = "python")]
pub(crate) use torch_allocator::TorchAllocator;
