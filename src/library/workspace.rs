//! Workspaces: device memory of ours that a library's handles compute with, where the library takes such memory.
//!
//! A handle has one for each stream it runs on, so that work under way on one stream shares none with work on another.
//! In a capture it gets one that the graph keeps for as long as it, or anything instantiated from it, lives: no two graphs
//! share one, and none is freed while a graph may use it, whichever thread ends and whatever is trimmed. If none can be
//! allocated, the library's own stays in use, which is safe everywhere and slower in graphs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Result;
use crate::ids::{CaptureStatus, Device, RawStream};
use crate::runtime::{self, BoundDevice, Capture, RelaxedCapture, Runtime, Stream, StreamIdentity};
use crate::sync::lock;

/// How many streams of a handle get a workspace of their own. Further streams use the library's, as no driver reports when a
/// stream is gone and its workspace is free for another. The number was not measured: a workspace of cuBLAS takes 32 MiB.
const STREAMS: usize = 8;

/// The id of a capture that the driver does not identify.
const UNIDENTIFIED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Workspace {
    pub(super) address: u64,
    pub(super) bytes: u64,
    device: Device,
}

/// All workspaces of a library in the process, but for those that a handle has for its streams.
#[derive(Debug)]
pub(super) struct Workspaces {
    state: Mutex<WorkspacesState>,
}

#[derive(Debug)]
struct WorkspacesState {
    /// Those of graphs that are gone.
    spare: Vec<Workspace>,
    /// What all workspaces take, those of handles too, by the device's ordinal.
    bytes: Vec<u64>,
}

impl WorkspacesState {
    fn add(&mut self, device: Device, bytes: u64) {
        let missing = (device.ordinal() + 1).saturating_sub(self.bytes.len());
        self.bytes.extend(std::iter::repeat_n(0, missing));
        if let Some(taken) = self.bytes.get_mut(device.ordinal()) {
            *taken = taken.wrapping_add(bytes);
        }
    }
}

impl Workspaces {
    pub(super) const fn new() -> Self {
        Self { state: Mutex::new(WorkspacesState { spare: Vec::new(), bytes: Vec::new() }) }
    }

    /// Device memory that the library's workspaces take.
    pub(super) fn bytes(&self, device: Device) -> u64 {
        lock(&self.state).bytes.get(device.ordinal()).copied().unwrap_or(0)
    }

    /// Returns a workspace that is not in use.
    fn obtain(&self, runtime: &'static dyn Runtime, device: Device, bytes: u64) -> Result<Workspace> {
        let is_fit = |spare: &Workspace| spare.device == device && spare.bytes == bytes;
        let spare = {
            let mut state = lock(&self.state);
            state.spare.iter().position(is_fit).map(|place| state.spare.swap_remove(place))
        };
        if let Some(spare) = spare {
            return Ok(spare);
        }
        let _bound = BoundDevice::of(runtime, device)?;
        let _relaxed = RelaxedCapture::new(runtime)?;
        let address = runtime.memory_allocate(bytes)?;
        lock(&self.state).add(device, bytes);
        Ok(Workspace { address, bytes, device })
    }

    /// Frees all of the workspaces, after waiting for the device, and returns the first refusal.
    fn free(&self, runtime: &'static dyn Runtime, workspaces: Vec<Workspace>) -> Result<()> {
        let mut result = Ok(());
        for workspace in workspaces {
            let free = || {
                let _bound = BoundDevice::of(runtime, workspace.device)?;
                let _relaxed = RelaxedCapture::new(runtime)?;
                // SAFETY: `obtain` allocated it, and neither a handle nor a graph has it any more.
                unsafe { runtime.memory_free(workspace.address) }.map_err(|e| e.on(workspace.device))
            };
            result = result.and(free());
            // Also where the driver refused, for it is not asked again.
            lock(&self.state).add(workspace.device, workspace.bytes.wrapping_neg());
        }
        result
    }

    /// Frees what graphs left behind on the device.
    pub(super) fn release_spare(&self, device: Device) -> Result<()> {
        let spare: Vec<_> = lock(&self.state).spare.extract_if(.., |spare| spare.device == device).collect();
        if spare.is_empty() { Ok(()) } else { self.free(runtime::get()?, spare) }
    }
}

/// A workspace that a graph keeps. The driver drops it once the graph is gone, on a thread that may call no driver.
struct InGraph {
    workspace: Workspace,
    home: &'static Workspaces,
}

impl Drop for InGraph {
    fn drop(&mut self) {
        lock(&self.home.state).spare.push(self.workspace);
    }
}

/// What a workspace is for: a stream, or a stream in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WorkspaceUse {
    stream: RawStream,
    /// The stream's own number: another one may get its address. 0 in a capture, which has a number of its own.
    number: u64,
    /// 0 for none.
    capture: u64,
}

/// What a handle's present workspace is for. Only the handle's holder reads and writes it.
#[derive(Debug)]
struct CurrentUse {
    /// One more than the stream's address; 0 if what the workspace is for is not known.
    stream_and_one: AtomicUsize,
    number: AtomicU64,
    capture: AtomicU64,
}

impl CurrentUse {
    const fn unknown() -> Self {
        Self { stream_and_one: AtomicUsize::new(0), number: AtomicU64::new(0), capture: AtomicU64::new(0) }
    }

    #[inline]
    fn is(&self, wanted: WorkspaceUse) -> bool {
        self.stream_and_one.load(Ordering::Relaxed) == wanted.stream.address().wrapping_add(1)
            && self.number.load(Ordering::Relaxed) == wanted.number
            && self.capture.load(Ordering::Relaxed) == wanted.capture
    }

    fn set(&self, current: WorkspaceUse) {
        self.stream_and_one.store(current.stream.address().wrapping_add(1), Ordering::Relaxed);
        self.number.store(current.number, Ordering::Relaxed);
        self.capture.store(current.capture, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.stream_and_one.store(0, Ordering::Relaxed);
    }
}

/// The workspaces of one handle, which only its holder asks for.
#[derive(Debug)]
pub(super) struct HandleWorkspaces {
    home: &'static Workspaces,
    bytes: u64,
    current_use: CurrentUse,
    kept: Mutex<KeptWorkspaces>,
}

#[derive(Debug, Default)]
struct KeptWorkspaces {
    streams: Vec<(StreamIdentity, Workspace)>,
    graphs: Vec<(WorkspaceUse, Weak<InGraph>)>,
}

impl HandleWorkspaces {
    pub(super) fn new(home: &'static Workspaces, bytes: u64) -> Self {
        Self { home, bytes, current_use: CurrentUse::unknown(), kept: Mutex::default() }
    }

    /// Forgets which workspace is set, for the owner may have set another.
    pub(super) fn forget(&self) {
        self.current_use.forget();
    }

    /// Ensures that the handle has the stream's workspace, or the capture's if the stream is captured. `set` sets one on the
    /// handle, or with none the library's own, which also setting the stream does.
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
        let is_right = || self.current_use.is(WorkspaceUse { stream: stream.raw(), number, capture: 0 });
        if status == CaptureStatus::None && !was_stream_set && is_right() {
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
        let capture = match status {
            CaptureStatus::None | CaptureStatus::Implicit => None,
            CaptureStatus::Active => Some(stream.capture().ok().flatten()),
            // This capture will never become a graph.
            CaptureStatus::Invalidated => return Ok(()),
        };
        let id = capture.map_or(0, |capture| capture.map_or(UNIDENTIFIED, |capture| capture.id));
        let wanted = WorkspaceUse { stream: stream.raw(), number, capture: id };
        if !was_stream_set && self.current_use.is(wanted) {
            return Ok(());
        }
        let workspace = match capture {
            None => self.of_stream(stream, number)?,
            Some(Some(capture)) => self.of_capture(stream, wanted, capture),
            Some(None) => None,
        };
        self.forget();
        if workspace.is_some() || !was_stream_set {
            set(workspace)?;
        }
        self.current_use.set(wanted);
        Ok(())
    }

    /// Returns the stream's workspace; none where the library's own is to be used.
    fn of_stream(&self, stream: &Stream, number: u64) -> Result<Option<Workspace>> {
        let identity = StreamIdentity::numbered(stream, Some(number));
        // It is another stream in each thread.
        if identity.is_per_thread() {
            return Ok(None);
        }
        {
            let kept = lock(&self.kept);
            if let Some((_, known)) = kept.streams.iter().find(|(known, _)| identity.is_behind(known)) {
                return Ok(Some(*known));
            }
            // Work of a stream that is gone may use the workspace of this address, and nothing waits for that work but what
            // spoils captures of others.
            let is_taken = kept.streams.iter().any(|(known, _)| known.had_address_of(&identity));
            if is_taken || kept.streams.len() >= STREAMS {
                return Ok(None);
            }
        }
        let Ok(workspace) = self.home.obtain(runtime::get()?, stream.device(), self.bytes) else { return Ok(None) };
        lock(&self.kept).streams.push((identity, workspace));
        Ok(Some(workspace))
    }

    fn of_capture(&self, stream: &Stream, wanted: WorkspaceUse, capture: Capture) -> Option<Workspace> {
        {
            let mut kept = lock(&self.kept);
            kept.graphs.retain(|(_, graph)| graph.strong_count() > 0);
            let known = kept.graphs.iter().find(|(known, _)| *known == wanted);
            // The graph is being captured, so it keeps it alive beyond this.
            if let Some(in_graph) = known.and_then(|(_, graph)| graph.upgrade()) {
                return Some(in_graph.workspace);
            }
        }
        let runtime = runtime::get().ok()?;
        let workspace = self.home.obtain(runtime, stream.device(), self.bytes).ok()?;
        let in_graph = Arc::new(InGraph { workspace, home: self.home });
        let known = Arc::downgrade(&in_graph);
        // SAFETY: the caller promises that the stream stays captured until it has the handle, so its graph is alive.
        unsafe { runtime.graph_retain(capture.graph, Box::new(in_graph)) }.ok()?;
        lock(&self.kept).graphs.push((wanted, known));
        Some(workspace)
    }

    /// Frees the workspaces of a destroyed handle; graphs keep theirs.
    pub(super) fn free(self) -> Result<()> {
        let kept = self.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        let workspaces: Vec<_> = kept.streams.into_iter().map(|(_, workspace)| workspace).collect();
        if workspaces.is_empty() { Ok(()) } else { self.home.free(runtime::get()?, workspaces) }
    }
}
