//! Routes: which pool the calling thread's requests go to, by its scopes and captures. The innermost of the thread's
//! own routes and its context's scopes is followed; that of all threads if there is neither. While a thread's routes
//! have not changed ([`changes`](crate::memory::pool::changes)), the cache for a stream is found at once.

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};
use std::sync::{Arc, Mutex, Weak};

#[cfg(feature = "python")]
use super::context_scope::of_context;
#[cfg(not(feature = "python"))]
use super::shared_route::of_context;
use super::shared_route::{AllThreads, Rerouted, of_all_threads};
use super::stay::PoolStay;
use crate::error::Result;
use crate::ids::{Device, RawStream};
use crate::memory::pool::{Pool, PoolId, Role, Unfollowed, UseOf, ending, first_ticket, next_ticket, note_change};
use crate::memory::serve::PoolUse;
use crate::process;
use crate::runtime::Stream;
use crate::sync::{lock, take_last};

/// A pool that the thread's requests on its device go to.
#[derive(Debug)]
struct Route {
    pool: Arc<Pool>,
    kind: RouteKind,
    /// What the route is found by when it is left.
    ticket: u64,
    /// None for a route that is entered and left by the pool's id.
    open: Option<Arc<OpenRoute>>,
    _stay: Option<PoolStay>,
}

impl Route {
    /// Ends its uses without a driver call.
    fn abandon(self) {
        self.end().into_iter().for_each(PoolUse::abandon);
    }

    /// Ends it on its own thread, and returns its uses.
    fn end(self) -> Vec<PoolUse> {
        let state = self.open.map(|open| open.turn_into(RouteState::Over));
        if let Some(RouteState::Open { uses, .. }) = state { uses } else { Vec::new() }
    }

    fn is_over(&self) -> bool {
        self.open.as_ref().is_some_and(|open| matches!(*lock(&open.0), RouteState::EndedElsewhere(_)))
    }
}

/// What a scope or a capture of a thread holds, until that thread ends it, or another one by [`OpenRoute::end_elsewhere`].
#[derive(Debug)]
struct OpenRoute(Mutex<RouteState>);

#[derive(Debug)]
enum RouteState {
    Open {
        /// Of the pool; of a capture also of pools in whose scopes it allocated, which its graph uses too.
        uses: Vec<PoolUse>,
        /// The same route for all threads.
        _all_threads: Option<AllThreads>,
        _stay: Option<PoolStay>,
    },
    /// By another thread. The route's own thread looks for such routes, and takes this out, before its next request.
    EndedElsewhere(Rerouted),
    Over,
}

impl OpenRoute {
    /// Returns what it was. That is dropped outside the lock: with the last use of a pool its memory goes back to the driver.
    fn turn_into(&self, state: RouteState) -> RouteState {
        mem::replace(&mut *lock(&self.0), state)
    }

    fn end_elsewhere(&self) {
        drop(self.turn_into(RouteState::EndedElsewhere(Rerouted::new())));
    }

    /// Uses a pool for the graph until this is ended.
    fn keep(&self, pool: &Arc<Pool>) -> Result<()> {
        match &mut *lock(&self.0) {
            RouteState::Open { uses, .. } => keep(uses, pool),
            RouteState::EndedElsewhere(_) | RouteState::Over => Ok(()),
        }
    }
}

/// Adds a use of a pool by a graph, unless there is one.
fn keep(uses: &mut Vec<PoolUse>, pool: &Arc<Pool>) -> Result<()> {
    if uses.iter().all(|used| used.pool().number != pool.number) {
        uses.push(PoolUse::new(pool, UseOf::Graphs)?);
    }
    Ok(())
}

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

#[derive(Debug)]
pub(in crate::memory) struct Destination {
    pub(in crate::memory) pool: Arc<Pool>,
    pub(in crate::memory) role: Role,
}

impl Destination {
    fn new(pool: Arc<Pool>, role: Role) -> Self {
        // All memory of a pool for graphs is part of graphs.
        let role = if pool.is_for_graphs() { role.captured() } else { role };
        Self { pool, role }
    }
}

/// The thread's routes; the innermost is the last.
#[derive(Debug)]
struct Routes(RefCell<Vec<Route>>);

thread_local! {
    static ROUTES: Routes = const { Routes(RefCell::new(Vec::new())) };
}

impl Drop for Routes {
    fn drop(&mut self) {
        note_change();
        // Scopes that were never left end with their thread.
        self.0.get_mut().drain(..).for_each(Route::abandon);
    }
}

impl Routes {
    /// Returns whether any of the thread's own routes is followed.
    fn has_followed(&self) -> bool {
        self.0.borrow().last().is_some_and(|route| route.ticket >= first_ticket())
    }

    /// Returns the ticket and pool of the innermost scope of the thread's context; none while the thread allocates for
    /// another allocator on the device, which may hold a lock.
    fn of_context(&self, device: Device) -> Option<(u64, Arc<Pool>)> {
        let is_in_feed = self.0.borrow().last().is_some_and(|last| {
            last.pool.memory.location == device
                && matches!(last.kind, RouteKind::Feed { .. })
                && last.ticket >= first_ticket()
        });
        if is_in_feed { None } else { of_context(device, first_ticket()) }
    }

    fn destination(
        &self,
        stream: &Stream,
        given: Option<&GivenPool>,
        is_rerouted: bool,
    ) -> Result<Option<Destination>> {
        if !self.has_followed() && !is_rerouted && given.is_none() {
            return Ok(None);
        }
        let (device, first) = (stream.device(), first_ticket());
        let given = given.filter(|given| given.ticket >= first);
        // Before the routes are borrowed, since Python may call back here.
        let of_context = if is_rerouted { self.of_context(device) } else { None };
        let routes = self.0.borrow();
        let is_followed = |route: &&Route| route.ticket >= first && route.pool.memory.location == device;
        let mut followed = routes.iter().rev().filter(is_followed).peekable();
        let own = followed.peek().map_or(0, |own| own.ticket);
        let of_context = of_context.filter(|(ticket, _)| *ticket > own);
        let innermost = of_context.as_ref().map_or(own, |(ticket, _)| *ticket);
        // The given pool counts as a scope that was entered at its ticket.
        let is_given = given.is_some_and(|given| given.ticket > innermost);
        let outer = given.filter(|_| !is_given);
        let (pool, kind) = match (given.filter(|_| is_given), of_context) {
            (Some(given), _) => (Arc::clone(given.pool), given.kind()),
            (None, Some((_, pool))) => (pool, RouteKind::Scope),
            (None, None) => match followed.next() {
                Some(own) => (Arc::clone(&own.pool), own.kind),
                None => {
                    // A pool's own allocator follows no outer route.
                    let shared = if is_rerouted && first == 0 { of_all_threads(device) } else { None };
                    return Ok(shared.map(|pool| Destination::new(pool, Role::Requests)));
                }
            },
        };
        let to = |is_captured| {
            let role = if is_captured { kind.role().captured() } else { kind.role() };
            Ok(Some(Destination::new(Arc::clone(&pool), role)))
        };
        if kind.is_captured() && !is_given {
            return to(true);
        }
        // On a captured stream, the graph of an outer capture uses this pool as its own.
        if let Some(outer) = outer
            && outer.is_of_graph(stream)?
        {
            outer.keep(&pool)?;
            return to(true);
        }
        if let Some(given) = given.filter(|_| is_given && kind.is_captured()) {
            given.keep(&pool)?;
        }
        let captures = |route: &&Route| matches!(route.kind, RouteKind::Capture(Some(_)));
        let Some(capture) = followed.find(captures) else { return to(kind.is_captured()) };
        let is_captured =
            kind.is_captured() || capture.kind == RouteKind::Capture(Some(stream.raw())) || stream.is_captured()?;
        if is_captured && let Some(open) = &capture.open {
            open.keep(&pool)?;
        }
        to(is_captured)
    }
}

/// A pool given for a request, unless the thread has entered a scope since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GivenPool<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    /// As [`next_ticket`] returned it.
    pub(crate) ticket: u64,
    /// Whether the request is of a captured stream.
    pub(crate) is_captured: bool,
    /// The uses of further pools by the pool's graphs.
    pub(crate) further: &'a Mutex<Vec<PoolUse>>,
}

impl GivenPool<'_> {
    fn kind(&self) -> RouteKind {
        if self.is_captured { RouteKind::Capture(None) } else { RouteKind::Scope }
    }

    /// Returns whether a request on the stream is of a graph: always in a pool for graphs, and in inner scopes only if
    /// the stream is captured.
    fn is_of_graph(&self, stream: &Stream) -> Result<bool> {
        Ok(self.is_captured && (!self.pool.is_for_graphs() || stream.is_captured()?))
    }

    fn keep(&self, pool: &Arc<Pool>) -> Result<()> {
        if pool.number == self.pool.number && pool.is_for_graphs() {
            return Ok(());
        }
        keep(&mut lock(self.further), pool)
    }
}

/// Returns the pool of the thread's innermost route on the stream's device, with a given pool among them; with
/// `is_rerouted` also the context's or all threads' one, which do not count as the thread's changes.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends, or if the pool of an inner scope is closed; what the driver refuses
/// when it is asked about a capture.
pub(in crate::memory) fn destination(
    stream: &Stream,
    given: Option<&GivenPool>,
    is_rerouted: bool,
) -> Result<Option<Destination>> {
    while is_rerouted && let Some(ended) = take_route(Route::is_over) {
        ended.abandon();
    }
    ROUTES.try_with(|routes| routes.destination(stream, given, is_rerouted)).unwrap_or_else(|_| Err(ending()))
}

/// A route of the thread that entered it, until dropped, by whichever thread.
#[must_use = "requests follow the route only while this lives"]
#[derive(Debug)]
pub(crate) struct EnteredRoute {
    ticket: u64,
    /// Gone with the thread.
    open: Weak<OpenRoute>,
}

impl EnteredRoute {
    /// Routes this thread's requests on the pool's device into the pool; with `all_threads` also those of every thread
    /// without a route of its own there. The use is the thread's until the scope is left.
    pub(crate) fn scope(in_use: PoolUse, all_threads: bool) -> Result<Self> {
        Self::hold(in_use, RouteKind::Scope, all_threads)
    }

    /// Routes this thread's requests on the pool's device into the pool, for the graph that this stream's capture makes.
    pub(super) fn capture(in_use: PoolUse, stream: RawStream) -> Result<Self> {
        Self::hold(in_use, RouteKind::Capture(Some(stream)), false)
    }

    fn hold(in_use: PoolUse, kind: RouteKind, all_threads: bool) -> Result<Self> {
        let (pool, stay) = (Arc::clone(in_use.pool()), PoolStay::begin(in_use.pool())?);
        let ticket = next_ticket();
        let all_threads = all_threads.then(|| AllThreads::new(&pool, ticket));
        let state = RouteState::Open { uses: vec![in_use], _all_threads: all_threads, _stay: stay };
        Self::add(Route { pool, kind, ticket, open: Some(Arc::new(OpenRoute(Mutex::new(state)))), _stay: None })
    }

    /// As [`EnteredRoute::scope`], for a pool that the caller keeps, or ends by its id.
    pub(in crate::memory) fn without_use(pool: Arc<Pool>, kind: RouteKind) -> Result<Self> {
        let stay = PoolStay::begin(&pool)?;
        Self::add(Route { pool, kind, ticket: next_ticket(), open: None, _stay: stay })
    }

    fn add(route: Route) -> Result<Self> {
        let ticket = route.ticket;
        let open = route.open.as_ref().map_or_else(Weak::new, Arc::downgrade);
        let entered = ROUTES.try_with(|routes| {
            routes.0.borrow_mut().push(route);
            note_change();
        });
        entered.map(|()| Self { ticket, open }).map_err(|_| ending())
    }

    /// Leaves the route entered until it is left by its ticket or its pool's id, or the thread ends.
    pub(crate) fn stay(self) -> u64 {
        let mut left = ManuallyDrop::new(self);
        left.open = Weak::new();
        left.ticket
    }

    /// Ends the route, at any depth, and returns a capture's uses; none if this thread has no such route.
    pub(super) fn leave(&self) -> Option<Vec<PoolUse>> {
        take_route(|route| route.ticket == self.ticket).map(Route::end)
    }
}

impl Drop for EnteredRoute {
    fn drop(&mut self) {
        // In a forked child a lock may be held for ever.
        if self.leave().is_none()
            && !process::is_forked()
            && let Some(open) = self.open.upgrade()
        {
            open.end_elsewhere();
        }
    }
}

/// Ends a scope of this thread by its ticket; false if this thread has no such scope.
pub(crate) fn leave_by_ticket(ticket: u64) -> bool {
    take_route(|route| route.ticket == ticket && route.kind == RouteKind::Scope).is_some()
}

/// Ends this thread's innermost route with this id; false if there is none.
pub(in crate::memory) fn leave_by_id(device: Device, id: PoolId) -> bool {
    let is_meant = |route: &Route| route.open.is_none() && route.pool.id == id && route.pool.memory.location == device;
    take_route(is_meant).is_some()
}

fn take_route(is_meant: impl Fn(&Route) -> bool) -> Option<Route> {
    let taken = ROUTES.try_with(|routes| {
        let taken = take_last(&mut routes.0.borrow_mut(), is_meant)?;
        note_change();
        Some(taken)
    });
    // The pool may be dropped with the route, outside the borrow.
    taken.ok().flatten()
}

/// Runs another allocator's request for memory to cut further, for a graph or for any work: from this pool, whatever
/// scopes the thread is in.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends; what the allocation returns.
pub(in crate::memory) fn feed_from<R>(
    pool: &Arc<Pool>,
    is_captured: bool,
    allocate: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let _unfollowed = Unfollowed::new();
    let _entered = EnteredRoute::without_use(Arc::clone(pool), RouteKind::Feed { is_captured })?;
    allocate()
}
