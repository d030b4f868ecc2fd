//! A buffer as a Python object holds it: most are never shared, and need no count of who has them.

use std::mem;
use std::sync::Arc;

/// What an object has of its buffer.
#[derive(Debug)]
pub(super) enum BufferState<B> {
    Alone(B),
    /// With a call under way, or with those it was lent to by DLPack.
    Shared(Arc<B>),
    Freed,
}

/// A buffer that others have too, and that so cannot be taken.
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

    /// Returns the buffer, if others have it too.
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
