//! The driver's functions that give or take back device memory, or need some for what they do, and what stands in for each:
//! one function that the linker finds in place of the driver's, and one for each address that it is found at otherwise, as
//! another library may stand in for it too, and the driver has several by one name. None knows more of its arguments than
//! what they say of memory. [CUDA's driver API](https://docs.nvidia.com/cuda/cuda-driver-api/) describes them.

use std::arch::naked_asm;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::elf::{self, Known};
use crate::{linker, passing};

/// As many as `cuLaunchKernel` has, which has most. One that has fewer does not look at the others.
pub(crate) type Arguments = [usize; 11];
type Entry = unsafe extern "C" fn();

/// Which device a call asks for memory of.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// That of the thread's context.
    Current,
    /// The one in this argument.
    Argument(usize),
}

/// What a null stream is.
#[derive(Clone, Copy)]
pub(crate) enum Null {
    /// The default stream of all threads, which cannot be captured.
    OfAll,
    /// That of the thread, which can.
    OfThread,
}

impl Null {
    /// Returns a stream by a handle that says which it is, or null for that of all threads.
    pub(crate) fn named(self, stream: usize) -> usize {
        /// `CU_STREAM_PER_THREAD`.
        const OF_THREAD: usize = 2;
        match self {
            Self::OfThread if stream == 0 => OF_THREAD,
            _ => stream,
        }
    }
}

/// What a call does with memory, by what its arguments are.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// `(CUdeviceptr *, size_t, ...)`
    Allocate,
    /// The same, of a pool's memory, which is in no context; the stream is in this argument, and has a device; null is this
    /// one. While it is captured it is a node of a graph, which has the memory.
    AllocateInPool(usize, Null),
    /// `(CUdeviceptr *, size_t *pitch, size_t width, size_t height, ...)`
    AllocatePitch,
    /// `(CUdeviceptr, ...)`
    Free,
    /// `(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, ...)`
    Create,
    /// `(CUmemGenericAllocationHandle *, void *)`
    Retain,
    /// `(CUmemGenericAllocationHandle)`
    Release,
    /// `(CUdeviceptr, size_t, size_t offset, CUmemGenericAllocationHandle, ...)`
    Map,
    /// `(CUdeviceptr, size_t)`
    Unmap,
    /// It needs memory that nothing tells the amount of: for a context, code, which may be loaded at its first use, what a
    /// kernel has beside its arguments, a graph, a stream.
    Need(Place),
    /// So does this, of the thread's context, which has so many arguments, more than all others.
    Launch(usize),
    /// The same. Of values of options the number and the place are in these arguments: the call writes to some that it has
    /// read, as the size of a log becomes what was written of it.
    Load { arguments: usize, count: usize, values: usize },
    /// `(CUcontext *, ...)`: so does another context, of the device in this argument.
    MakeContext(usize),
    /// `(CUcontext)`: all that was allocated in it is free.
    EndContext,
    /// `(CUdevice)`: the same, of the primary context, if nobody else has retained it.
    ReleasePrimary,
    /// `(CUdevice)`: the same, whoever has.
    ResetPrimary,
    /// `(const char *symbol, void **function, int version, cuuint64_t flags, ...)`
    Find,
    /// It gives back what no call has counted.
    Pass,
}

impl Kind {
    /// Returns how many arguments there may be. What lies beyond those on the stack may be the end of it.
    const fn arguments(self) -> usize {
        match self {
            Self::Launch(arguments) | Self::Load { arguments, .. } => arguments,
            _ => 6,
        }
    }
}

/// A function of the driver.
pub(crate) struct Call {
    pub(crate) symbol: &'static CStr,
    /// What `cuGetProcAddress` calls it, from this version of CUDA on.
    pub(crate) name: &'static CStr,
    pub(crate) since: c_int,
    pub(crate) kind: Kind,
    /// What stands in for it, by the target below.
    entries: [Entry; TARGETS],
    /// What each passes on to, once that is known; the last is the exported function's.
    targets: [AtomicUsize; TARGETS + 1],
    /// The address of the exported function, once it was looked up.
    exported: Known,
}

/// How many functions of one name are told apart: the driver's, with a default stream of each thread, of an older
/// version, and another library's.
const TARGETS: usize = 4;

/// Arguments in registers, by the machine's convention for calls of C. The others are on the stack.
#[cfg(target_arch = "x86_64")]
const IN_REGISTERS: usize = 6;
#[cfg(target_arch = "aarch64")]
const IN_REGISTERS: usize = 8;

/// Stands in for one function: puts the arguments where [`enter`] finds them, and tells it who called.
macro_rules! entry {
    ($index:expr) => {{
        #[cfg(target_arch = "x86_64")]
        naked_asm!(
            ".cfi_startproc",
            "sub rsp, 56", ".cfi_adjust_cfa_offset 56",
            "mov [rsp], rdi", "mov [rsp + 8], rsi", "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx", "mov [rsp + 32], r8", "mov [rsp + 40], r9",
            "mov edi, {index}", "mov rsi, rsp", "lea rdx, [rsp + 64]", "mov rcx, [rsp + 56]",
            "call {enter}",
            "add rsp, 56", ".cfi_adjust_cfa_offset -56",
            "ret",
            ".cfi_endproc",
            index = const $index,
            enter = sym enter
        );
        #[cfg(target_arch = "aarch64")]
        naked_asm!(
            ".cfi_startproc",
            "stp x29, x30, [sp, #-80]!", ".cfi_def_cfa_offset 80", ".cfi_offset x29, -80", ".cfi_offset x30, -72",
            "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
            "mov w0, #{index}", "add x1, sp, #16", "add x2, sp, #80", "mov x3, x30",
            "bl {enter}",
            "ldp x29, x30, [sp], #80", ".cfi_def_cfa_offset 0",
            "ret",
            ".cfi_endproc",
            index = const $index,
            enter = sym enter
        );
    }};
}

#[unsafe(naked)]
unsafe extern "C" fn stand_in<const CALL: usize, const TARGET: usize>() {
    entry!(CALL * (TARGETS + 1) + TARGET)
}

/// Called by each entry, with its number, where the arguments are, and the address that it returns to.
unsafe extern "C" fn enter(
    entry: u32,
    in_registers: *const [usize; IN_REGISTERS],
    on_stack: *const usize,
    caller: usize,
) -> c_int {
    let (call, target) = (&CALLS[entry as usize / (TARGETS + 1)], entry as usize % (TARGETS + 1));
    let mut arguments = [0; 11];
    let more = call.kind.arguments().saturating_sub(IN_REGISTERS);
    // SAFETY: the entry has put the first there; the caller has as many others on its stack.
    unsafe {
        arguments[..IN_REGISTERS].copy_from_slice(&*in_registers);
        on_stack.copy_to_nonoverlapping(arguments[IN_REGISTERS..].as_mut_ptr(), more);
    }
    // SAFETY: the target is the address of this function of the driver, and the program passes what that takes.
    unsafe { passing::pass(call, call.target(target), &arguments, caller) }
}

macro_rules! calls {
    ($($function:ident, $name:literal, $since:literal, $kind:expr;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { $($function),* }

        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $function() {
                entry!(Index::$function as usize * (TARGETS + 1) + TARGETS)
            }
        )*

        const COUNT: usize = [$(Index::$function),*].len();

        pub(crate) static CALLS: [Call; COUNT] = [$(Call {
            symbol: {
                const SYMBOL: &str = concat!(stringify!($function), "\0");
                match CStr::from_bytes_with_nul(SYMBOL.as_bytes()) { Ok(symbol) => symbol, Err(_) => c"" }
            },
            name: $name,
            since: $since,
            kind: $kind,
            entries: [
                stand_in::<{ Index::$function as usize }, 0>,
                stand_in::<{ Index::$function as usize }, 1>,
                stand_in::<{ Index::$function as usize }, 2>,
                stand_in::<{ Index::$function as usize }, 3>,
            ],
            targets: [const { AtomicUsize::new(0) }; TARGETS + 1],
            exported: Known::new(),
        }),*];
    };
}

calls! {
    cuMemAlloc_v2, c"cuMemAlloc", 3020, Kind::Allocate;
    cuMemAllocPitch_v2, c"cuMemAllocPitch", 3020, Kind::AllocatePitch;
    cuMemAllocManaged, c"cuMemAllocManaged", 6000, Kind::Allocate;
    cuMemAllocAsync, c"cuMemAllocAsync", 11020, Kind::AllocateInPool(2, Null::OfAll);
    cuMemAllocAsync_ptsz, c"cuMemAllocAsync_ptsz", 11020, Kind::AllocateInPool(2, Null::OfThread);
    cuMemAllocFromPoolAsync, c"cuMemAllocFromPoolAsync", 11020, Kind::AllocateInPool(3, Null::OfAll);
    cuMemAllocFromPoolAsync_ptsz, c"cuMemAllocFromPoolAsync_ptsz", 11020, Kind::AllocateInPool(3, Null::OfThread);
    cuMemFree_v2, c"cuMemFree", 3020, Kind::Free;
    cuMemFreeAsync, c"cuMemFreeAsync", 11020, Kind::Free;
    cuMemFreeAsync_ptsz, c"cuMemFreeAsync_ptsz", 11020, Kind::Free;
    cuMemCreate, c"cuMemCreate", 10020, Kind::Create;
    cuMemRetainAllocationHandle, c"cuMemRetainAllocationHandle", 11000, Kind::Retain;
    cuMemRelease, c"cuMemRelease", 10020, Kind::Release;
    cuMemMap, c"cuMemMap", 10020, Kind::Map;
    cuMemUnmap, c"cuMemUnmap", 10020, Kind::Unmap;
    cuMemPoolTrimTo, c"cuMemPoolTrimTo", 11020, Kind::Pass;
    cuArrayCreate_v2, c"cuArrayCreate", 3020, Kind::Need(Place::Current);
    cuArray3DCreate_v2, c"cuArray3DCreate", 3020, Kind::Need(Place::Current);
    cuMipmappedArrayCreate, c"cuMipmappedArrayCreate", 5000, Kind::Need(Place::Current);
    cuCtxCreate_v2, c"cuCtxCreate", 3020, Kind::MakeContext(2);
    cuCtxCreate_v3, c"cuCtxCreate", 11040, Kind::MakeContext(4);
    cuCtxCreate_v4, c"cuCtxCreate", 12050, Kind::MakeContext(3);
    cuCtxDestroy_v2, c"cuCtxDestroy", 4000, Kind::EndContext;
    cuCtxSetLimit, c"cuCtxSetLimit", 3010, Kind::Need(Place::Current);
    cuDevicePrimaryCtxRetain, c"cuDevicePrimaryCtxRetain", 7000, Kind::Need(Place::Argument(1));
    cuDevicePrimaryCtxRelease, c"cuDevicePrimaryCtxRelease", 7000, Kind::ReleasePrimary;
    cuDevicePrimaryCtxRelease_v2, c"cuDevicePrimaryCtxRelease", 11000, Kind::ReleasePrimary;
    cuDevicePrimaryCtxReset, c"cuDevicePrimaryCtxReset", 7000, Kind::ResetPrimary;
    cuDevicePrimaryCtxReset_v2, c"cuDevicePrimaryCtxReset", 11000, Kind::ResetPrimary;
    cuGreenCtxCreate, c"cuGreenCtxCreate", 12040, Kind::Need(Place::Argument(2));
    cuStreamCreate, c"cuStreamCreate", 2000, Kind::Need(Place::Current);
    cuStreamCreateWithPriority, c"cuStreamCreateWithPriority", 5050, Kind::Need(Place::Current);
    cuGreenCtxStreamCreate, c"cuGreenCtxStreamCreate", 12050, Kind::Need(Place::Current);
    cuEventCreate, c"cuEventCreate", 2000, Kind::Need(Place::Current);
    cuMemHostAlloc, c"cuMemHostAlloc", 2020, Kind::Need(Place::Current);
    cuMemAllocHost_v2, c"cuMemAllocHost", 3020, Kind::Need(Place::Current);
    cuMemHostRegister_v2, c"cuMemHostRegister", 6050, Kind::Need(Place::Current);
    cuMemSetAccess, c"cuMemSetAccess", 10020, Kind::Need(Place::Current);
    cuModuleLoad, c"cuModuleLoad", 2000, Kind::Need(Place::Current);
    cuModuleLoadData, c"cuModuleLoadData", 2000, Kind::Need(Place::Current);
    cuModuleLoadDataEx, c"cuModuleLoadDataEx", 2010, Kind::Load { arguments: 5, count: 2, values: 4 };
    cuModuleLoadFatBinary, c"cuModuleLoadFatBinary", 2000, Kind::Need(Place::Current);
    cuModuleGetFunction, c"cuModuleGetFunction", 2000, Kind::Need(Place::Current);
    cuModuleGetGlobal_v2, c"cuModuleGetGlobal", 3020, Kind::Need(Place::Current);
    cuLibraryLoadData, c"cuLibraryLoadData", 12000, Kind::Load { arguments: 8, count: 4, values: 3 };
    cuLibraryLoadFromFile, c"cuLibraryLoadFromFile", 12000, Kind::Load { arguments: 8, count: 4, values: 3 };
    cuLibraryGetModule, c"cuLibraryGetModule", 12000, Kind::Need(Place::Current);
    cuLibraryGetKernel, c"cuLibraryGetKernel", 12000, Kind::Need(Place::Current);
    cuLibraryGetGlobal, c"cuLibraryGetGlobal", 12000, Kind::Need(Place::Current);
    cuKernelGetFunction, c"cuKernelGetFunction", 12000, Kind::Need(Place::Current);
    cuKernelGetAttribute, c"cuKernelGetAttribute", 12000, Kind::Need(Place::Argument(3));
    cuKernelSetAttribute, c"cuKernelSetAttribute", 12000, Kind::Need(Place::Argument(3));
    cuFuncLoad, c"cuFuncLoad", 12040, Kind::Need(Place::Current);
    cuFuncGetAttribute, c"cuFuncGetAttribute", 2020, Kind::Need(Place::Current);
    cuFuncSetAttribute, c"cuFuncSetAttribute", 9000, Kind::Need(Place::Current);
    cuOccupancyMaxActiveBlocksPerMultiprocessor, c"cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050,
        Kind::Need(Place::Current);
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, c"cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000,
        Kind::Need(Place::Current);
    cuLaunchKernel, c"cuLaunchKernel", 4000, Kind::Launch(11);
    cuLaunchKernel_ptsz, c"cuLaunchKernel_ptsz", 7000, Kind::Launch(11);
    cuLaunchKernelEx, c"cuLaunchKernelEx", 11060, Kind::Need(Place::Current);
    cuLaunchKernelEx_ptsz, c"cuLaunchKernelEx_ptsz", 11060, Kind::Need(Place::Current);
    cuLaunchCooperativeKernel, c"cuLaunchCooperativeKernel", 9000, Kind::Launch(10);
    cuLaunchCooperativeKernel_ptsz, c"cuLaunchCooperativeKernel_ptsz", 9000, Kind::Launch(10);
    cuGraphInstantiate, c"cuGraphInstantiate", 10000, Kind::Need(Place::Current);
    cuGraphInstantiate_v2, c"cuGraphInstantiate", 11000, Kind::Need(Place::Current);
    cuGraphInstantiateWithFlags, c"cuGraphInstantiateWithFlags", 11040, Kind::Need(Place::Current);
    cuGraphInstantiateWithParams, c"cuGraphInstantiateWithParams", 12000, Kind::Need(Place::Current);
    cuGraphInstantiateWithParams_ptsz, c"cuGraphInstantiateWithParams_ptsz", 12000, Kind::Need(Place::Current);
    cuGraphUpload, c"cuGraphUpload", 11010, Kind::Need(Place::Current);
    cuGraphUpload_ptsz, c"cuGraphUpload_ptsz", 11010, Kind::Need(Place::Current);
    cuGraphLaunch, c"cuGraphLaunch", 10000, Kind::Need(Place::Current);
    cuGraphLaunch_ptsz, c"cuGraphLaunch_ptsz", 10000, Kind::Need(Place::Current);
    cuGetProcAddress, c"cuGetProcAddress", 11030, Kind::Find;
    cuGetProcAddress_v2, c"cuGetProcAddress", 12000, Kind::Find;
}

impl Call {
    /// Returns the function that a symbol names.
    pub(crate) fn of_symbol(symbol: &CStr) -> Option<&'static Self> {
        CALLS.iter().find(|call| call.symbol == symbol)
    }

    /// Returns the function that `cuGetProcAddress` returns for a name, a version and flags.
    pub(crate) fn of_name(name: &CStr, version: c_int, flags: usize) -> Option<&'static Self> {
        /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
        const PER_THREAD: usize = 2;
        let named = CALLS.iter().filter(|call| call.name == name && call.since <= version);
        let found = named.max_by_key(|call| call.since)?;
        let is_of_thread =
            |call: &&Self| call.symbol.to_bytes().strip_suffix(b"_ptsz") == Some(found.symbol.to_bytes());
        CALLS.iter().filter(|_| flags & PER_THREAD != 0).find(is_of_thread).or(Some(found))
    }

    /// Returns what stands in for the function at an address: that itself where it is one of these, or all are taken.
    pub(crate) fn stand_in_for(&self, address: usize) -> usize {
        if address == self.exported() || self.entries.iter().any(|&own| own as usize == address) {
            return address;
        }
        for (target, entry) in self.targets.iter().zip(self.entries) {
            let before = target.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
            if before.is_ok() || before == Err(address) {
                return entry as usize;
            }
        }
        address
    }

    /// Returns the address of the exported function.
    pub(crate) fn exported(&self) -> usize {
        self.exported.get_or(|| elf::own(self.symbol)).unwrap_or(0)
    }

    /// Returns the address of what one of the entries passes on to: for the exported one, of what comes after it; 0 if
    /// there is nothing.
    fn target(&self, index: usize) -> usize {
        let known = self.targets[index].load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let found = linker::behind_us(self.symbol).unwrap_or(0);
        self.targets[index].store(found, Ordering::Relaxed);
        found
    }
}
