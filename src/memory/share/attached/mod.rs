//! What this process has attached: asked for, mapped, and let go once its work is done.

mod attach;
mod attached_buffer;
mod attachment;
mod owner_process;
mod retired;

pub(in crate::memory) use attach::attach;
pub(in crate::memory) use attached_buffer::AttachedBuffer;
pub(super) use retired::{Soon, end_done};
