//! The report of a program that asked for it by `GPUPOOL_WATCH_REPORT`, on standard error as it ends: before the driver's own
//! end, so that NVML still counts the process.

use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use std::{mem, ptr, thread};

use crate::signals::Blocked;
use crate::{driver, fork, holders, members, memory, objects};

const VARIABLE: &str = "GPUPOOL_WATCH_REPORT";

/// The process that is reported of.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Has the report written at the end of the process, if one is wanted. Called once the driver has begun, whose own end was
/// registered before, and so comes after.
pub(crate) fn prepare() {
    static IS_PREPARED: AtomicBool = AtomicBool::new(false);
    // Nobody waits for another thread, which may wait for memory of the host.
    if !IS_PREPARED.load(Ordering::Relaxed) && !IS_PREPARED.swap(true, Ordering::Relaxed) {
        // As gpupool's switches: 1 is on, what is empty is not set.
        if std::env::var_os(VARIABLE).is_some_and(|value| value == "1") {
            PROCESS.store(std::process::id(), Ordering::Relaxed);
            // SAFETY: the function takes and returns nothing, and this library is never unloaded.
            unsafe { libc::atexit(write) };
        }
    }
}

extern "C" fn write() {
    // A child ends as its parent would, whose report it is, also one of which no handler of forks was told (`_Fork`).
    // In a namespace of its own it may have its parent's number.
    let is_own = PROCESS.load(Ordering::Relaxed) == std::process::id() && fork::has_counted();
    if !is_own || !can_be_read() {
        return;
    }
    let mut text = String::new();
    let program = std::env::args_os().next().unwrap_or_default();
    let _ = writeln!(text, "gpupool: GPU memory of {} (process {})", printable(&program), std::process::id());
    for (device, given) in holders::devices() {
        let _ = writeln!(text, "device {device:<24} {:>12} {:>12}", "now", "peak");
        let reserved = members::reserved(device);
        let mut known = reserved;
        if reserved > 0 {
            let _ = writeln!(text, "  {:<29} {:>12}", "gpupool", size(reserved));
        }
        for (file, held) in holders::of(device) {
            known += held.bytes;
            let name = printable(OsStr::from_bytes(objects::names(file).0.to_bytes()));
            let _ = writeln!(text, "  {name:<29} {:>12} {:>12}", size(held.bytes), size(held.peak));
        }
        // What is left over of NVML's count.
        if let Some(bytes) = driver::process_bytes(device) {
            let _ = writeln!(text, "  {:<29} {:>12}", "contexts and code", size(bytes.saturating_sub(known)));
        }
        if given.times > 0 {
            let times = if given.times == 1 { "once".to_owned() } else { format!("{} times", given.times) };
            let _ = writeln!(text, "  gpupool gave {} back for calls that had failed, {times}", size(given.bytes));
        }
    }
    print(&text);
}

/// Writes to standard error, as far as that can be written to. No signal ends the program if nobody reads it: this thread
/// leaves it out, and no other.
fn print(text: &str) {
    const AT_ONCE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: zeros are sets, which these functions read and write, and the bytes are the text's.
    unsafe {
        let [mut pipe, mut pending]: [libc::sigset_t; 2] = mem::zeroed();
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        let _blocked = Blocked::only(libc::SIGPIPE);
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        if libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            libc::sigtimedwait(&pipe, ptr::null_mut(), &AT_ONCE);
        }
    }
}

/// Returns whether what is counted, and for whom, can be read: not by a signal's handler that ends the process in the middle
/// of a change.
fn can_be_read() -> bool {
    // Other threads need no longer than that.
    const TRIES: u32 = 100;
    (0..TRIES).any(|_| {
        let is_free = holders::is_free() && objects::is_free() && memory::is_free();
        if !is_free {
            thread::sleep(Duration::from_millis(1));
        }
        is_free
    })
}

/// Returns a name without what controls a terminal.
fn printable(name: &OsStr) -> String {
    name.to_string_lossy().replace(char::is_control, "?")
}

/// Returns a size as text, in the unit that fits.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}
