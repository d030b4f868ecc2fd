//! `libgpupool_watch.so`, for `LD_PRELOAD`: passes on every call of CUDA's driver that gives or takes back device memory,
//! unchanged, whichever way a program gets at it, and counts which library holds how much. Where the driver has no memory
//! left, and gpupool is in the process, that gives back what it has free, and the call is made again.
//!
//! It is in programs that know nothing of it: it replaces none of the driver's memory, changes no context, capture mode or
//! error of theirs, and holds no lock while the driver or gpupool is called. The child of a process that had counted some only passes
//! calls on.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod calls;
mod driver;
mod elf;
mod fork;
mod holders;
mod lookup;
mod members;
mod objects;
mod passing;
mod report;
