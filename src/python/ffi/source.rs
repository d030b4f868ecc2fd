//! Sources of pools' memory in Python: the program promises that what they return is memory without another owner.

use std::sync::Arc;

use crate::error::Result;
use crate::memory::SegmentSource;
use crate::python::program::Kept;
use crate::runtime::Stream;

/// A [`SegmentSource`] of Python code, which has no `unsafe`.
pub(in crate::python) trait PythonSource: Send + Sync + std::fmt::Debug {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64>;
    fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()>;
}

/// A source whose promise is trusted.
#[derive(Debug)]
pub(in crate::python) struct Trusted<S>(pub(in crate::python) S);

// SAFETY: the Python program that names the source promises what it returns.
unsafe impl<S: PythonSource> SegmentSource for Trusted<S> {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        self.0.allocate(bytes, stream)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        self.0.free(address, bytes, stream)
    }
}

/// A source that keeps a Python object alive.
#[derive(Debug)]
pub(in crate::python) struct Keeping<S> {
    source: S,
    _object: Arc<Kept>,
}

impl<S> Keeping<S> {
    pub(in crate::python) const fn new(source: S, object: Arc<Kept>) -> Self {
        Self { source, _object: object }
    }
}

// SAFETY: the source inside promises the same.
unsafe impl<S: SegmentSource> SegmentSource for Keeping<S> {
    fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        self.source.allocate(bytes, stream)
    }

    unsafe fn free(&self, address: u64, bytes: u64, stream: &Stream) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.source.free(address, bytes, stream) }
    }
}
