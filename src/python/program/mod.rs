//! The program's own objects and code that gpupool keeps and runs.

mod kept;
mod raised;

pub(super) use kept::{Kept, KeptObjects};
pub(super) use raised::{Raised, call_unasked, interrupted, interrupted_or, take_left};
