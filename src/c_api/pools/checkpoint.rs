//! Checkpoints of a pool, for C.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::{PoolHandle, pool_of};
use crate::memory::checkpoint::PoolCheckpoint;
use crate::memory::plug::call::{answer_or_none, null, pointer, run};

/// `gpupool_checkpoint`.
#[derive(Debug)]
pub struct Checkpoint(PoolCheckpoint);

/// Called for a block that was live before.
pub type FreedFunction = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// Called for a block that is live afterwards.
pub type AllocatedFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, u64);

pub(in super::super) unsafe extern "C" fn pool_checkpoint(pool: *mut PoolHandle, place: *mut *mut Checkpoint) -> c_int {
    let take = || Ok(Box::into_raw(Box::new(Checkpoint(PoolCheckpoint::take(&*pool_of(pool)?)?))));
    // SAFETY: the caller passes a place for a pointer, or null.
    unsafe { answer_or_none(place, "checkpoint", ptr::null_mut(), take) }
}

pub(in super::super) unsafe extern "C" fn pool_restore(
    pool: *mut PoolHandle,
    checkpoint: *const Checkpoint,
    context: *mut c_void,
    freed: Option<FreedFunction>,
    allocated: Option<AllocatedFunction>,
) -> c_int {
    run(|| {
        // SAFETY: the caller passes a checkpoint that was not released, or null.
        let checkpoint = unsafe { checkpoint.as_ref() }.ok_or_else(|| null("checkpoint"))?;
        let restored = checkpoint.0.restore(&pool_of(pool)?)?;
        // With no lock held: they may do what they like.
        if let Some(freed) = freed {
            // SAFETY: the caller promises that the function may be called so.
            restored.freed.into_iter().for_each(|address| unsafe { freed(context, pointer(address)) });
        }
        if let Some(allocated) = allocated {
            for (address, requested) in restored.allocated {
                // SAFETY: the caller promises that the function may be called so.
                unsafe { allocated(context, pointer(address), requested) };
            }
        }
        Ok(())
    })
}

pub(in super::super) unsafe extern "C" fn checkpoint_release(checkpoint: *mut Checkpoint) {
    if !checkpoint.is_null() {
        // SAFETY: `pool_checkpoint` made it by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(checkpoint) });
    }
}
