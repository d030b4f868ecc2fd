//! Graphs that use a block of pinned memory, which is theirs as long as they may run.
//!
//! A graph reads and writes its blocks whenever it is replayed, on whichever stream, so no event tells when it is done with
//! one. The driver tells when a graph, all that was instantiated from it and their last runs are gone. Where it does not tell
//! which capture a stream's work goes to (before CUDA 12.3, HIP), a block that one may use is not used again.

use std::sync::{Arc, Mutex, Weak};

use crate::ids::CaptureStatus;
use crate::runtime::{self, Capture, Stream};
use crate::sync::lock;

/// A graph that uses a block.
#[derive(Clone, Debug)]
pub(in crate::memory) enum GraphUse {
    /// One that the driver keeps something for, as long as it may run.
    Known {
        /// Which capture it was made by.
        capture: u64,
        /// What the driver keeps.
        kept: Weak<KeptForGraph>,
    },
    /// One that no driver tells the end of.
    Unknown,
}

/// What the driver keeps for a graph. It has nothing but its end.
#[derive(Debug)]
pub(in crate::memory) struct KeptForGraph;

/// What the driver keeps for each graph, by the id of its capture, which no other capture gets.
static KEPT: Mutex<Vec<(u64, Weak<KeptForGraph>)>> = Mutex::new(Vec::new());

impl GraphUse {
    /// Returns the use of the graph that work on the stream goes to; none if the stream is not captured.
    pub(in crate::memory) fn of(stream: &Stream) -> Option<Self> {
        match stream.capture_status() {
            Ok(CaptureStatus::Active) => {
                Some(stream.capture().ok().flatten().and_then(Self::keep).unwrap_or(Self::Unknown))
            }
            // Nothing of a capture that was spoilt will ever run, and where the driver refuses to tell, its later refusal to
            // record on the stream keeps the block.
            _ => None,
        }
    }

    fn keep(capture: Capture) -> Option<Self> {
        let known = {
            let mut known = lock(&KEPT);
            known.retain(|(_, kept)| kept.strong_count() > 0);
            known.iter().find(|(id, _)| *id == capture.id).map(|(_, kept)| kept.clone())
        };
        if let Some(kept) = known {
            return Some(Self::Known { capture: capture.id, kept });
        }
        let kept = Arc::new(KeptForGraph);
        let known = Arc::downgrade(&kept);
        // SAFETY: the stream is captured and alive, by the word of the caller that names it, so its graph is alive.
        unsafe { runtime::get().ok()?.graph_retain(capture.graph, Box::new(kept)) }.ok()?;
        lock(&KEPT).push((capture.id, known.clone()));
        Some(Self::Known { capture: capture.id, kept: known })
    }

    /// Returns whether both are of one graph.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Known { capture, .. }, Self::Known { capture: other, .. }) => capture == other,
            (Self::Unknown, Self::Unknown) => true,
            _ => false,
        }
    }

    /// Returns whether the graph is gone and has run for the last time.
    pub(in crate::memory) fn has_ended(&self) -> bool {
        matches!(self, Self::Known { kept, .. } if kept.strong_count() == 0)
    }
}
