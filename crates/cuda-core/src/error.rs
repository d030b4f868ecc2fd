//! What can go wrong between the two crates: gpupool has no memory, the driver refuses, or they do not mean the same device.

use std::fmt;

use cuda_core::DriverError;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no memory of gpupool for cuda-core.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// gpupool has no memory, or no such device; the error tells which.
    Pool(gpupool::Error),
    /// The driver refused a call of cuda-core.
    Driver(DriverError),
    /// gpupool does not use CUDA in this process.
    OtherRuntime(&'static str),
    /// The stream belongs to a context that is not its device's primary one, where gpupool's memory is.
    OtherContext {
        /// The device's ordinal, as cuda-core counts.
        ordinal: usize,
    },
    /// The size in bytes exceeds the address space.
    TooLarge {
        /// How many elements were asked for.
        length: usize,
        /// The bytes of one.
        size: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(error) => error.fmt(f),
            Self::Driver(error) => write!(f, "the driver refused a call of cuda-core: {error}"),
            Self::OtherRuntime(kind) => write!(
                f,
                "streams of cuda-core are CUDA's, and gpupool uses runtime {kind} here: unset GPUPOOL_RUNTIME, or set it to cuda"
            ),
            Self::OtherContext { ordinal } => write!(
                f,
                "the stream's context is not the primary one of device {ordinal}, where gpupool's memory is: make it by \
                 Context::new({ordinal})"
            ),
            Self::TooLarge { length, size } => write!(f, "{length} elements of {size} bytes are too many"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Pool(error) => Some(error),
            Self::Driver(error) => Some(error),
            _ => None,
        }
    }
}

impl From<gpupool::Error> for Error {
    fn from(error: gpupool::Error) -> Self {
        Self::Pool(error)
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}
