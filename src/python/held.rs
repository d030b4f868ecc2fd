//! A buffer as a Python object holds it: most are never shared, and need no count of their owners.

use std::mem;
use std::sync::Arc;

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::runtime::{Kind, get};

/// Returns NumPy's or CUDA's array interface of bytes, version 3.
pub(super) fn array_interface(py: Python<'_>, address: u64, nbytes: u64) -> PyResult<Bound<'_, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("shape", (nbytes,))?;
    interface.set_item("typestr", "|u1")?;
    interface.set_item("data", (address, false))?;
    interface.set_item("strides", py.None())?;
    interface.set_item("version", 3)?;
    Ok(interface)
}

/// Returns CUDA's array interface of bytes.
///
/// # Errors
/// `AttributeError` on the simulated device.
pub(super) fn cuda_array_interface(py: Python<'_>, address: u64, nbytes: u64) -> PyResult<Bound<'_, PyDict>> {
    if get()?.kind() == Kind::Host {
        return Err(PyAttributeError::new_err("simulated memory has no CUDA array interface; it has __dlpack__"));
    }
    array_interface(py, address, nbytes)
}

#[derive(Debug)]
pub(super) enum BufferState<B> {
    Alone(B),
    /// With a call under way, or with consumers of DLPack.
    Shared(Arc<B>),
    Freed,
}

/// The error of taking a buffer that has other owners.
#[derive(Debug)]
pub(super) struct StillShared;

impl<B> BufferState<B> {
    /// Returns the buffer; none once freed.
    #[inline]
    pub(super) fn buffer(&self) -> Option<&B> {
        match self {
            Self::Alone(buffer) => Some(buffer),
            Self::Shared(buffer) => Some(buffer),
            Self::Freed => None,
        }
    }

    /// Returns the buffer, if it has other owners.
    pub(super) fn lent(&self) -> Option<&B> {
        match self {
            Self::Shared(buffer) if Arc::strong_count(buffer) > 1 => Some(buffer),
            Self::Alone(_) | Self::Shared(_) | Self::Freed => None,
        }
    }

    /// Returns the buffer, for as long as the caller keeps it; none once freed.
    pub(super) fn share(&mut self) -> Option<Arc<B>> {
        let shared = match mem::replace(self, Self::Freed) {
            Self::Alone(buffer) => Arc::new(buffer),
            Self::Shared(buffer) => buffer,
            Self::Freed => return None,
        };
        *self = Self::Shared(Arc::clone(&shared));
        Some(shared)
    }

    /// Takes the buffer; none once freed.
    ///
    /// # Errors
    /// [`StillShared`], and it stays as it is.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<B>, StillShared> {
        match mem::replace(self, Self::Freed) {
            Self::Alone(buffer) => Ok(Some(buffer)),
            Self::Shared(buffer) => Arc::try_unwrap(buffer).map(Some).map_err(|shared| {
                *self = Self::Shared(shared);
                StillShared
            }),
            Self::Freed => Ok(None),
        }
    }
}
