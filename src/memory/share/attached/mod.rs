//! What this process has attached: asked for, mapped, let go once its work is done, and kept mapped for the next time.

mod attach;
mod attached_buffer;
mod attachment;
mod books;
mod hearing;
mod imported;
mod mapping;
mod news;
mod owner_process;
mod retired;

pub(in crate::memory) use attach::attach;
pub(in crate::memory) use attached_buffer::AttachedBuffer;
pub(super) use hearing::{end_idle_on, hear, listening};
pub(super) use news::News;
pub(super) use retired::{Soon, end_done};
