//! Calls that wait: for how long, and what ends the wait early.

mod interruption;
mod timeout;

pub(super) use interruption::{interruptible, is_main_thread};
pub(super) use timeout::Timeout;
