//! Those that give way: each gpupool in the process, as a wheel and the library for C and C++ may both be there. They ask for
//! this library by its one table, [`gpupool_watch`].

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::holders::{self, Tell};
use crate::inside::Within;
use crate::{driver, elf};

/// Gives back at least so many bytes of a device, if there are as many, and returns how many the driver has by then.
type GiveWay = unsafe extern "C" fn(device: c_int, bytes: u64) -> u64;
/// Returns the bytes of a device that a gpupool has.
type Reserved = unsafe extern "C" fn(device: c_int) -> u64;

/// What gpupool finds this library by.
#[derive(Debug)]
#[repr(C)]
pub struct Table {
    /// It is of this size, which grows with what it has.
    size: usize,
    /// Has these functions asked from now on, and calls of the object that they are in passed on as they are. 0 where no
    /// more can be kept.
    join: unsafe extern "C" fn(GiveWay, Reserved) -> c_int,
    /// Tells of each that holds memory of a device, the largest first.
    holders: unsafe extern "C" fn(c_int, Tell, *mut c_void),
    /// Returns what NVML counts for the process on a device; 0 if it does not say.
    process_bytes: unsafe extern "C" fn(c_int) -> u64,
}

/// The table.
#[unsafe(no_mangle)]
pub static gpupool_watch: Table =
    Table { size: std::mem::size_of::<Table>(), join, holders: holders::tell, process_bytes };

unsafe extern "C" fn process_bytes(device: c_int) -> u64 {
    driver::process_bytes(device).unwrap_or(0)
}

struct Member {
    give_way: AtomicPtr<()>,
    reserved: AtomicPtr<()>,
    first: AtomicUsize,
    end: AtomicUsize,
}

/// More than there are gpupools in a process.
static MEMBERS: [Member; 8] = [const {
    Member {
        give_way: AtomicPtr::new(ptr::null_mut()),
        reserved: AtomicPtr::new(ptr::null_mut()),
        first: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; 8];

unsafe extern "C" fn join(give_way: GiveWay, reserved: Reserved) -> c_int {
    let address = give_way as usize;
    keep(address);
    let range = elf::each(|object| object.has(address).then(|| object.range()));
    let Range { start, end } = range.unwrap_or(address..address + 1);
    for member in &MEMBERS {
        let free = ptr::null_mut();
        if member.give_way.compare_exchange(free, give_way as *mut (), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            member.reserved.store(reserved as *mut (), Ordering::Release);
            member.end.store(end, Ordering::Relaxed);
            member.first.store(start, Ordering::Release);
            return 1;
        }
    }
    0
}

/// Keeps the object loaded that has an address, whoever closes it.
fn keep(address: usize) {
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `dladdr` fills the place in where it finds an object, whose name is a string; that is there, and so only kept.
    unsafe {
        if libc::dladdr(address as *const c_void, found.as_mut_ptr()) != 0 {
            libc::dlopen(found.assume_init().dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

/// Returns whether an address is in the object of one of them.
pub(crate) fn is_one_of(address: usize) -> bool {
    MEMBERS.iter().any(|member| {
        let first = member.first.load(Ordering::Acquire);
        first != 0 && (first..member.end.load(Ordering::Relaxed)).contains(&address)
    })
}

/// Returns whether there is anybody who may give way.
pub(crate) fn are_there() -> bool {
    !MEMBERS[0].give_way.load(Ordering::Acquire).is_null()
}

/// Has them give back so many bytes of a device; returns how many the driver has by then.
pub(crate) fn give_way(device: c_int, bytes: u64, _giving: &Within) -> u64 {
    let mut given = 0;
    for member in &MEMBERS {
        let address = member.give_way.load(Ordering::Acquire);
        if address.is_null() || given >= bytes {
            break;
        }
        // SAFETY: `join` has kept the address of such a function.
        let give_way: GiveWay = unsafe { std::mem::transmute(address) };
        // SAFETY: it may be called on any thread that has no lock of ours, which the guard shows.
        given += unsafe { give_way(device, bytes - given) };
    }
    given
}

/// Returns the bytes of a device that they have.
pub(crate) fn reserved(device: c_int) -> u64 {
    let of_each = MEMBERS.iter().map(|member| member.reserved.load(Ordering::Acquire)).take_while(|it| !it.is_null());
    of_each
        .map(|address| {
            // SAFETY: `join` has kept the address of such a function, which may be called on any thread without a lock.
            unsafe { std::mem::transmute::<*mut (), Reserved>(address)(device) }
        })
        .sum()
}
