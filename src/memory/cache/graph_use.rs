//! Graphs that use a block of pinned memory, which is theirs as long as they may run.
//!
//! A graph reads and writes its blocks whenever it is replayed, on whichever stream, so no event tells when it is done with
//! one. The driver tells when a graph, all that was instantiated from it and their last runs are gone. Where it does not tell
//! which capture a stream's work goes to (before CUDA 12.3, HIP), a block that one may use is not used again.

use std::sync::{Arc, Mutex, Weak};

use crate::ids::CaptureStatus;
use crate::runtime::{self, Capture, Stream};
use crate::sync::lock;

/// A graph that uses a block, by what the driver keeps for it; none where no driver tells its end.
#[derive(Clone, Debug)]
pub(in crate::memory) struct GraphUse(Option<KeptGraph>);

/// The id of a capture, which no other capture gets, and what the driver keeps for its graph, as long as that may run:
/// nothing but an end.
type KeptGraph = (u64, Weak<()>);

/// What the driver keeps for each graph.
static KEPT: Mutex<Vec<KeptGraph>> = Mutex::new(Vec::new());

impl GraphUse {
    /// Returns the use of the graph that work on the stream goes to; none if the stream is not captured.
    pub(in crate::memory) fn of(stream: &Stream) -> Option<Self> {
        match stream.capture_status() {
            Ok(CaptureStatus::Active) => Some(Self(stream.capture().ok().flatten().and_then(kept_for))),
            // Nothing of a capture that was spoilt will ever run, and where the driver refuses to tell, its later refusal to
            // record on the stream keeps the block.
            _ => None,
        }
    }

    /// Returns whether the graph is gone and has run for the last time.
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

/// Has the driver keep something for the graph of a capture, unless it does already.
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
    // SAFETY: the stream is captured and alive, by the word of the caller that names it, so its graph is alive.
    unsafe { runtime::get().ok()?.graph_retain(capture.graph, Box::new(end)) }.ok()?;
    lock(&KEPT).push(kept.clone());
    Some(kept)
}
