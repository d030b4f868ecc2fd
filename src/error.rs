//! One error type for the whole crate.
//!
//! Every variant answers the question of the person who reads it at night: what failed, in which library and function,
//! with which status, on which device, in which file, and what to do about it.

use std::fmt;
use std::path::PathBuf;

use crate::stream::Device;

/// What every fallible call of the crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a user's own `create`, `destroy` or `set_stream`.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Everything that can go wrong. One pointer wide, so that the way without errors stays in registers.
#[derive(Debug)]
pub struct Error(Box<ErrorKind>);

/// What went wrong.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No GPU platform that the call needs: no driver, no device, or a runtime other than the one chosen.
    RuntimeUnavailable {
        /// `cuda`, `hip` or `host`.
        runtime: &'static str,
        /// Why, and what to do.
        reason: String,
    },
    /// A library could not be loaded.
    LibraryNotFound {
        /// The pool's name for it, such as `cudnn`.
        library: &'static str,
        /// Every place tried, with what was found there.
        tried: Vec<String>,
        /// What brings it, such as a pip command.
        remedy: String,
    },
    /// A library or the driver refused a call.
    Library(LibraryError),
    /// Device memory ran out while a handle was created, also after gpupool's own idle handles were destroyed.
    OutOfMemory(OutOfMemory),
    /// The process was forked after the GPU was first used, and this is the child.
    Forked,
    /// An argument that cannot be right.
    InvalidValue(String),
}

/// How a status code is to be understood, beyond its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusKind {
    /// The library says that memory ran out.
    OutOfMemory,
    /// "Not initialized": what most libraries say when a handle could not be set up, often for want of memory.
    NotInitialized,
    /// Anything else.
    Other,
}

/// A refused call of a library or of the driver.
#[derive(Debug)]
pub struct LibraryError {
    /// The library, such as `cudnn`, `cuda` for the CUDA driver, or the name of a user's own pool.
    pub library: String,
    /// The function called, such as `cudnnCreate`.
    pub function: String,
    /// The status's name, such as `CUDNN_STATUS_NOT_INITIALIZED`.
    pub status: String,
    /// The status's number.
    pub code: i32,
    /// What the status means for the caller.
    pub kind: StatusKind,
    /// The device that the call was for.
    pub device: Option<Device>,
    /// The file that the library was loaded from.
    pub path: Option<PathBuf>,
    /// What else is known, and what to do.
    pub advice: Option<String>,
    /// The error of a user's own callback.
    pub cause: Option<Cause>,
}

/// Device memory that ran out while a handle was created.
#[derive(Debug)]
pub struct OutOfMemory {
    /// The refused call.
    pub refused: LibraryError,
    /// The device.
    pub device: Device,
    /// What a handle of this library is known to take, in bytes; 0 where unknown.
    pub needed: u64,
    /// Free device memory at the last try, in bytes.
    pub free: u64,
    /// The device's memory, in bytes.
    pub total: u64,
    /// What gpupool's handles hold on this device: pool, handles, bytes.
    pub holders: Vec<(String, usize, u64)>,
}

impl Error {
    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    pub(crate) fn into_kind(self) -> ErrorKind {
        *self.0
    }

    /// A refused call with nothing known but its name and status.
    pub fn refused(library: &str, function: &str, status: impl Into<String>, code: i32, kind: StatusKind) -> Self {
        ErrorKind::Library(LibraryError {
            library: library.to_owned(),
            function: function.to_owned(),
            status: status.into(),
            code,
            kind,
            device: None,
            path: None,
            advice: None,
            cause: None,
        })
        .into()
    }

    #[cold]
    pub(crate) fn invalid_value(what: impl Into<String>) -> Self {
        ErrorKind::InvalidValue(what.into()).into()
    }

    #[cold]
    pub(crate) fn unavailable(runtime: &'static str, reason: impl Into<String>) -> Self {
        ErrorKind::RuntimeUnavailable { runtime, reason: reason.into() }.into()
    }

    /// Adds to a refused call what its caller knows; other errors pass unchanged.
    pub(crate) fn map_library(mut self, add: impl FnOnce(&mut LibraryError)) -> Self {
        if let ErrorKind::Library(refused) = self.0.as_mut() {
            add(refused);
        }
        self
    }

    pub(crate) fn on(self, device: Device) -> Self {
        self.map_library(|refused| refused.device = refused.device.or(Some(device)))
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            ErrorKind::RuntimeUnavailable { runtime, reason } => {
                write!(f, "the {runtime} runtime is unavailable: {reason}")
            }
            ErrorKind::LibraryNotFound { library, tried, remedy } => {
                write!(f, "{library} was not found.")?;
                for place in tried {
                    write!(f, "\n  tried {place}")?;
                }
                write!(f, "\n{remedy}")
            }
            ErrorKind::Library(refused) => refused.fmt(f),
            ErrorKind::OutOfMemory(out) => out.fmt(f),
            ErrorKind::Forked => f.write_str(
                "this process was forked after the GPU was first used, and CUDA does not work in such a child. \
                 Start workers with the 'spawn' or 'forkserver' method, or fork before the first GPU call",
            ),
            ErrorKind::InvalidValue(what) => f.write_str(what),
        }
    }
}

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed with {} ({})", self.library, self.function, self.status, self.code)?;
        if let Some(device) = self.device {
            write!(f, " on {device}")?;
        }
        if let Some(path) = &self.path {
            write!(f, ", library {}", path.display())?;
        }
        if let Some(advice) = &self.advice {
            write!(f, ". {advice}")?;
        }
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory on {}: {}.", self.device, self.refused)?;
        if self.needed > 0 {
            write!(f, " A {} handle takes about {}.", self.refused.library, Bytes(self.needed))?;
        }
        write!(f, " Free: {} of {}. Held by gpupool's handles:", Bytes(self.free), Bytes(self.total))?;
        if self.holders.is_empty() {
            f.write_str(" nothing")?;
        }
        for (index, (pool, handles, bytes)) in self.holders.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma} {pool} {handles} ({})", Bytes(*bytes))?;
        }
        f.write_str(
            ". Idle handles were destroyed before the last try; free memory elsewhere, such as the caches of CuPy \
             (free_all_blocks) or PyTorch (torch.cuda.empty_cache), or warm the pool before they fill the device",
        )
    }
}

/// A number of bytes as a person reads it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / f64::from(1 << 20);
        if mib >= 1024.0 { write!(f, "{:.1} GiB", mib / 1024.0) } else { write!(f, "{mib:.1} MiB") }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.kind() {
            ErrorKind::Library(refused) => refused.cause.as_deref().map(|cause| cause as _),
            ErrorKind::OutOfMemory(out) => out.refused.cause.as_deref().map(|cause| cause as _),
            _ => None,
        }
    }
}
