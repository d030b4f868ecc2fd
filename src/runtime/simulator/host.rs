//! The controls of the simulated devices, for programs without a GPU and for tests: how many there are, when work on their
//! streams completes ([`submit`], [`complete`]), captures, and, with the feature `fault-injection`, calls that fail
//! (`inject`) or that have a function run before them (`before_call`).
//!
//! Environment variables set the size: `GPUPOOL_HOST_DEVICES` (1) and `GPUPOOL_HOST_MEMORY` (bytes a device, 16 GiB); with
//! `GPUPOOL_HOST_SHARED` several processes have the devices together.

use std::mem;
use std::sync::MutexGuard;

use super::Simulator;
use super::devices::space;
use super::fault::{CAPTURE_INVALIDATED, refused};
use super::timeline::{StreamKey, Timeline, timeline};
use crate::error::Result;
use crate::ids::{CaptureMode, Device, RawStream};
use crate::runtime::{Kind, Stream, existing, install, require};

pub use super::captures::Graph;
#[cfg(feature = "fault-injection")]
pub use super::devices::reuse_extent_numbers;
#[cfg(not(feature = "fault-injection"))]
pub(crate) use super::fault::Call;
pub(crate) use super::fault::check;
#[cfg(feature = "fault-injection")]
pub use super::fault::{Call, Fault, before_call, clear_before_call, clear_faults, inject};
pub use super::uses::UsedBlock;
#[cfg(feature = "fault-injection")]
pub use super::uses::{break_extents, break_moved_extents, collect as collect_mistakes, register, unregister};
pub use super::{DEVICES_VARIABLE, MEMORY_VARIABLE, driver_calls};
pub(crate) use super::{allocate, synchronize_and_free};
#[cfg(schedules)]
pub use crate::sync::schedule;

/// Returns the streams and their work, if devices are simulated.
fn simulated() -> Result<MutexGuard<'static, Timeline>> {
    require(Kind::Host)?;
    Ok(timeline())
}

fn key(stream: &Stream) -> StreamKey {
    StreamKey::new(stream.raw(), stream.device())
}

/// Simulates this many devices with this many bytes each, whatever the machine has. For tests; call it before any other
/// function of gpupool. A repeated call with the same values changes nothing.
///
/// # Errors
/// `ErrorKind::RuntimeUnavailable` if another runtime was chosen before.
pub fn simulate(devices: u32, bytes: u64) -> Result<()> {
    install(Box::new(Simulator::new(devices.into(), bytes)?));
    require(Kind::Host).map(drop)
}

/// Creates a non-blocking stream that gpupool does not know of, as other libraries do; [`destroy_stream`] destroys it.
///
/// # Errors
/// As [`submit`].
pub fn create_stream(device: Device) -> Result<RawStream> {
    Ok(simulated()?.create_stream(existing(device)?, false))
}

/// As [`create_stream`], but a blocking one (`CU_STREAM_DEFAULT`): while it is captured, the legacy default stream must
/// not be used.
///
/// # Errors
/// As [`submit`].
pub fn create_blocking_stream(device: Device) -> Result<RawStream> {
    Ok(simulated()?.create_stream(existing(device)?, true))
}

/// Destroys a stream of [`create_stream`]. A later call with it fails, while a driver would crash.
///
/// # Errors
/// As [`submit`].
pub fn destroy_stream(stream: RawStream, device: Device) -> Result<()> {
    simulated()?.destroy_stream(StreamKey::new(stream, existing(device)?))
}

/// Destroys a stream of [`create_stream`] whose work goes on, and creates another one, which gets its address, as drivers
/// give it.
///
/// # Errors
/// As [`submit`].
#[cfg(feature = "fault-injection")]
pub fn replace_stream(stream: RawStream, device: Device) -> Result<()> {
    simulated()?.replace_stream(StreamKey::new(stream, existing(device)?))
}

/// Puts a piece of work on the stream and returns its number; it is done when [`complete`] says so.
///
/// # Errors
/// `ErrorKind::RuntimeUnavailable` on another runtime; `ErrorKind::Library` if the stream is gone.
pub fn submit(stream: &Stream) -> Result<u64> {
    simulated()?.submit(key(stream))
}

/// As [`submit`], for work that uses these blocks: until it is done nothing of it may be unmapped, nor be given
/// to work that is not ordered behind it. Work on a captured stream, of which the number is 0, uses it as long as the graph
/// lives. With the feature `fault-injection` a mistake ends the process, unless it is collected.
///
/// # Errors
/// As [`submit`].
pub fn submit_using(stream: &Stream, blocks: &[UsedBlock]) -> Result<u64> {
    simulated()?.submit_using(key(stream), blocks)
}

/// Completes the stream's work up to this number, as far as what it waits for allows.
///
/// # Errors
/// As [`submit`].
pub fn complete(stream: &Stream, number: u64) -> Result<()> {
    simulated()?.complete_allowed(key(stream), number)
}

/// Completes the work of every stream of every device.
///
/// # Errors
/// As [`submit`].
pub fn complete_all() -> Result<()> {
    simulated()?.complete_all(None)
}

/// Returns whether the device has access to the memory that is mapped or allocated at the address. Every device has
/// access to contiguous pinned memory.
pub fn accessible(address: u64, device: Device) -> bool {
    space().is_accessible(address, 1, device)
}

/// Starts recording the stream's work (`cuStreamBeginCapture`).
///
/// # Errors
/// As [`submit`], and if the stream is captured already.
pub fn begin_capture(stream: &Stream, mode: CaptureMode) -> Result<()> {
    simulated()?.begin_capture(key(stream), mode)
}

/// Ends the recording (`cuStreamEndCapture`) and returns the graph.
///
/// # Errors
/// As [`submit`], and with code 901 if a forbidden call invalidated the capture.
pub fn end_capture(stream: &Stream) -> Result<Graph> {
    // What a spoiled capture keeps is dropped here, where the timeline is free.
    let mut capture = simulated()?.end_capture(key(stream))?;
    if !capture.is_valid {
        return Err(refused("end_capture", CAPTURE_INVALIDATED));
    }
    Ok(mem::take(&mut capture.graph))
}
