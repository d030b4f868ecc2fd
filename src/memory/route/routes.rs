//! Routes: which pool a request goes to, by the scopes and captures of its thread, its context and all threads. While a
//! thread's routes have not changed ([`changes`](crate::memory::pool::changes)), the cache for a stream is found at once.
//!
//! A route is its thread's, or that of a context, as of an asyncio task, which only Python knows: so Python is asked at
//! each request while there is such a route. Then, and while there is a route of all threads, the process counts as
//! rerouted, and every request looks for one.

use std::cell::RefCell;
use std::mem;
#[cfg(feature = "python")]
use std::sync::OnceLock;
use std::sync::{Arc, Mutex, RwLock, Weak};

use super::choice::{Candidate, Inputs, RouteKind, RouteOrigin, choose};
use super::scopes::PoolStay;
use crate::error::Result;
use crate::ids::Device;
use crate::memory::cache::GivenKey;
use crate::memory::cache::Role;
use crate::memory::pool::{Pool, PoolId, UseOf, ending, first_ticket, next_ticket, note_change};
use crate::memory::serve::PoolUse;
use crate::process::{self, ProcessState};
use crate::runtime::Stream;
use crate::sync::{lock, read, take_last, write};

/// Which requests follow a route, beside those of the thread that entered it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Followers {
    /// None.
    Thread,
    /// Those of the same context, and of contexts copied from it.
    #[cfg(feature = "python")]
    Context,
    /// Those of every thread without a route of its own on the device.
    AllThreads,
}

/// A way for requests to a pool, until it is ended.
#[derive(Debug)]
pub(crate) struct Route {
    ticket: u64,
    kind: RouteKind,
    state: Mutex<RouteState>,
}

#[derive(Debug)]
enum RouteState {
    Open(OpenRoute),
    /// After an end by another thread, the route's own thread looks for such routes, and takes this out, before its next
    /// request.
    Over {
        _rerouted: Option<Rerouted>,
    },
}

#[derive(Debug)]
struct OpenRoute {
    pool: Arc<Pool>,
    /// Of the pool, unless that is used by its id; of a capture also of pools in whose scopes it allocated, which its graph
    /// uses too.
    uses: Vec<PoolUse>,
    _rerouted: Option<Rerouted>,
    _stay: Option<PoolStay>,
}

impl Route {
    fn open(pool: Arc<Pool>, kind: RouteKind, uses: Vec<PoolUse>, followers: Followers) -> Result<Arc<Self>> {
        let stay = PoolStay::begin(&pool)?;
        let ticket = next_ticket();
        let rerouted = match followers {
            Followers::Thread => None,
            #[cfg(feature = "python")]
            Followers::Context => Some(Rerouted::new(ticket, None)),
            Followers::AllThreads => Some(Rerouted::new(ticket, Some(&pool))),
        };
        let open = OpenRoute { pool, uses, _rerouted: rerouted, _stay: stay };
        Ok(Arc::new(Self { ticket, kind, state: Mutex::new(RouteState::Open(open)) }))
    }

    /// Returns what `f` does with an open route; none if it has ended.
    fn with_open<R>(&self, f: impl FnOnce(&mut OpenRoute) -> R) -> Option<R> {
        match &mut *lock(&self.state) {
            RouteState::Open(open) => Some(f(open)),
            RouteState::Over { .. } => None,
        }
    }

    fn pool(&self) -> Option<Arc<Pool>> {
        self.with_open(|open| Arc::clone(&open.pool))
    }

    /// Returns what the choice depends on, if the thread's requests on the device may follow the route.
    fn candidate(&self, device: Device) -> Option<Candidate> {
        let made_for = |open: &mut OpenRoute| (open.pool.memory.location == device).then_some(open.pool.made_for);
        let made_for = self.with_open(made_for)??;
        (self.ticket >= first_ticket()).then_some(Candidate { ticket: self.ticket, kind: self.kind, made_for })
    }

    fn is_over(&self) -> bool {
        self.with_open(|_| ()).is_none()
    }

    /// Ends it, and returns its uses. With the last use of a pool its memory goes back to the driver, so under no lock.
    fn end(&self, rerouted: Option<Rerouted>) -> Vec<PoolUse> {
        let state = mem::replace(&mut *lock(&self.state), RouteState::Over { _rerouted: rerouted });
        if let RouteState::Open(open) = state { open.uses } else { Vec::new() }
    }
}

/// Adds a use of a pool by a graph, unless there is one.
fn keep(uses: &mut Vec<PoolUse>, pool: &Arc<Pool>) -> Result<()> {
    if !uses.iter().any(|used| used.is_of(pool, UseOf::Graphs)) {
        uses.push(PoolUse::new(pool, UseOf::Graphs)?);
    }
    Ok(())
}

/// The tickets of the routes for which all requests look, with the pools of those of all threads. The innermost is the last.
static REROUTED: RwLock<Vec<(u64, Option<Arc<Pool>>)>> = RwLock::new(Vec::new());

/// Makes requests look for routes that are not their thread's own, until it is dropped.
#[derive(Debug)]
struct Rerouted {
    ticket: u64,
}

impl Rerouted {
    fn new(ticket: u64, of_all_threads: Option<&Arc<Pool>>) -> Self {
        let mut rerouted = write(&REROUTED);
        rerouted.push((ticket, of_all_threads.cloned()));
        process::set_rerouted(true);
        Self { ticket }
    }
}

impl Drop for Rerouted {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let ended = {
            let mut rerouted = write(&REROUTED);
            let ended = take_last(&mut rerouted, |(ticket, _)| *ticket == self.ticket);
            process::set_rerouted(!rerouted.is_empty());
            ended
        };
        // Outside the lock: it may be the last reference to the pool.
        drop(ended);
    }
}

fn of_all_threads(device: Device) -> Option<Arc<Pool>> {
    let rerouted = read(&REROUTED);
    rerouted.iter().rev().find_map(|(_, pool)| pool.as_ref().filter(|pool| pool.memory.location == device).cloned())
}

/// The calling thread's routes; the innermost is the last.
#[derive(Debug)]
struct ThreadRoutes(RefCell<Vec<Arc<Route>>>);

thread_local! {
    static ROUTES: ThreadRoutes = const { ThreadRoutes(RefCell::new(Vec::new())) };
}

impl Drop for ThreadRoutes {
    fn drop(&mut self) {
        note_change();
        // Scopes that were never left end with their thread, which may call no driver.
        let uses = self.0.get_mut().drain(..).flat_map(|route| route.end(None));
        uses.for_each(PoolUse::abandon);
    }
}

/// Where a request goes.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) pool: Arc<Pool>,
    pub(super) role: Role,
}

/// Returns where a request on the stream goes by the routes of its thread, with a given pool among them; while the process
/// is rerouted also by those of its context and of all threads, which do not count as the thread's changes. None for the
/// default pool.
///
/// # Errors
/// `ErrorKind::InvalidValue` while the thread ends, or if the pool of an inner scope is closed; what the driver refuses
/// when it is asked about a capture.
pub(super) fn destination(
    stream: &Stream,
    given: Option<&GivenPool>,
    state: ProcessState,
) -> Result<Option<Destination>> {
    while state.is_rerouted() && take_route(Route::is_over).is_some() {}
    ROUTES.try_with(|routes| routes.destination(stream, given, state)).unwrap_or_else(|_| Err(ending()))
}

/// Returns the routes that requests on the device follow, from the innermost.
fn followed(own: &[Arc<Route>], device: Device) -> impl Iterator<Item = Candidate> + Clone {
    own.iter().rev().filter_map(move |route| route.candidate(device))
}

impl ThreadRoutes {
    fn destination(
        &self,
        stream: &Stream,
        given: Option<&GivenPool>,
        state: ProcessState,
    ) -> Result<Option<Destination>> {
        let device = stream.device();
        let innermost = followed(&self.0.borrow(), device).next();
        let given = given.filter(|given| given.ticket >= first_ticket());
        if innermost.is_none() && given.is_none() && !state.is_rerouted() {
            return Ok(None);
        }
        // A thread that allocates for another allocator may hold a lock of its, so that Python must not be waited for.
        let is_in_feed = innermost.is_some_and(|own| matches!(own.kind, RouteKind::Feed { .. }));
        // While nothing is borrowed, since Python may call back.
        let of_context = if state.is_rerouted() && !is_in_feed { of_context(device) } else { None };
        // A pool's own allocator follows no outer route.
        let is_shared = state.is_rerouted() && first_ticket() == 0;
        let of_all_threads = if is_shared { of_all_threads(device) } else { None };
        let own = self.0.borrow();
        let inputs = Inputs {
            stream: stream.raw(),
            own: followed(&own, device),
            of_context: of_context.as_ref().and_then(|route| route.candidate(device)),
            of_all_threads: of_all_threads.as_ref().map(|pool| Candidate {
                ticket: 0,
                kind: RouteKind::Scope,
                made_for: pool.made_for,
            }),
            given: given.map(GivenPool::candidate),
        };
        let Some(choice) = choose(inputs, || stream.is_captured())? else { return Ok(None) };
        let own_of = |ticket| own.iter().find(|route| route.ticket == ticket);
        let pool = match choice.origin {
            RouteOrigin::Own { ticket } => own_of(ticket).and_then(|route| route.pool()),
            RouteOrigin::Context => of_context.and_then(|route| route.pool()),
            RouteOrigin::AllThreads => of_all_threads,
            RouteOrigin::Given => given.map(|given| Arc::clone(given.pool)),
        };
        let Some(pool) = pool else {
            // Another thread has just ended that route.
            drop(own);
            return self.destination(stream, given, state);
        };
        if let Some(given) = given.filter(|_| choice.is_kept_by_given) {
            keep(&mut lock(given.uses), &pool)?;
        }
        if let Some(capture) = choice.kept_by.and_then(own_of) {
            capture.with_open(|open| keep(&mut open.uses, &pool)).unwrap_or(Ok(()))?;
        }
        Ok(Some(Destination { pool, role: choice.role }))
    }
}

/// Returns the innermost route of the calling thread's context that a request may follow.
#[cfg(feature = "python")]
pub(crate) type FindContextRoute = fn(&dyn Fn(&Route) -> bool) -> Option<Arc<Route>>;

#[cfg(feature = "python")]
static FIND: OnceLock<FindContextRoute> = OnceLock::new();

/// Sets the function that finds a route of the thread's context.
#[cfg(feature = "python")]
pub(crate) fn set_find_context_route(find: FindContextRoute) {
    let _ = FIND.set(find);
}

#[cfg(feature = "python")]
fn of_context(device: Device) -> Option<Arc<Route>> {
    FIND.get()?(&|route| !process::is_forked() && route.candidate(device).is_some())
}

/// Returns the context's route: none, as only Python has contexts.
#[cfg(not(feature = "python"))]
const fn of_context(_device: Device) -> Option<Arc<Route>> {
    None
}

/// Routes of a context, which the caller notes there.
#[cfg(feature = "python")]
impl Route {
    /// Enters the pool for the calling thread's context.
    pub(crate) fn enter_context(in_use: PoolUse, followers: Followers) -> Result<Arc<Self>> {
        let followers = if followers == Followers::Thread { Followers::Context } else { followers };
        Self::open(Arc::clone(in_use.pool()), RouteKind::Scope, vec![in_use], followers)
    }

    /// Returns whether it is open. None is in a forked child, where the lock may be held for ever.
    pub(crate) fn is_open(&self) -> bool {
        !process::is_forked() && self.pool().is_some()
    }

    pub(crate) fn leave_context(&self) {
        if !process::is_forked() {
            drop(self.end(None));
        }
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
    /// A use of the pool, and those of pools that its graphs use.
    pub(crate) uses: &'a Mutex<Vec<PoolUse>>,
}

impl GivenPool<'_> {
    fn candidate(&self) -> Candidate {
        let kind = if self.is_captured { RouteKind::Capture(None) } else { RouteKind::Scope };
        Candidate { ticket: self.ticket, kind, made_for: self.pool.made_for }
    }

    pub(super) fn key(&self) -> GivenKey {
        GivenKey { pool: self.pool.number, ticket: self.ticket, is_captured: self.is_captured }
    }
}

/// A route of the thread that entered it, until dropped, by whichever thread. It is gone with its own thread.
#[must_use = "requests follow the route only while this lives"]
#[derive(Debug)]
pub(crate) struct EnteredRoute(Weak<Route>);

impl EnteredRoute {
    /// Routes this thread's requests on the pool's device into the pool, and those that `followers` says. The use is the
    /// thread's until the route is left.
    pub(crate) fn with_use(in_use: PoolUse, kind: RouteKind, followers: Followers) -> Result<Self> {
        Self::enter(Arc::clone(in_use.pool()), kind, vec![in_use], followers)
    }

    /// The same for a pool that the caller keeps, or ends by its id.
    pub(in crate::memory) fn without_use(pool: Arc<Pool>, kind: RouteKind) -> Result<Self> {
        Self::enter(pool, kind, Vec::new(), Followers::Thread)
    }

    fn enter(pool: Arc<Pool>, kind: RouteKind, uses: Vec<PoolUse>, followers: Followers) -> Result<Self> {
        let route = Route::open(pool, kind, uses, followers)?;
        let entered = Self(Arc::downgrade(&route));
        let added = ROUTES.try_with(|routes| {
            routes.0.borrow_mut().push(route);
            note_change();
        });
        added.map(|()| entered).map_err(|_| ending())
    }

    /// Leaves the route entered until it is left by its ticket, which is returned, or its pool's id, or the thread ends.
    pub(crate) fn stay(mut self) -> u64 {
        mem::take(&mut self.0).upgrade().map_or(0, |route| route.ticket)
    }

    /// Ends the route, at any depth, and returns a capture's uses; none if this thread has no such route.
    pub(super) fn leave(&self) -> Option<Vec<PoolUse>> {
        let is_this = |route: &Route| std::ptr::eq(route, self.0.as_ptr());
        take_route(is_this).map(|route| route.end(None))
    }
}

impl Drop for EnteredRoute {
    fn drop(&mut self) {
        // In a forked child a lock may be held for ever.
        if self.leave().is_none()
            && !process::is_forked()
            && let Some(route) = self.0.upgrade()
        {
            let rerouted = Rerouted::new(next_ticket(), None);
            drop(route.end(Some(rerouted)));
        }
    }
}

/// Ends a scope of this thread by its ticket; false if this thread has no such scope.
pub(crate) fn leave_by_ticket(ticket: u64) -> bool {
    let taken = take_route(|route| route.ticket == ticket && route.kind == RouteKind::Scope);
    taken.map(|route| route.end(None)).is_some()
}

/// Ends this thread's innermost route with this id; false if there is none.
pub(in crate::memory) fn leave_by_id(device: Device, id: PoolId) -> bool {
    let is_meant =
        |open: &mut OpenRoute| open.uses.is_empty() && open.pool.id == id && open.pool.memory.location == device;
    let taken = take_route(|route| route.with_open(is_meant) == Some(true));
    taken.map(|route| route.end(None)).is_some()
}

/// Takes the thread's innermost route that is meant. Its uses end outside the borrow.
fn take_route(is_meant: impl Fn(&Route) -> bool) -> Option<Arc<Route>> {
    let taken = ROUTES.try_with(|routes| {
        let taken = take_last(&mut routes.0.borrow_mut(), |route| is_meant(route))?;
        note_change();
        Some(taken)
    });
    taken.ok().flatten()
}
