//! How programs find the driver's functions, and what they find: the linker's `dlsym` and `dlvsym` stand in for themselves
//! here. All other names go on to the next `dlsym` as if it had been called by the program, which it tells by its return
//! address: so that is a jump.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_void};

use crate::calls::Call;
use crate::linker::{self, NEXT, ask, first_after, is_before, next, without_error};
use crate::{elf, members};

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
    let address = if is_next {
        first_after(caller, name).or_else(|| linker::of_driver(name))
    } else {
        ask(handle, name, version)
    };
    let address = match address {
        // As everybody sees this library's, whether or not the driver has such a function.
        Some(address) if address == call.exported() => linker::behind_us(name).map(|_| address),
        // In the end it is the linker that knows what comes after the caller, and why nothing does.
        None if is_next => return None,
        address => address,
    };
    // Where there is none, the linker's reason for it is the program's to ask for.
    Some(address.map_or(0, |address| without_error(call.stand_in_for(address))))
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
