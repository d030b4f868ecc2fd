//! A pool's life: it is in use until it is closed or its last use ends, and goes once none of its blocks is live. How many
//! use it, for how many graphs, and whether it was closed is one number, so that they change together.

use crate::sync::{AtomicU64, Ordering};

/// What a use of a pool is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum UseOf {
    /// Any work: of an owner, a scope, a memory range, or a library.
    #[default]
    Requests,
    /// A capture and the graph that it leaves, which uses the memory whenever it runs.
    Graphs,
}

/// Where a pool is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum Stage {
    /// It has uses and serves their requests.
    InUse,
    /// It was closed: it serves no request, and has no other uses than those that it had.
    Closed,
    /// Its last use has ended. Blocks may still be live.
    Ended,
}

/// What changes a pool's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::memory) enum LifeChange {
    Begin(UseOf),
    End(UseOf),
    Close,
}

/// The bit of a pool that was closed. Below are the number of uses for graphs and, from bit 0, that of all uses.
const CLOSED: u64 = 1 << 0x3f;
const GRAPH: u64 = 1 << 0x20;
const USE: u64 = 1;

#[derive(Debug)]
pub(in crate::memory) struct PoolLife(AtomicU64);

impl UseOf {
    const fn weight(self) -> u64 {
        match self {
            Self::Requests => USE,
            Self::Graphs => USE | GRAPH,
        }
    }
}

impl PoolLife {
    /// Begins with one use.
    pub(super) fn new(first: UseOf) -> Self {
        Self(AtomicU64::new(first.weight()))
    }

    /// Returns the stage that the pool is in then.
    ///
    /// # Errors
    /// The stage that it is in, whose pools have no such change: no use begins when it is closed, and none ends when all
    /// have.
    pub(in crate::memory) fn change(&self, change: LifeChange) -> Result<Stage, Stage> {
        let changed = |state: u64| match (change, stage(state)) {
            (LifeChange::Begin(of), Stage::InUse) => Some(state + of.weight()),
            (LifeChange::End(of), Stage::InUse | Stage::Closed) => Some(state - of.weight()),
            (LifeChange::Close, _) => Some(state | CLOSED),
            (LifeChange::Begin(_), Stage::Closed | Stage::Ended) | (LifeChange::End(_), Stage::Ended) => None,
        };
        let outcome = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
        outcome.map(|before| changed(before).map_or(Stage::Ended, stage)).map_err(stage)
    }

    pub(in crate::memory) fn stage(&self) -> Stage {
        stage(self.0.load(Ordering::Acquire))
    }

    pub(in crate::memory) fn uses(&self) -> u32 {
        uses(self.0.load(Ordering::Acquire))
    }

    /// Returns whether a capture, or a graph that was not reset, uses it.
    pub(in crate::memory) fn has_graphs(&self) -> bool {
        self.0.load(Ordering::Acquire) & !CLOSED >= GRAPH
    }
}

const fn uses(state: u64) -> u32 {
    (state % GRAPH) as u32
}

const fn stage(state: u64) -> Stage {
    match (uses(state), state & CLOSED) {
        (0, _) => Stage::Ended,
        (_, 0) => Stage::InUse,
        _ => Stage::Closed,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pool_ends_with_its_last_use_and_gets_none_after_it_was_closed() {
        let (begin, end) = (LifeChange::Begin(UseOf::Requests), LifeChange::End(UseOf::Requests));
        let life = PoolLife::new(UseOf::Requests);
        assert_eq!((life.change(begin), life.uses()), (Ok(Stage::InUse), 2));
        assert_eq!((life.change(LifeChange::Close), life.uses()), (Ok(Stage::Closed), 2));
        assert_eq!(life.change(begin), Err(Stage::Closed));
        assert_eq!((life.change(end), life.stage()), (Ok(Stage::Closed), Stage::Closed));
        assert_eq!((life.change(end), life.uses()), (Ok(Stage::Ended), 0));
        assert_eq!((life.change(end), life.change(begin)), (Err(Stage::Ended), Err(Stage::Ended)));
        assert_eq!(life.change(LifeChange::Close), Ok(Stage::Ended));
    }

    #[test]
    fn a_pool_has_graphs_while_one_of_them_uses_it() {
        let life = PoolLife::new(UseOf::Requests);
        assert!(!life.has_graphs());
        assert_eq!(life.change(LifeChange::Begin(UseOf::Graphs)), Ok(Stage::InUse));
        assert_eq!((life.change(LifeChange::End(UseOf::Requests)), life.has_graphs()), (Ok(Stage::InUse), true));
        assert_eq!((life.change(LifeChange::Close), life.has_graphs()), (Ok(Stage::Closed), true));
        assert_eq!((life.change(LifeChange::End(UseOf::Graphs)), life.has_graphs()), (Ok(Stage::Ended), false));
    }
}
