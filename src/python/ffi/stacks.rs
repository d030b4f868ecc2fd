//! Python's call stacks: code objects and places in them, which get their names only when a snapshot is read.
//!
//! A stack is taken only if the thread holds the GIL, which is never waited for: a thread that allocates without it, as in
//! PyTorch's operators, has no stack. Each stack is kept once, by a number, and holds its code objects, not its frames, so that
//! no local variable lives longer. Stacks that nothing names any more are dropped when a new one is taken.
//!
//! Only functions of the stable ABI are linked; those that are not part of it are looked up when first needed.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::ffi;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use super::interpreter::{attached, function};
use crate::observe::recording::{Stack, StackCallback};
use crate::sync::lock;

/// The innermost frames that a stack has at most.
const DEPTH: usize = 64;
/// How many stacks are kept before those without a name are looked for.
const STACKS: usize = 1 << 16;

/// A place in a function: its code object, and the instruction's offset in bytes.
type CodePosition = (Py<PyAny>, c_int);

/// The same by the code object's address, as stacks are compared.
type StackKey = Vec<(usize, c_int)>;

#[derive(Default)]
struct Stacks {
    numbers: FxHashMap<StackKey, u32>,
    places: HashMap<u32, Vec<CodePosition>>,
    last: u32,
    /// How many there may be before those that nothing names are dropped.
    room: usize,
}

static STACKS_TAKEN: Mutex<Option<Stacks>> = Mutex::new(None);

type GetBack = unsafe extern "C" fn(*mut ffi::PyFrameObject) -> *mut ffi::PyFrameObject;
type GetLasti = unsafe extern "C" fn(*mut ffi::PyFrameObject) -> c_int;

/// Returns `PyFrame_GetBack` and `PyFrame_GetLasti`; none where this Python lacks any, and then no stacks are taken.
fn functions() -> Option<(GetBack, GetLasti)> {
    static FOUND: OnceLock<Option<(GetBack, GetLasti)>> = OnceLock::new();
    // SAFETY: the functions have had these types since 3.9 and 3.11, in which they came.
    *FOUND.get_or_init(|| unsafe { function(c"PyFrame_GetBack").zip(function(c"PyFrame_GetLasti")) })
}

/// Writes down where the calling thread is in each of its functions, the innermost first.
fn walk(_py: Python<'_>, (back, lasti): (GetBack, GetLasti), key: &mut StackKey) {
    // SAFETY: the thread holds the GIL. The innermost frame runs, so a borrowed reference is good, and each one around
    // it is owned until its successor is known; a frame has its code object as long as it lives.
    unsafe {
        let mut frame = ffi::PyEval_GetFrame();
        let mut owned: *mut ffi::PyFrameObject = std::ptr::null_mut();
        while !frame.is_null() && key.len() < DEPTH {
            let code = ffi::PyFrame_GetCode(frame);
            key.push((code.expose_provenance(), lasti(frame)));
            ffi::Py_DECREF(code.cast());
            let next = back(frame);
            ffi::Py_XDECREF(owned.cast());
            owned = next;
            frame = next;
        }
        ffi::Py_XDECREF(owned.cast());
    }
}

thread_local! {
    /// Room for a stack, kept so that taking one allocates nothing.
    static SCRATCH: Cell<StackKey> = const { Cell::new(Vec::new()) };
}

/// The calling thread's stack, if it holds the GIL.
fn take() -> Stack {
    let Some((functions, py)) = functions().zip(attached()) else {
        return Stack::NONE;
    };
    // Taken out, for new frames can set off a collection of garbage, which can come here again.
    let mut key = SCRATCH.try_with(Cell::take).unwrap_or_default();
    key.clear();
    walk(py, functions, &mut key);
    let stack = number(py, &key);
    let _ = SCRATCH.try_with(|scratch| scratch.set(key));
    stack
}

/// The number of a stack whose functions are running.
#[inline]
fn number(py: Python<'_>, key: &StackKey) -> Stack {
    if key.is_empty() {
        return Stack::NONE;
    }
    let known = lock(&STACKS_TAKEN).as_ref().and_then(|stacks| stacks.numbers.get(key).copied());
    known.map_or_else(|| add(py, key), Stack)
}

#[cold]
fn add(py: Python<'_>, key: &StackKey) -> Stack {
    drop_unnamed();
    let place = |&(code, lasti): &(usize, c_int)| {
        let code = std::ptr::with_exposed_provenance_mut(code);
        // SAFETY: it is the code object of a function that this thread, which holds the GIL, is running.
        (unsafe { Bound::from_borrowed_ptr(py, code) }.unbind(), lasti)
    };
    let places: Vec<CodePosition> = key.iter().map(place).collect();
    let (number, before) = {
        let mut stacks = lock(&STACKS_TAKEN);
        let stacks = stacks.get_or_insert_default();
        stacks.last = stacks.last % Stack::LAST + 1;
        stacks.numbers.insert(key.clone(), stacks.last);
        (stacks.last, stacks.places.insert(stacks.last, places))
    };
    // Outside the lock, as below.
    drop(before);
    Stack(number)
}

/// Drops the stacks that neither an event nor a block names, once there are many.
fn drop_unnamed() {
    if lock(&STACKS_TAKEN).as_ref().is_none_or(|stacks| stacks.numbers.len() < stacks.room.max(STACKS)) {
        return;
    }
    let named = crate::memory::stacks_in_use();
    let unnamed: Vec<_> = {
        let mut stacks = lock(&STACKS_TAKEN);
        let Some(stacks) = stacks.as_mut() else { return };
        stacks.numbers.retain(|_, number| named.contains(&Stack(*number)));
        stacks.room = 2 * stacks.numbers.len();
        stacks.places.extract_if(|number, _| !named.contains(&Stack(*number))).collect()
    };
    // Outside the lock: the end of a code object can run anything.
    drop(unnamed);
}

/// The places of a stack, the innermost first; none if nothing is known of it.
pub(crate) fn places(py: Python<'_>, stack: Stack) -> Vec<CodePosition> {
    let stacks = lock(&STACKS_TAKEN);
    let places = stacks.as_ref().and_then(|stacks| stacks.places.get(&stack.0));
    places.into_iter().flatten().map(|(code, lasti)| (code.clone_ref(py), *lasti)).collect()
}

/// Returns what takes stacks for a recording.
pub(crate) fn stack_callback() -> StackCallback {
    Arc::new(|_| take())
}

/// Forgets all stacks. With the GIL held, so that their code objects end here.
pub(crate) fn clear(_py: Python<'_>) {
    let _forgotten = lock(&STACKS_TAKEN).take();
}
