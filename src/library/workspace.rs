//! Workspaces: device memory of ours that a library's handles compute with, where the library takes such memory.
//!
//! A handle has one for each stream it runs on, so that work under way on one stream shares none with work on another.
//! In a capture it gets one that the graph keeps for as long as it, or anything instantiated from it, lives: no two
//! graphs share one, and none is freed while a graph may use it, whichever thread ends and whatever is trimmed. If none
//! can be allocated, the library's own stays in use, which is safe everywhere and slower in graphs.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::ids::{CaptureStatus, Device, RawStream};
use crate::runtime::{self, BoundDevice, Capture, RelaxedCapture, Stream, StreamIdentity};
use crate::sync::lock;

/// How many streams of a handle get a workspace of their own. Further streams use the library's, as no driver reports
/// when a stream is gone and its workspace is free for another. The number was not measured: a workspace of cuBLAS
/// takes 32 MiB.
const STREAMS: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Workspace {
    pub(super) address: u64,
    pub(super) bytes: u64,
    device: Device,
}

/// All workspaces of a library in the process.
#[derive(Debug)]
pub(super) struct Workspaces {
    state: Mutex<WorkspacesState>,
}

#[derive(Debug)]
struct WorkspacesState {
    all: Vec<Workspace>,
    /// Those of graphs that are gone.
    spare: Vec<Workspace>,
}

impl Workspaces {
    pub(super) const fn new() -> Self {
        Self { state: Mutex::new(WorkspacesState { all: Vec::new(), spare: Vec::new() }) }
    }

    /// Device memory that the library's workspaces take.
    pub(super) fn bytes(&self, device: Device) -> u64 {
        let state = lock(&self.state);
        state.all.iter().filter(|workspace| workspace.device == device).map(|workspace| workspace.bytes).sum()
    }

    /// Lends a workspace that is not in use.
    fn lend(&'static self, device: Device, bytes: u64) -> Result<LentWorkspace> {
        let is_fit = |spare: &mut Workspace| spare.device == device && spare.bytes == bytes;
        let spare = lock(&self.state).spare.extract_if(.., is_fit).next();
        let workspace = match spare {
            Some(spare) => spare,
            None => {
                let runtime = runtime::get()?;
                let _bound = BoundDevice::of(runtime, device)?;
                let _relaxed = RelaxedCapture::new(runtime)?;
                let workspace = Workspace { address: runtime.memory_allocate(bytes)?, bytes, device };
                lock(&self.state).all.push(workspace);
                workspace
            }
        };
        Ok(LentWorkspace { workspace, home: self })
    }

    /// Frees what graphs left behind on the device, after waiting for it, and returns the first refusal.
    pub(super) fn release_spare(&self, device: Device) -> Result<()> {
        let spare: Vec<_> = lock(&self.state).spare.extract_if(.., |spare| spare.device == device).collect();
        self.free(spare)
    }

    /// Frees workspaces that nobody has any more, after waiting for the device, and returns the first refusal.
    fn free(&self, workspaces: Vec<Workspace>) -> Result<()> {
        let mut result = Ok(());
        for workspace in workspaces {
            let free = || {
                let runtime = runtime::get()?;
                let _bound = BoundDevice::of(runtime, workspace.device)?;
                let _relaxed = RelaxedCapture::new(runtime)?;
                // SAFETY: `lend` allocated it, and neither a handle nor a graph has it any more.
                unsafe { runtime.memory_free(workspace.address) }.map_err(|e| e.on(workspace.device))
            };
            result = result.and(free());
            // Also where the driver refused, for it is not asked again.
            lock(&self.state).all.retain(|other| *other != workspace);
        }
        result
    }
}

/// A workspace that a handle keeps, or a graph. The driver drops a graph's once the graph is gone, on a thread that may
/// call no driver.
#[derive(Debug)]
struct LentWorkspace {
    workspace: Workspace,
    home: &'static Workspaces,
}

impl Drop for LentWorkspace {
    fn drop(&mut self) {
        lock(&self.home.state).spare.push(self.workspace);
    }
}

/// The workspaces of one handle, which only its holder asks for.
#[derive(Debug)]
pub(super) struct HandleWorkspaces {
    home: &'static Workspaces,
    bytes: u64,
    /// One more than the address of the stream whose workspace is set, outside of captures; 0 if that is not known.
    stream_and_one: AtomicUsize,
    /// That stream's own number: another one may get its address.
    number: AtomicU64,
    kept: Mutex<KeptWorkspaces>,
}

#[derive(Debug, Default)]
struct KeptWorkspaces {
    streams: Vec<(StreamIdentity, LentWorkspace)>,
    graphs: Vec<KeptByGraph>,
}

/// What a graph keeps that is being captured, or was.
#[derive(Debug)]
struct KeptByGraph {
    capture: u64,
    stream: RawStream,
    lent: Weak<LentWorkspace>,
}

impl HandleWorkspaces {
    pub(super) fn new(home: &'static Workspaces, bytes: u64) -> Self {
        let (stream_and_one, number) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { home, bytes, stream_and_one, number, kept: Mutex::default() }
    }

    /// Frees the workspaces of a handle that was destroyed, or that the library would not destroy: its last work may use
    /// them, so nobody else gets them. Graphs keep theirs.
    pub(super) fn free(self) -> Result<()> {
        let kept = self.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        let taken = |(_, lent): (StreamIdentity, LentWorkspace)| ManuallyDrop::new(lent).workspace;
        self.home.free(kept.streams.into_iter().map(taken).collect())
    }

    /// Forgets which workspace is set, for the owner may have set another.
    pub(super) fn forget(&self) {
        self.stream_and_one.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn is_set_for(&self, stream: &Stream, number: u64) -> bool {
        self.stream_and_one.load(Ordering::Relaxed) == stream.raw().address().wrapping_add(1)
            && self.number.load(Ordering::Relaxed) == number
    }

    /// Ensures that the handle has the stream's workspace, or the capture's if the stream is captured. `set` sets one
    /// on the handle, or with none the library's own, which also setting the stream does.
    #[inline]
    pub(super) fn fit(
        &self,
        stream: &Stream,
        was_stream_set: bool,
        set: impl FnOnce(Option<Workspace>) -> Result<()>,
    ) -> Result<()> {
        // The legacy default stream is never captured itself.
        let status = if stream.raw().is_legacy() { CaptureStatus::None } else { stream.capture_status()? };
        let number = if status == CaptureStatus::None { stream.id_outside_captures()? } else { 0 };
        if status == CaptureStatus::None && !was_stream_set && self.is_set_for(stream, number) {
            return Ok(());
        }
        self.change(stream, number, status, was_stream_set, set)
    }

    #[cold]
    fn change(
        &self,
        stream: &Stream,
        number: u64,
        status: CaptureStatus,
        was_stream_set: bool,
        set: impl FnOnce(Option<Workspace>) -> Result<()>,
    ) -> Result<()> {
        self.forget();
        let workspace = match status {
            CaptureStatus::None | CaptureStatus::Implicit => self.of_stream(stream, number),
            CaptureStatus::Active => {
                stream.capture().ok().flatten().and_then(|capture| self.of_capture(stream, capture))
            }
            // This capture will never become a graph.
            CaptureStatus::Invalidated => return Ok(()),
        };
        if workspace.is_some() || !was_stream_set {
            set(workspace)?;
        }
        if status != CaptureStatus::Active {
            self.stream_and_one.store(stream.raw().address().wrapping_add(1), Ordering::Relaxed);
            self.number.store(number, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the stream's workspace; none where the library's own is to be used.
    fn of_stream(&self, stream: &Stream, number: u64) -> Option<Workspace> {
        let identity = StreamIdentity::numbered(stream, Some(number));
        // It is another stream in each thread.
        if identity.is_per_thread() {
            return None;
        }
        {
            let kept = lock(&self.kept);
            if let Some((_, lent)) = kept.streams.iter().find(|(known, _)| identity.is_behind(known)) {
                return Some(lent.workspace);
            }
            // Work of a stream that is gone may use the workspace of this address, and nothing waits for that work but
            // what spoils captures of others.
            let is_taken = kept.streams.iter().any(|(known, _)| known.had_address_of(&identity));
            if is_taken || kept.streams.len() >= STREAMS {
                return None;
            }
        }
        let lent = self.home.lend(stream.device(), self.bytes).ok()?;
        let workspace = lent.workspace;
        lock(&self.kept).streams.push((identity, lent));
        Some(workspace)
    }

    fn of_capture(&self, stream: &Stream, capture: Capture) -> Option<Workspace> {
        {
            let mut kept = lock(&self.kept);
            kept.graphs.retain(|graph| graph.lent.strong_count() > 0);
            let is_known = |known: &&KeptByGraph| known.capture == capture.id && known.stream == stream.raw();
            // The graph is being captured, so it keeps it alive beyond this.
            if let Some(lent) = kept.graphs.iter().find(is_known).and_then(|known| known.lent.upgrade()) {
                return Some(lent.workspace);
            }
        }
        let in_graph = Arc::new(self.home.lend(stream.device(), self.bytes).ok()?);
        let (workspace, lent) = (in_graph.workspace, Arc::downgrade(&in_graph));
        // SAFETY: the caller promises that the stream stays captured until it has the handle, so its graph is alive.
        unsafe { runtime::get().ok()?.graph_retain(capture.graph, Box::new(in_graph)) }.ok()?;
        lock(&self.kept).graphs.push(KeptByGraph { capture: capture.id, stream: stream.raw(), lent });
        Some(workspace)
    }
}
