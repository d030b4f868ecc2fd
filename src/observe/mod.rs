//! Reports of gpupool's work, to loggers, profilers, a recording and an observer. This module knows neither libraries
//! nor pools; they call it. Without a listener, each call costs the load of one atomic.

mod activity;
pub(crate) mod delivery;
pub(crate) mod nvtx;
pub(crate) mod recording;
mod ring;
pub(crate) mod target;

pub(crate) use activity::{Activity, Took};
pub(crate) use ring::{OwnBuffer, Ring, Timed};
