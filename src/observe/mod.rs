//! What gpupool tells of its work: to loggers, to profilers, to a recording, and to an observer.
//!
//! This room knows neither libraries nor pools; they call it. Where no one listens, each call costs the load of one
//! atomic.

mod activity;
pub(crate) mod delivery;
pub(crate) mod nvtx;
pub(crate) mod recording;
mod ring;
pub(crate) mod target;

pub(crate) use activity::{Activity, Took};
pub(crate) use ring::{OwnBuffer, Ring, Timed};
