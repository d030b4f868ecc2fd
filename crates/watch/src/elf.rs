//! The objects of the process, as the dynamic linker has loaded them: which one an address belongs to, and where one
//! defines a symbol. The linker's own functions would answer for the caller, which is this library, and take the lock
//! that a library under construction holds.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use std::{mem, thread};

use libc::{Elf64_Phdr as Segment, Elf64_Sym as Symbol, PF_X, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

use crate::signals::Blocked;

const DT_NULL: usize = 0;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;

/// Held to read while the linker is asked, so that no child finds its lock held for ever, and to write across a fork.
static ASKED: RwLock<()> = RwLock::new(());

/// The thread that keeps all others out; 0 for none. No variable of the thread's own, as sanitizers, which stand in for what
/// finds those, ask for functions before they have begun.
static ALONE: AtomicUsize = AtomicUsize::new(0);

/// Whether somebody has waited for the last fork for too long, for which nobody waits any more then.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Returns whether that is this thread, also in the child of its fork.
fn is_alone() -> bool {
    let alone = ALONE.load(Ordering::Relaxed);
    // SAFETY: it takes nothing.
    alone != 0 && alone == unsafe { libc::pthread_self() } as usize
}

struct Kept(UnsafeCell<Option<Alone>>);

// SAFETY: it is used only by the thread that holds the lock.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept(UnsafeCell::new(None));

/// Held while the linker is asked, of which no part asks it again. No handler of a signal runs meanwhile: if it forked, it
/// would wait for its own thread. The lock is dropped first; the thread that keeps all others out needs none.
pub(crate) struct Asking {
    _asks: Option<RwLockReadGuard<'static, ()>>,
    _signals: Blocked,
}

/// Held across a fork, for the same reason without handlers of signals.
struct Alone {
    _lock: RwLockWriteGuard<'static, ()>,
    _signals: Blocked,
}

/// Waits for a fork, but not for ever: another library's handler of it may wait for what this thread has locked. By then it asks
/// all the same, as if this library were not there.
pub(crate) fn asking() -> Asking {
    /// Most forks take less.
    const LONGEST: Duration = Duration::from_millis(100);

    let mut begun = None;
    loop {
        if let Some(asking) = asking_at_once() {
            return asking;
        }
        if IN_VAIN.load(Ordering::Relaxed) || begun.get_or_insert_with(Instant::now).elapsed() > LONGEST {
            IN_VAIN.store(true, Ordering::Relaxed);
            return Asking { _asks: None, _signals: Blocked::all() };
        }
        // Unlike a sleep, it is no place where a thread is cancelled.
        thread::yield_now();
    }
}

/// The same where that waits for no fork, of which another library's handler may wait for this thread: none is had meanwhile.
pub(crate) fn asking_at_once() -> Option<Asking> {
    let signals = Blocked::all();
    let asks = if is_alone() { None } else { Some(ASKED.try_read().ok()?) };
    Some(Asking { _asks: asks, _signals: signals })
}

/// Waits until nobody asks the linker, and keeps all out but this thread: handlers of the same fork, of what was loaded
/// before this library began, run after this, and before the end of it.
pub(crate) fn keep_out() {
    let signals = Blocked::all();
    let alone = Alone { _lock: ASKED.write().unwrap_or_else(PoisonError::into_inner), _signals: signals };
    IN_VAIN.store(false, Ordering::Relaxed);
    // SAFETY: the thread holds the lock.
    unsafe { *KEPT.0.get() = Some(alone) };
    // SAFETY: it takes nothing.
    ALONE.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
}

/// Ends that, on the same thread.
pub(crate) fn let_in() {
    ALONE.store(0, Ordering::Relaxed);
    // SAFETY: the thread holds the lock.
    drop(unsafe { (*KEPT.0.get()).take() });
}

/// An object in the order in which they were loaded, which is the order in which the linker looks for a symbol.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    base: usize,
    segments: &'static [Segment],
    name: *const c_char,
    /// How many objects were loaded and unloaded until now. Where there are several namespaces glibc has another number for
    /// the second, which grows with what is unloaded, too.
    pub(crate) changes: (u64, u64),
}

/// Calls a function with each object, until it returns something.
pub(crate) fn each<R>(call: impl FnMut(Object) -> Option<R>) -> Option<R> {
    each_while(&asking(), call)
}

/// The same while the linker is asked.
pub(crate) fn each_while<R>(_asking: &Asking, mut call: impl FnMut(Object) -> Option<R>) -> Option<R> {
    struct Search<'a, R> {
        call: &'a mut dyn FnMut(Object) -> Option<R>,
        found: Option<R>,
    }
    unsafe extern "C" fn step<R>(info: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
        // SAFETY: the linker passes its description of an object and what `each` has passed on.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_, R>>()) };
        // SAFETY: the linker keeps an object's headers while it is loaded, and nothing here keeps them longer.
        let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let changes = (info.dlpi_adds, info.dlpi_subs);
        search.found = (search.call)(Object { base: info.dlpi_addr as usize, segments, name: info.dlpi_name, changes });
        search.found.is_some().into()
    }
    let mut search = Search { call: &mut call, found: None };
    // SAFETY: the address is that of a function of this type, which calls `step` before it returns, with the search.
    unsafe { mem::transmute::<usize, Iterate>(iterate())(step::<R>, (&raw mut search).cast()) };
    search.found
}

type Step = unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Step, *mut c_void) -> c_int;

/// Returns the C library's own `dl_iterate_phdr`: another that stands in for it asks `dlsym` for that, which is ours.
fn iterate() -> usize {
    static OWN: Known = Known::new();

    OWN.get_or(c_library_s).unwrap_or(libc::dl_iterate_phdr as *const () as usize)
}

fn c_library_s() -> Option<usize> {
    let mut found = None;
    // SAFETY: the linker has set it up before any code of this library runs, as far as what the process began with, which
    // has the C library and is never unloaded.
    let mut linked = unsafe { _r_debug.first };
    // SAFETY: as above.
    while let Some(object) = unsafe { linked.as_ref() }.filter(|_| found.is_none()) {
        // SAFETY: each has a name and a dynamic section.
        unsafe {
            if file_name(CStr::from_ptr(object.name)).starts_with(b"libc.so") {
                found = definition(object.base, object.dynamic, c"dl_iterate_phdr");
            }
        }
        linked = object.next;
    }
    found
}

/// `struct link_map` and `struct r_debug` of `link.h`.
#[repr(C)]
struct Linked {
    base: usize,
    name: *const c_char,
    dynamic: *const [usize; 2],
    next: *const Linked,
}

#[repr(C)]
struct Debugged {
    version: c_int,
    first: *const Linked,
}

unsafe extern "C" {
    static _r_debug: Debugged;
}

/// Returns the part of a path after its folders.
pub(crate) fn file_name(path: &CStr) -> &[u8] {
    path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// An address that is looked up until it was found.
pub(crate) struct Known(AtomicUsize);

impl Known {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Returns the address; none if it is still not to be found.
    pub(crate) fn get_or(&self, find: impl FnOnce() -> Option<usize>) -> Option<usize> {
        let known = self.0.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        find().inspect(|&found| self.0.store(found, Ordering::Relaxed))
    }
}

/// Returns where this library defines a function that it exports. Its own name for it may stand for another library's,
/// which was loaded before this one.
pub(crate) fn own(symbol: &CStr) -> Option<usize> {
    each(|object| object.has(here()).then(|| object.definition(symbol)).flatten())
}

/// Returns an address in this library.
pub(crate) fn here() -> usize {
    own as fn(&CStr) -> Option<usize> as usize
}

impl Object {
    /// Returns the file's path; empty for the program.
    pub(crate) fn path(&self) -> &CStr {
        if self.name.is_null() {
            return c"";
        }
        // SAFETY: the linker's name of an object is a string that lives as long as the object.
        unsafe { CStr::from_ptr(self.name) }
    }

    /// Returns where something is that the file has at an address; the base is negative where it is loaded below that.
    fn at(&self, address: usize) -> usize {
        self.base.wrapping_add(address)
    }

    /// Returns where its code is, mostly in one piece.
    pub(crate) fn code(&self) -> impl Iterator<Item = Range<usize>> {
        let executable = self.segments.iter().filter(|found| found.p_type == PT_LOAD && found.p_flags & PF_X != 0);
        executable.map(|segment| {
            let start = self.at(segment.p_vaddr as usize);
            start..start.saturating_add(segment.p_memsz as usize)
        })
    }

    /// Returns whether code is its own. Between its segments other objects may be.
    pub(crate) fn has(&self, address: usize) -> bool {
        self.code().any(|code| code.contains(&address))
    }

    /// Returns the addresses from the first to the last byte of its code, which is nothing where it has none.
    pub(crate) fn range(&self) -> Range<usize> {
        self.code().reduce(|all, code| all.start.min(code.start)..all.end.max(code.end)).unwrap_or_default()
    }

    /// Returns the address at which it defines a function.
    pub(crate) fn definition(&self, name: &CStr) -> Option<usize> {
        let dynamic = self.segments.iter().find(|segment| segment.p_type == PT_DYNAMIC)?;
        // SAFETY: the linker has loaded this section.
        unsafe { definition(self.base, self.at(dynamic.p_vaddr as usize) as *const _, name) }
    }
}

/// Returns the address at which an object defines a function.
///
/// # Safety
/// These are where a loaded object is, and its dynamic section.
unsafe fn definition(base: usize, mut entry: *const [usize; 2], name: &CStr) -> Option<usize> {
    let (mut strings, mut symbols, mut hash, mut old_hash) = (0, 0, 0, 0);
    loop {
        // SAFETY: the section ends with DT_NULL.
        let [tag, value] = unsafe { *entry };
        // The linker has added the base, which may be negative, but not for what the kernel provides.
        let address = if (value as isize) < base as isize { base.wrapping_add(value) } else { value };
        match tag {
            DT_NULL => break,
            DT_STRTAB => strings = address,
            DT_SYMTAB => symbols = address,
            DT_GNU_HASH => hash = address,
            DT_HASH => old_hash = address,
            _ => {}
        }
        // SAFETY: DT_NULL was not reached.
        entry = unsafe { entry.add(1) };
    }
    if strings == 0 || symbols == 0 {
        return None;
    }
    let (strings, symbols) = (strings as *const c_char, symbols as *const Symbol);
    // SAFETY: these are the addresses of the tables of a loaded object, if it has them.
    let found = unsafe {
        match (hash, old_hash) {
            (0, 0) => None,
            (0, _) => look_through(name, strings, symbols, old_hash as *const u32),
            _ => look_up(name, strings, symbols, hash as *const u32),
        }
    };
    found.map(|offset| base.wrapping_add(offset))
}

/// Returns the value of a symbol if it is defined and has the name.
///
/// # Safety
/// The addresses are those of one object's strings, and of a symbol of it.
unsafe fn value_of(symbol: *const Symbol, name: &CStr, strings: *const c_char) -> Option<usize> {
    // SAFETY: the caller's, who says what they are.
    let (symbol, its_name) = unsafe { (&*symbol, CStr::from_ptr(strings.add((*symbol).st_name as usize))) };
    let is_meant = symbol.st_shndx != 0 && symbol.st_value != 0 && its_name == name;
    is_meant.then_some(symbol.st_value as usize)
}

/// Returns the value of a defined symbol of an object that has only the older table, DT_HASH: one after the other, as hardly
/// any has.
///
/// # Safety
/// The addresses are those of one object's tables.
unsafe fn look_through(
    name: &CStr,
    strings: *const c_char,
    symbols: *const Symbol,
    table: *const u32,
) -> Option<usize> {
    // SAFETY: its second number is that of all symbols.
    let count = unsafe { *table.add(1) } as usize;
    // SAFETY: there are so many.
    (0..count).find_map(|index| unsafe { value_of(symbols.add(index), name, strings) })
}

/// Returns the value of a defined symbol, by the table DT_GNU_HASH (`elf/dl-lookup.c` of glibc describes it by its code).
///
/// # Safety
/// The addresses are those of one object's tables.
unsafe fn look_up(name: &CStr, strings: *const c_char, symbols: *const Symbol, table: *const u32) -> Option<usize> {
    let hash = name.to_bytes().iter().fold(5381_u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
    // SAFETY: the table begins with these four numbers; then come the words of a filter, the buckets, and the chains.
    unsafe {
        let [buckets, first, words, _] = *table.cast::<[u32; 4]>();
        let bucket = table.add(4 + words as usize * (mem::size_of::<usize>() / mem::size_of::<u32>()));
        let chains = bucket.add(buckets as usize);
        let mut index = if buckets == 0 { 0 } else { *bucket.add((hash % buckets) as usize) };
        if index < first {
            return None;
        }
        loop {
            let found = *chains.add((index - first) as usize);
            // The lowest bit ends a chain.
            let value = (found | 1 == hash | 1).then(|| value_of(symbols.add(index as usize), name, strings));
            if let Some(value) = value.flatten() {
                return Some(value);
            }
            if found & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }
}
