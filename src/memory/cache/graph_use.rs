//! Graphs that use a block of pinned memory, which is theirs as long as they may run. A graph uses its blocks whenever
//! it is replayed, on any stream, so no event marks its end. The driver reports when a graph, its instances and their
//! last runs are gone. Where it does not report which capture a stream's work goes to (before CUDA 12.3, HIP, or as it
//! refuses), a block that a graph may use is never used again.

use std::sync::{Arc, Mutex, Weak};

use crate::ids::CaptureStatus;
use crate::runtime::{self, Capture, Stream};
use crate::sync::lock;

/// A graph that uses a block, with what the driver keeps for it; none where no driver reports its end.
#[derive(Clone, Debug)]
pub(in crate::memory) struct GraphUse(Option<KeptGraph>);

/// The id of a capture, which is never used twice, and what the driver keeps for its graph as long as that may run.
type KeptGraph = (u64, Weak<()>);

/// What the driver keeps for each graph.
static KEPT: Mutex<Vec<KeptGraph>> = Mutex::new(Vec::new());

impl GraphUse {
    /// Returns the graph that the stream's work goes to; none if the stream is not captured.
    pub(in crate::memory) fn of(stream: &Stream) -> Option<Self> {
        let status = stream.capture_status();
        // A spoilt capture never runs.
        if status.as_ref().is_ok_and(|status| *status != CaptureStatus::Active) {
            return None;
        }
        match (status, stream.capture()) {
            // The driver refused the first question, and the second one answers that, too. Once a capture has ended, no
            // question tells which graph it made: so the answer counts now, and without one there may be a graph.
            (Err(_), Ok(None)) => None,
            (_, capture) => Some(Self(capture.ok().flatten().and_then(kept_for))),
        }
    }

    /// Returns whether the graph is gone and its last run is over.
    pub(in crate::memory) fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|(_, end)| end.strong_count() == 0)
    }
}

/// Both are equal if they are of one graph.
impl PartialEq for GraphUse {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().map(|(capture, _)| capture) == other.0.as_ref().map(|(capture, _)| capture)
    }
}

/// Gives the driver something to keep for the graph of a capture, unless it has that already.
fn kept_for(capture: Capture) -> Option<KeptGraph> {
    let known = {
        let mut known = lock(&KEPT);
        known.retain(|(_, end)| end.strong_count() > 0);
        known.iter().find(|(id, _)| *id == capture.id).cloned()
    };
    if known.is_some() {
        return known;
    }
    let end = Arc::new(());
    let kept = (capture.id, Arc::downgrade(&end));
    // SAFETY: the caller that names the stream promises that it is alive; it is captured, so its graph is alive.
    unsafe { runtime::get().ok()?.graph_retain(capture.graph, Box::new(end)) }.ok()?;
    lock(&KEPT).push(kept.clone());
    Some(kept)
}
