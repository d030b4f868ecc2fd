//! The calls of a GPU platform, one trait for each subject; [`Runtime`](super::Runtime) has them all. Each platform
//! implements each trait in a file of its own, so that platforms can be compared, and a file needs only the types of
//! its subject.

mod capture;
mod memory;
mod sharing;
mod streams;
mod virtual_memory;

pub use capture::CaptureCalls;
pub use memory::MemoryCalls;
pub use sharing::SharingCalls;
pub use streams::StreamCalls;
pub use virtual_memory::VirtualMemoryCalls;
