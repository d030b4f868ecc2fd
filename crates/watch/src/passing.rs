//! A call on its way: passed on, counted if it succeeds, and made again where the driver had no memory and somebody gave
//! way. No lock is held while the driver, or who gives way, is called.

use std::ffi::c_int;

use crate::calls::{Arguments, Call, Kind, Place};
use crate::driver::{self, NOT_FOUND, OUT_OF_MEMORY, SUCCESS};
use crate::holders::{self, Block, Leaving};
use crate::inside::{Inside, Within};
use crate::{fork, lookup, members, objects, report};

/// What is asked for besides what is missing, in turn: the driver may need some for itself, or in one piece. The first is
/// what calls are given whose need nobody tells: code and contexts take some hundred megabytes at most.
const MORE: [u64; 3] = [32 << 20, 512 << 20, 2 << 30];

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

/// Passes a call on.
///
/// # Safety
/// The target is the address of this function, or 0 where the driver lacks it, and the arguments are what it takes.
#[inline]
pub(crate) unsafe fn pass(call: &Call, target: usize, arguments: &Arguments, caller: usize) -> c_int {
    if target == 0 {
        return NOT_FOUND;
    }
    let pass_on = || {
        let [a, b, c, d, e, f, g, h, i, j, k] = *arguments;
        // SAFETY: it takes no more than these, in the way of C, and the program has passed them for it.
        unsafe { std::mem::transmute::<usize, Function>(target)(a, b, c, d, e, f, g, h, i, j, k) }
    };
    // Kernels are launched so, for whom nothing is counted.
    let place = match call.kind {
        Kind::Need(place) => Some(place),
        Kind::Launch(_) => Some(Place::Current),
        Kind::Load { count, values, .. } => {
            // SAFETY: the program passes so many values.
            return unsafe { load(arguments[count] as u32 as usize, arguments[values] as *mut usize, pass_on) };
        }
        _ => None,
    };
    if let Some(place) = place {
        let status = pass_on();
        return if status == OUT_OF_MEMORY { needed(place, arguments, pass_on) } else { status };
    }
    // Who only finds functions holds no lock.
    if Inside::now() == Inside::Call || (!matches!(call.kind, Kind::Find) && fork::is_forked()) {
        return pass_on();
    }
    let inside = || {
        let _call = Within::begin(Inside::Call);
        pass_on()
    };
    // SAFETY: the program passes what the function takes.
    unsafe { counted(call, arguments, caller, inside) }
}

type Function =
    unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize) -> c_int;

/// Makes a call that loads code, with the same values of its options each time.
///
/// # Safety
/// There are so many values.
unsafe fn load(count: usize, values: *mut usize, pass_on: impl Fn() -> c_int) -> c_int {
    // In a child of a fork, nobody gives way, and no memory of the host is to be had.
    let count = if values.is_null() || fork::is_forked() { 0 } else { count };
    // SAFETY: as above; they need not be aligned.
    let before: Vec<usize> = (0..count).map(|index| unsafe { values.add(index).read_unaligned() }).collect();
    let status = pass_on();
    if status != OUT_OF_MEMORY {
        return status;
    }
    needed(Place::Current, &[0; 11], || {
        for (index, &value) in before.iter().enumerate() {
            // SAFETY: as above. Those that the driver writes to can be written to; others may be constants.
            unsafe {
                if values.add(index).read_unaligned() != value {
                    values.add(index).write_unaligned(value);
                }
            }
        }
        pass_on()
    })
}

/// Makes a call again that found no memory for what it does.
#[cold]
fn needed(place: Place, arguments: &Arguments, pass_on: impl Fn() -> c_int) -> c_int {
    if fork::is_forked() {
        return OUT_OF_MEMORY;
    }
    let device = match place {
        Place::Current => driver::current_device(),
        Place::Argument(index) => Some(arguments[index] as c_int),
    };
    given_way(OUT_OF_MEMORY, || device, 0, pass_on)
}

/// Makes a call, and counts what it gives or takes.
///
/// # Safety
/// The arguments are what the function takes.
unsafe fn counted(call: &Call, arguments: &Arguments, caller: usize, pass_on: impl Fn() -> c_int) -> c_int {
    let [first, second, third, fourth, ..] = *arguments;
    match call.kind {
        Kind::Pass | Kind::Need(_) | Kind::Launch(_) | Kind::Load { .. } => pass_on(),
        Kind::Find => {
            let status = pass_on();
            if status == SUCCESS {
                // A driver that is older than the program has nothing newer than itself.
                let version = driver::version().map_or(third as c_int, |own| own.min(third as c_int));
                // SAFETY: the call has taken these, and succeeded.
                unsafe { lookup::replace(first as *const _, second as *mut usize, version, fourth) };
            }
            status
        }
        Kind::Allocate | Kind::AllocateInPool(..) | Kind::AllocatePitch => {
            let device = || match call.kind {
                Kind::AllocateInPool(stream, _) => driver::device_of_stream(arguments[stream]),
                _ => driver::current_device(),
            };
            let is_pitched = matches!(call.kind, Kind::AllocatePitch);
            let asked = if is_pitched { third.saturating_mul(fourth) } else { second };
            let status = given_way(pass_on(), device, asked as u64, pass_on);
            if status == SUCCESS && first != 0 {
                // SAFETY: the call has written the address.
                let address = unsafe { written(first) };
                // SAFETY: the call has written the pitch, if it writes one.
                let bytes = if is_pitched { (unsafe { written(second) }) * fourth } else { second };
                let (device, context) = match call.kind {
                    Kind::AllocateInPool(stream, null) if driver::is_captured(null.named(arguments[stream])) => {
                        return status;
                    }
                    // A pool may be of the host.
                    Kind::AllocateInPool(..) if driver::is_of_host(address) => return status,
                    Kind::AllocateInPool(..) => (driver::device_of(address).or_else(device), 0),
                    _ => (device(), driver::current_context()),
                };
                report::prepare();
                holders::add(address, Block::new(device, context, bytes as u64, objects::caller(caller)));
            }
            status
        }
        Kind::Create => {
            // `CUmemAllocationProp`: two ints, then the kind and the number of its location.
            // SAFETY: the program passes one, unless it is null.
            let properties = (third != 0).then(|| unsafe { (third as *const [c_int; 4]).read_unaligned() });
            let device = properties.filter(|found| found[2] == ON_DEVICE).map(|found| found[3]);
            if device.is_none() {
                return pass_on();
            }
            let status = given_way(pass_on(), || device, second as u64, pass_on);
            if status == SUCCESS && first != 0 {
                // SAFETY: the call has written the handle.
                let handle = unsafe { written(first) };
                report::prepare();
                holders::create(handle, Block::new(device, 0, second as u64, objects::caller(caller)));
            }
            status
        }
        Kind::Retain => {
            let status = pass_on();
            if status == SUCCESS && first != 0 {
                // SAFETY: the call has written the handle.
                holders::retain(unsafe { written(first) }, second);
            }
            status
        }
        Kind::Map => {
            let status = pass_on();
            if status == SUCCESS {
                holders::map(first, second, fourth);
            }
            status
        }
        Kind::Free => gone_after(Leaving::block(first), pass_on),
        Kind::Release => gone_after(Leaving::handle(first), pass_on),
        Kind::Unmap => gone_after(Leaving::mappings(first, second), pass_on),
        Kind::MakeContext(argument) => {
            let status = given_way(pass_on(), || Some(arguments[argument] as c_int), 0, pass_on);
            if status == SUCCESS && first != 0 {
                // SAFETY: the call has written the context.
                holders::make_context(unsafe { written(first) });
            }
            status
        }
        Kind::EndContext => gone_after(Leaving::context(first), pass_on),
        Kind::ResetPrimary => gone_after(Leaving::primary_context(first as c_int), pass_on),
        Kind::ReleasePrimary => {
            let device = first as c_int;
            gone_after_if(Leaving::primary_context(device), pass_on, || !driver::has_primary_context(device))
        }
    }
}

/// Returns what a call has written to a place of the program's, which need not be aligned.
///
/// # Safety
/// The place is there.
unsafe fn written(place: usize) -> usize {
    // SAFETY: the caller's, who says that it is there.
    unsafe { (place as *const usize).read_unaligned() }
}

fn gone_after(leaving: Leaving, pass_on: impl Fn() -> c_int) -> c_int {
    gone_after_if(leaving, pass_on, || true)
}

fn gone_after_if(leaving: Leaving, pass_on: impl Fn() -> c_int, is_gone: impl FnOnce() -> bool) -> c_int {
    let status = pass_on();
    if status == SUCCESS && is_gone() {
        leaving.has_gone();
    }
    status
}

/// Makes a call for so many bytes of a device again each time that somebody has given way for it; returns its last status.
fn given_way(
    mut status: c_int,
    device: impl FnOnce() -> Option<c_int>,
    bytes: u64,
    pass_on: impl Fn() -> c_int,
) -> c_int {
    if status != OUT_OF_MEMORY {
        return status;
    }
    let Some(device) = device().filter(|_| members::are_there()) else { return status };
    for more in MORE {
        if Inside::now() == Inside::Giving {
            break;
        }
        let giving = Within::begin(Inside::Giving);
        // What is free of another device than the thread's is not known.
        let is_current = driver::current_device() == Some(device);
        let known = if is_current { driver::memory() } else { driver::total(device).map(|total| (0, total)) };
        let (free, total) = known.unwrap_or((0, u64::MAX));
        if bytes > total {
            break;
        }
        // Where as much is free, it is in pieces, or kept by the driver.
        let missing = bytes.saturating_sub(free).saturating_add(more);
        let given = members::give_way(device, missing, &giving);
        drop(giving);
        holders::note_given(device, given);
        // Where nothing was, what another thread was given for its call may be enough for both.
        status = pass_on();
        if status != OUT_OF_MEMORY || given == 0 {
            break;
        }
    }
    status
}
