//! Which route a request follows: a choice among the thread's own, its context's, that of all threads, and a pool that
//! the request names. It depends on nothing else than its arguments, and the stream is only asked where that matters.

use crate::error::Result;
use crate::ids::RawStream;
use crate::memory::cache::Role;
use crate::memory::pool::UseOf;

/// What a route's memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RouteKind {
    /// Any work of the thread.
    Scope,
    /// The graph of a capture, of this stream if it is known.
    Capture(Option<RawStream>),
    /// Another allocator, which cuts it further; with `is_captured` also for its graphs.
    Feed { is_captured: bool },
}

impl RouteKind {
    const fn role(self) -> Role {
        match self {
            Self::Scope => Role::Requests,
            Self::Capture(_) => Role::Graphs,
            Self::Feed { is_captured } => Role::Feed { is_captured },
        }
    }

    const fn is_captured(self) -> bool {
        self.role().is_captured()
    }
}

/// A route to a pool, as far as the choice depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    /// Of two routes the one with the larger ticket was entered later, and is the inner one.
    pub(super) ticket: u64,
    pub(super) kind: RouteKind,
    /// What its pool was made for.
    pub(super) made_for: UseOf,
}

/// The routes that a request may follow, on its device.
#[derive(Clone, Debug)]
pub(super) struct Inputs<Own> {
    pub(super) stream: RawStream,
    /// The thread's own, from the innermost to the outermost.
    pub(super) own: Own,
    /// The innermost of the thread's context.
    pub(super) of_context: Option<Candidate>,
    pub(super) of_all_threads: Option<Candidate>,
    /// A pool that the request names counts as a scope that was entered at its ticket; as a capture if its graphs use what
    /// it is asked for.
    pub(super) given: Option<Candidate>,
}

/// Whose route was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RouteOrigin {
    Own { ticket: u64 },
    Context,
    AllThreads,
    Given,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    pub(super) origin: RouteOrigin,
    pub(super) role: Role,
    /// Whether the graphs of the given pool use the chosen one.
    pub(super) is_kept_by_given: bool,
    /// The thread's own capture whose graph uses it, by its ticket.
    pub(super) kept_by: Option<u64>,
}

impl Candidate {
    /// Chooses this one, for a graph or as its kind says.
    fn chosen(self, origin: RouteOrigin, of: UseOf) -> Choice {
        let role = self.kind.role();
        let is_captured = [of, self.made_for].contains(&UseOf::Graphs);
        let role = if is_captured { role.captured() } else { role };
        Choice { origin, role, is_kept_by_given: false, kept_by: None }
    }
}

/// Chooses the innermost route; that of all threads if there is no other. None for the default pool.
///
/// # Errors
/// Those of `is_captured`, which asks whether the stream is captured.
pub(super) fn choose(
    inputs: Inputs<impl Iterator<Item = Candidate> + Clone>,
    is_captured: impl Fn() -> Result<bool>,
) -> Result<Option<Choice>> {
    let Inputs { stream, mut own, of_context, of_all_threads, given } = inputs;
    let innermost = own.clone().next();
    let with_origins = [
        given.map(|given| (given, RouteOrigin::Given)),
        of_context.map(|of_context| (of_context, RouteOrigin::Context)),
        innermost.map(|own| (own, RouteOrigin::Own { ticket: own.ticket })),
    ];
    let Some((to, origin)) = with_origins.into_iter().flatten().max_by_key(|(to, _)| to.ticket) else {
        return Ok(of_all_threads.map(|to| to.chosen(RouteOrigin::AllThreads, UseOf::Requests)));
    };
    let is_given = origin == RouteOrigin::Given;
    match to.kind {
        // A capture's memory is its own graph's alone.
        RouteKind::Capture(_) if !is_given => return Ok(Some(to.chosen(origin, UseOf::Graphs))),
        // The other allocator knows what uses it.
        RouteKind::Feed { .. } => return Ok(Some(to.chosen(origin, UseOf::Requests))),
        RouteKind::Scope | RouteKind::Capture(_) => {}
    }
    // On a captured stream, the graph of an outer capture uses the pool as its own.
    let is_kept_by_given = match given.filter(|given| given.kind.is_captured()) {
        Some(given) => is_given || given.made_for == UseOf::Requests || is_captured()?,
        None => false,
    };
    let capture = own.find(|route| matches!(route.kind, RouteKind::Capture(Some(_))));
    let is_of_graph = match capture {
        Some(capture) => is_kept_by_given || capture.kind == RouteKind::Capture(Some(stream)) || is_captured()?,
        None => is_kept_by_given,
    };
    let kept_by = capture.filter(|_| is_of_graph).map(|capture| capture.ticket);
    let of = if is_of_graph { UseOf::Graphs } else { UseOf::Requests };
    Ok(Some(Choice { is_kept_by_given, kept_by, ..to.chosen(origin, of) }))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::memory::cache::Role::{Feed, Graphs, Requests};

    const STREAM: RawStream = RawStream::from_address(0x100);
    const OTHER: RawStream = RawStream::from_address(0x200);
    const DEFAULT_POOL: Option<Choice> = None;

    fn of(ticket: u64, kind: RouteKind) -> Candidate {
        Candidate { ticket, kind, made_for: UseOf::Requests }
    }

    fn scope(ticket: u64) -> Candidate {
        of(ticket, RouteKind::Scope)
    }

    fn capture(ticket: u64, stream: RawStream) -> Candidate {
        of(ticket, RouteKind::Capture(Some(stream)))
    }

    /// A capture into a pool by its id, or a given pool for graphs' memory.
    fn graph(ticket: u64) -> Candidate {
        of(ticket, RouteKind::Capture(None))
    }

    fn for_graphs(route: Candidate) -> Candidate {
        Candidate { made_for: UseOf::Graphs, ..route }
    }

    fn feed(ticket: u64, is_captured: bool) -> Candidate {
        of(ticket, RouteKind::Feed { is_captured })
    }

    /// Whether the stream is captured, where the choice asks for it.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Asked {
        Not,
        Captured,
        NotCaptured,
    }
    use Asked::{Captured, Not, NotCaptured};

    const fn own(ticket: u64) -> RouteOrigin {
        RouteOrigin::Own { ticket }
    }

    const fn to(origin: RouteOrigin, role: Role) -> Option<Choice> {
        Some(Choice { origin, role, is_kept_by_given: false, kept_by: None })
    }

    const fn kept_by(ticket: u64, choice: Option<Choice>) -> Option<Choice> {
        match choice {
            Some(choice) => Some(Choice { kept_by: Some(ticket), ..choice }),
            None => None,
        }
    }

    const fn kept_by_given(choice: Option<Choice>) -> Option<Choice> {
        match choice {
            Some(choice) => Some(Choice { is_kept_by_given: true, ..choice }),
            None => None,
        }
    }

    #[test]
    fn the_innermost_route_is_followed_and_its_memory_is_kept_by_the_graphs_around_it() -> Result<()> {
        use RouteOrigin::{AllThreads, Context, Given};
        let none = None::<Candidate>;
        let graphs = |ticket| to(own(ticket), Graphs);
        let requests = |ticket| to(own(ticket), Requests);
        // The thread's own from the innermost, its context's, all threads', the given one; what is asked; the choice.
        let table = [
            (vec![], none, none, none, Not, DEFAULT_POOL),
            (vec![], none, Some(scope(1)), none, Not, to(AllThreads, Requests)),
            (vec![], none, Some(for_graphs(scope(1))), none, Not, to(AllThreads, Graphs)),
            (vec![], Some(scope(1)), Some(scope(2)), none, Not, to(Context, Requests)),
            (vec![scope(1)], none, Some(scope(2)), none, Not, requests(1)),
            (vec![scope(2), scope(1)], none, none, none, Not, requests(2)),
            (vec![for_graphs(scope(1))], none, none, none, Not, graphs(1)),
            // Of the thread, its context and the given one, what was entered last.
            (vec![scope(2)], Some(scope(1)), none, none, Not, requests(2)),
            (vec![scope(1)], Some(scope(2)), none, none, Not, to(Context, Requests)),
            (vec![scope(1)], Some(scope(2)), none, Some(scope(3)), Not, to(Given, Requests)),
            (vec![scope(1)], Some(scope(3)), none, Some(scope(2)), Not, to(Context, Requests)),
            (vec![scope(3)], Some(scope(1)), none, Some(scope(2)), Not, requests(3)),
            (vec![scope(2)], none, none, Some(scope(2)), Not, requests(2)),
            (vec![], none, Some(scope(2)), Some(scope(1)), Not, to(Given, Requests)),
            // A capture's own memory is its graph's, whatever is around it.
            (vec![capture(1, STREAM)], none, none, none, Not, graphs(1)),
            (vec![capture(1, OTHER)], none, none, none, Not, graphs(1)),
            (vec![graph(2), capture(1, STREAM)], none, none, none, Not, graphs(2)),
            (vec![capture(2, STREAM)], none, none, Some(graph(1)), Not, graphs(2)),
            // A scope in a capture: of its graph on its stream, and on others that are captured.
            (vec![scope(2), capture(1, STREAM)], none, none, none, Not, kept_by(1, graphs(2))),
            (vec![scope(2), capture(1, OTHER)], none, none, none, Captured, kept_by(1, graphs(2))),
            (vec![scope(2), capture(1, OTHER)], none, none, none, NotCaptured, requests(2)),
            (vec![scope(3), scope(2), capture(1, STREAM)], none, none, none, Not, kept_by(1, graphs(3))),
            (vec![scope(3), capture(2, OTHER), capture(1, STREAM)], none, none, none, NotCaptured, requests(3)),
            (vec![capture(1, STREAM)], Some(scope(2)), none, none, Not, kept_by(1, to(Context, Graphs))),
            (vec![capture(1, STREAM)], none, none, Some(scope(2)), Not, kept_by(1, to(Given, Graphs))),
            // One that was begun by its pool's id keeps no other pool.
            (vec![scope(2), graph(1)], none, none, none, Not, requests(2)),
            // The graphs of a given pool use it, and pools of inner scopes where the stream is captured.
            (vec![], none, none, Some(graph(1)), Not, kept_by_given(to(Given, Graphs))),
            (vec![], none, none, Some(for_graphs(graph(1))), Not, kept_by_given(to(Given, Graphs))),
            (vec![capture(1, OTHER)], none, none, Some(graph(2)), Not, kept_by(1, kept_by_given(to(Given, Graphs)))),
            (vec![scope(2)], none, none, Some(graph(1)), Not, kept_by_given(graphs(2))),
            (vec![scope(2)], none, none, Some(for_graphs(graph(1))), Captured, kept_by_given(graphs(2))),
            (vec![scope(2)], none, none, Some(for_graphs(graph(1))), NotCaptured, requests(2)),
            (vec![scope(3), capture(2, OTHER)], none, none, Some(graph(1)), Not, kept_by(2, kept_by_given(graphs(3)))),
            (vec![scope(2)], Some(scope(3)), none, Some(graph(1)), Not, kept_by_given(to(Context, Graphs))),
            // Another allocator's memory is cut by that for what uses it.
            (vec![feed(2, false), capture(1, STREAM)], none, none, none, Not, to(own(2), Feed { is_captured: false })),
            (vec![feed(1, false)], none, none, none, Not, to(own(1), Feed { is_captured: false })),
            (vec![feed(1, true)], none, none, none, Not, to(own(1), Feed { is_captured: true })),
            (vec![for_graphs(feed(1, false))], none, none, none, Not, to(own(1), Feed { is_captured: true })),
        ];
        for (row, (own, of_context, of_all_threads, given, stream, choice)) in table.into_iter().enumerate() {
            let inputs = Inputs { stream: STREAM, own: own.iter().copied(), of_context, of_all_threads, given };
            let is_asked = Cell::new(false);
            let is_captured = || {
                is_asked.set(true);
                Ok(stream == Captured)
            };
            assert_eq!(choose(inputs.clone(), is_captured)?, choice, "row {row}: {inputs:?}");
            assert_eq!(is_asked.get(), stream != Not, "row {row}: {inputs:?}");
        }
        Ok(())
    }
}
