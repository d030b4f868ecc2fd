//! How programs find the driver's functions, and what they find: the linker's `dlsym` and `dlvsym` stand in for themselves
//! here. All other names go on to the next `dlsym` as if it had been called by the program, which it tells by its return
//! address: so that is a jump.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;

use crate::calls::Call;
use crate::elf::{self, Known, Object};
use crate::{members, objects};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// What the jump needs: where to, or the answer.
#[repr(C)]
struct Found {
    address: usize,
    is_answer: usize,
}

/// Asks a function with the arguments, of which there are three at most, and the address that the call returns to; returns
/// what it found, or jumps to where it says.
macro_rules! found_by {
    ($find:ident) => {{
        #[cfg(target_arch = "x86_64")]
        naked_asm!(
            ".cfi_startproc",
            "push rdi", "push rsi", "push rdx", ".cfi_adjust_cfa_offset 24",
            "mov rcx, [rsp + 24]",
            "call {find}",
            "mov rcx, rdx",
            "pop rdx", "pop rsi", "pop rdi", ".cfi_adjust_cfa_offset -24",
            "test rcx, rcx", "jz 2f", "ret",
            "2: jmp rax",
            ".cfi_endproc",
            find = sym $find
        );
        #[cfg(target_arch = "aarch64")]
        naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-48]!", ".cfi_def_cfa_offset 48", ".cfi_offset x29, -48", ".cfi_offset x30, -40",
            "stp x0, x1, [sp, #16]", "str x2, [sp, #32]",
            "mov x3, x30",
            "bl {find}",
            "mov x16, x0", "mov x17, x1",
            "ldp x0, x1, [sp, #16]", "ldr x2, [sp, #32]", "ldp x29, x30, [sp], #48",
            ".cfi_def_cfa_offset 0", ".cfi_restore x29", ".cfi_restore x30",
            "cbz x17, 2f", "mov x0, x16", "ret",
            "2: br x16",
            ".cfi_endproc",
            find = sym $find
        );
    }};
}

/// As the linker's `dlsym`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    found_by!(find)
}

/// As the linker's `dlvsym`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    found_by!(find_version)
}

/// The address of the next `dlsym` and `dlvsym`: the linker's, or another library's that stands in for those.
static NEXT: [(&CStr, Known); 2] = [(c"dlsym", Known::new()), (c"dlvsym", Known::new())];

fn next(which: usize) -> usize {
    let (name, address) = &NEXT[which];
    address.get_or(|| first_after(elf::here(), name)).unwrap_or(not_there as Dlsym as usize)
}

/// Stands in for a `dlvsym` that a C library lacks.
unsafe extern "C" fn not_there(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

/// Returns where the first object after the one that has an address defines a symbol, as the linker has it for RTLD_NEXT.
fn first_after(address: usize, symbol: &CStr) -> Option<usize> {
    let mut is_after = false;
    elf::each(|object| {
        if !is_after {
            is_after = object.has(address);
            return None;
        }
        object.definition(symbol)
    })
}

/// Returns whether the object of one address was loaded before that of the other.
fn is_before(address: usize, other: usize) -> bool {
    let has = |object: Object| {
        if object.has(other) { Some(false) } else { object.has(address).then_some(true) }
    };
    elf::each(has).unwrap_or(false)
}

/// Returns the linker's own `dlsym`, whichever libraries stand in for it.
fn linkers() -> usize {
    /// How the names of files begin that have it: of glibc, before 2.34 and since, and of musl.
    const FILES: [&[u8]; 4] = [b"libdl.so", b"libc.so", b"libc.musl", b"ld-musl"];
    static OWN: Known = Known::new();

    let is_one = |object: &Object| FILES.iter().any(|file| objects::file_name(object.path()).starts_with(file));
    let find = || elf::each(|object| is_one(&object).then(|| object.definition(c"dlsym")).flatten());
    OWN.get_or(find).unwrap_or_else(|| next(0))
}

/// Returns what the linker finds by a handle, as if this library had asked.
fn ask(handle: *mut c_void, name: &CStr, version: Option<&CStr>) -> Option<usize> {
    // SAFETY: the addresses are those of functions of these types, and the handle is the program's.
    let found = unsafe {
        match version {
            None => mem::transmute::<usize, Dlsym>(next(0))(handle, name.as_ptr()),
            Some(version) => mem::transmute::<usize, Dlvsym>(next(1))(handle, name.as_ptr(), version.as_ptr()),
        }
    };
    (!found.is_null()).then_some(found as usize)
}

/// Returns what the exported function of this name stands before. Another library that stands in for `dlsym` would ask for
/// what comes after that library, and so is not asked itself.
pub(crate) fn behind_us(symbol: &CStr) -> Option<usize> {
    // SAFETY: the address is that of a function of this type.
    let next = || unsafe { mem::transmute::<usize, Dlsym>(linkers())(libc::RTLD_NEXT, symbol.as_ptr()) };
    let found = next();
    if found.is_null() {
        // Where there is no driver either, it is asked again: its reason is the one to be told.
        of_driver(symbol).or_else(|| Some(next() as usize).filter(|&found| found != 0))
    } else {
        // For a program that finds it so the linker keeps the driver open, and its address is kept here.
        let _ = of_driver(symbol);
        Some(found as usize)
    }
}

/// Returns a function of the driver that is loaded, as by a handle of it: also where no other object sees it.
pub(crate) fn of_driver(symbol: &CStr) -> Option<usize> {
    ask(driver()?, symbol, None)
}

/// The same for what no program has asked for, which is told of no error: none if no driver is loaded, none in that if it
/// lacks the function.
pub(crate) fn unasked_of_driver(symbol: &CStr) -> Option<Option<usize>> {
    let found = ask(driver()?, symbol, None);
    if found.is_none() {
        without_error(0);
    }
    Some(found)
}

/// Returns a handle of the driver, if it is loaded.
fn driver() -> Option<*mut c_void> {
    // SAFETY: the driver is opened only if it is there, and stays open.
    let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!driver.is_null()).then_some(driver)
}

unsafe extern "C" fn find(handle: *mut c_void, name: *const c_char, _third: usize, caller: usize) -> Found {
    // SAFETY: the program passes a name.
    let name = unsafe { CStr::from_ptr(name) };
    found(handle, name, None, caller).map_or(Found { address: next(0), is_answer: 0 }, answer)
}

unsafe extern "C" fn find_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Found {
    // SAFETY: the program passes a name and a version.
    let (name, version) = unsafe { (CStr::from_ptr(name), CStr::from_ptr(version)) };
    found(handle, name, Some(version), caller).map_or(Found { address: next(1), is_answer: 0 }, answer)
}

fn answer(address: usize) -> Found {
    Found { address, is_answer: 1 }
}

/// Returns what a program that asks for a name gets instead of what the linker finds; none where it is to ask on.
fn found(handle: *mut c_void, name: &CStr, version: Option<&CStr>, caller: usize) -> Option<usize> {
    let is_next = handle == libc::RTLD_NEXT;
    if let Some(which) = NEXT.iter().position(|(own, _)| *own == name) {
        // Another library that stands in for `dlsym` asks for the next one. If it comes after this one, that is not ours.
        let us = elf::own(name)?;
        let is_ours = if is_next { is_before(caller, us) } else { ask(handle, name, version) == Some(next(which)) };
        return is_ours.then(|| without_error(us));
    }
    let call = name.to_bytes().starts_with(b"cu").then(|| Call::of_symbol(name))??;
    if members::is_one_of(caller) {
        return None;
    }
    let address =
        if is_next { first_after(caller, name).or_else(|| of_driver(name)) } else { ask(handle, name, version) };
    let address = match address {
        // As everybody sees this library's, whether or not the driver has such a function.
        Some(address) if address == call.exported() => behind_us(name).map(|_| address),
        // In the end it is the linker that knows what comes after the caller, and why nothing does.
        None if is_next => return None,
        address => address,
    };
    // Where there is none, the linker's reason for it is the program's to ask for.
    Some(address.map_or(0, |address| without_error(call.stand_in_for(address))))
}

/// Returns what was found, of which no error says that it was not: what was tried before may have left one.
fn without_error(found: usize) -> usize {
    // SAFETY: it only forgets the thread's last error of the linker.
    unsafe { libc::dlerror() };
    found
}

/// Puts what stands in for a function in the place to which `cuGetProcAddress` has written its address.
///
/// # Safety
/// These are the arguments of a call that succeeded.
pub(crate) unsafe fn replace(name: *const c_char, place: *mut usize, version: c_int, flags: usize) {
    // SAFETY: the call has taken the name, and written to the place unless that is null.
    let (name, Some(address)) = (unsafe { (CStr::from_ptr(name), place.as_mut()) }) else { return };
    if let Some(call) = Call::of_name(name, version, flags)
        && *address != 0
    {
        *address = call.stand_in_for(*address);
    }
}
