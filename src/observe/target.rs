//! The targets of log records; in Python's `logging` the names of loggers, with dots.

/// Which GPU platform is used; forks.
pub(crate) const RUNTIME: &str = "gpupool::runtime";
/// Loading of libraries.
pub(crate) const LIBRARY: &str = "gpupool::library";
/// Handle pools.
pub(crate) const HANDLE: &str = "gpupool::handle";
/// Device memory.
pub(crate) const MEMORY: &str = "gpupool::memory";
