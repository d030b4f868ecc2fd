//! Captures of streams, and what their graphs keep.

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::driver::sys;

use super::stream_context::is_gone;
use super::{CallStatus, Cuda, Status, Symbol, as_stream, documented_name};
use crate::error::{Error, Result};
use crate::ids::{CaptureMode, CaptureStatus, RawStream};
use crate::runtime::{Capture, CaptureCalls, RawGraph};

const CAPTURE_IMPLICIT: Status = sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as Status;

fn as_graph(graph: RawGraph) -> *mut c_void {
    ptr::without_provenance_mut(graph.0)
}

/// Drops what [`CaptureCalls::graph_retain`] kept, on a thread of the driver.
unsafe extern "C" fn drop_kept(kept: *mut c_void) {
    // SAFETY: `graph_retain` made this box for the driver, which calls this once.
    drop(unsafe { Box::from_raw(kept.cast::<Box<dyn Send>>()) });
}

impl CaptureCalls for Cuda {
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode> {
        let mut exchanged = mode.number();
        // SAFETY: the mode is a valid one, and the driver writes the previous one in its place.
        self.check(unsafe { self.symbols.exchange_capture_mode.call(&mut exchanged) })?;
        Ok(CaptureMode::of(exchanged))
    }

    unsafe fn stream_capture_status(&self, stream: RawStream) -> Result<CaptureStatus> {
        let mut status: c_int = 0;
        // SAFETY: the caller promises that the stream is alive.
        let asked = unsafe { self.symbols.stream_is_capturing.call(as_stream(stream), &mut status) };
        // The end of a context ends the captures of its streams.
        if is_gone(asked.status) {
            return Ok(CaptureStatus::None);
        }
        // Only of the legacy default stream. The query harms no capture.
        if asked.status == CAPTURE_IMPLICIT {
            return Ok(CaptureStatus::Implicit);
        }
        self.check(asked)?;
        Ok(CaptureStatus::of(status))
    }

    unsafe fn stream_capture(&self, stream: RawStream) -> Result<Option<Capture>> {
        let Symbol { name, function: capture_info } = self.optional(self.symbols.capture_info)?;
        let mut status: c_int = 0;
        let (mut id, mut graph) = (0, ptr::null_mut());
        // SAFETY: the caller promises that the stream is alive, the first three are valid places, and the rest may be null.
        let asked = unsafe {
            let none = ptr::null_mut();
            capture_info(as_stream(stream), &mut status, &mut id, &mut graph, none, ptr::null_mut(), ptr::null_mut())
        };
        self.check(CallStatus { name, status: asked })?;
        match CaptureStatus::known(status) {
            Some(CaptureStatus::Active) => Ok(Some(Capture { id, graph: RawGraph(graph.addr()) })),
            Some(_) => Ok(None),
            // There may be a capture, and what was written of it may be anything.
            None => Err(Error::unavailable(format!(
                "{} returned the capture status {status} of stream {:#x}, which this version of gpupool \
                 does not know: end the capture first",
                documented_name(name),
                stream.address()
            ))),
        }
    }

    unsafe fn graph_retain(&self, graph: RawGraph, kept: Box<dyn Send>) -> Result<()> {
        let create = self.optional(self.symbols.user_object_create)?;
        let release = self.optional(self.symbols.user_object_release)?;
        let retain = self.optional(self.symbols.graph_retain)?;
        let kept: *mut Box<dyn Send> = Box::into_raw(Box::new(kept));
        let mut object = ptr::null_mut();
        let no_sync = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
        // SAFETY: `object` is a valid place, and `drop_kept` ends what `kept` points to.
        let created = self.check(unsafe { create.call(&mut object, kept.cast(), drop_kept, 1, no_sync) });
        if let Err(error) = created {
            // SAFETY: the driver refused it, so the box is still this function's.
            drop(unsafe { Box::from_raw(kept) });
            return Err(error);
        }
        let move_to_graph = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
        // SAFETY: the object is alive, and the caller promises that the graph is.
        let retained = self.check(unsafe { retain.call(as_graph(graph), object, 1, move_to_graph) });
        retained.inspect_err(|_| {
            // SAFETY: the graph did not take the only reference, which is this function's.
            let _ = unsafe { release.call(object, 1) };
        })
    }
}
