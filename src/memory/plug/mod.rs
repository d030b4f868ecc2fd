//! How other programs take memory from here: C functions, feeds of other allocators, libraries' handles, PyTorch.

pub(in crate::memory) mod c_api;
pub(in crate::memory) mod feed;
pub(in crate::memory) mod library_memory;
#[cfg(feature = "python")]
pub(crate) mod torch;
