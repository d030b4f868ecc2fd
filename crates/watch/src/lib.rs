//! `libgpupool_watch.so`, for `LD_PRELOAD`: passes on, unchanged, every call of CUDA's driver that gives or takes back
//! device memory, however a program looks the call up, and counts how much each library holds. If the driver has no
//! memory left and gpupool is in the process, gpupool gives back what it has free, and the call is made again.
//!
//! The library runs in programs that know nothing of it: it replaces none of the driver's memory, changes no context,
//! capture mode or error of the program, and calls the driver and gpupool with no lock held. If a process has counted
//! calls, its forked child only passes calls on.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod calls;
mod driver;
mod elf;
mod fork;
mod holders;
mod inside;
mod linker;
mod lookup;
mod members;
mod memory;
mod objects;
mod passing;
mod report;
mod signals;
