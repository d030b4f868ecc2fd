//! The driver's functions that give or take back device memory, and what stands in for each: one function that the linker
//! finds in place of the driver's, and one for each address that it is found at otherwise, as another library may stand in
//! for it too, and the driver has several by one name. None knows more of its arguments than what they say of memory.
//! [CUDA's driver API](https://docs.nvidia.com/cuda/cuda-driver-api/) describes them.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{lookup, passing};

/// As many as any of these functions has. One that has fewer does not look at the others.
pub(crate) type Arguments = [usize; 8];
pub(crate) type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> c_int;

/// Which device a call asks for memory of.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// That of the thread's context.
    Current,
    /// The one in this argument.
    Argument(usize),
}

/// What a call does with memory, by what its arguments are.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// `(CUdeviceptr *, size_t, ...)`
    Allocate,
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
    /// It takes memory that nothing tells the amount of: code, graphs, arrays, a primary context.
    Take(Place),
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

/// A function of the driver.
pub(crate) struct Call {
    pub(crate) symbol: &'static CStr,
    /// What `cuGetProcAddress` calls it, from this version of CUDA on.
    pub(crate) name: &'static CStr,
    pub(crate) since: c_int,
    pub(crate) kind: Kind,
    /// What stands in for it, by the target below.
    stand_ins: [Function; TARGETS],
    targets: [AtomicUsize; TARGETS],
    exported: Function,
    /// What the exported function passes on to, once that is known.
    next: AtomicUsize,
}

/// How many functions of one name are told apart: the driver's, with a default stream of each thread, of an older
/// version, and another library's.
const TARGETS: usize = 4;

/// Stands in for the function at one address.
unsafe extern "C" fn stand_in<const CALL: usize, const TARGET: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> c_int {
    let call = &CALLS[CALL];
    // SAFETY: the target is the address of this function of the driver, and the program passes what that takes.
    unsafe { passing::pass(call, call.targets[TARGET].load(Ordering::Relaxed), [a, b, c, d, e, f, g, h]) }
}

macro_rules! calls {
    ($($function:ident, $name:literal, $since:literal, $kind:expr;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { $($function),* }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $function(
                a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize,
            ) -> c_int {
                let call = &CALLS[Index::$function as usize];
                // SAFETY: what comes next by this name is that function, and the program passes what it takes.
                unsafe { passing::pass(call, call.next(), [a, b, c, d, e, f, g, h]) }
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
            stand_ins: [
                stand_in::<{ Index::$function as usize }, 0>,
                stand_in::<{ Index::$function as usize }, 1>,
                stand_in::<{ Index::$function as usize }, 2>,
                stand_in::<{ Index::$function as usize }, 3>,
            ],
            targets: [const { AtomicUsize::new(0) }; TARGETS],
            exported: $function,
            next: AtomicUsize::new(0),
        }),*];
    };
}

calls! {
    cuMemAlloc_v2, c"cuMemAlloc", 3020, Kind::Allocate;
    cuMemAllocPitch_v2, c"cuMemAllocPitch", 3020, Kind::AllocatePitch;
    cuMemAllocManaged, c"cuMemAllocManaged", 6000, Kind::Allocate;
    cuMemAllocAsync, c"cuMemAllocAsync", 11020, Kind::Allocate;
    cuMemAllocAsync_ptsz, c"cuMemAllocAsync_ptsz", 11020, Kind::Allocate;
    cuMemAllocFromPoolAsync, c"cuMemAllocFromPoolAsync", 11020, Kind::Allocate;
    cuMemAllocFromPoolAsync_ptsz, c"cuMemAllocFromPoolAsync_ptsz", 11020, Kind::Allocate;
    cuMemFree_v2, c"cuMemFree", 3020, Kind::Free;
    cuMemFreeAsync, c"cuMemFreeAsync", 11020, Kind::Free;
    cuMemFreeAsync_ptsz, c"cuMemFreeAsync_ptsz", 11020, Kind::Free;
    cuMemCreate, c"cuMemCreate", 10020, Kind::Create;
    cuMemRetainAllocationHandle, c"cuMemRetainAllocationHandle", 11000, Kind::Retain;
    cuMemRelease, c"cuMemRelease", 10020, Kind::Release;
    cuMemMap, c"cuMemMap", 10020, Kind::Map;
    cuMemUnmap, c"cuMemUnmap", 10020, Kind::Unmap;
    cuMemPoolTrimTo, c"cuMemPoolTrimTo", 11020, Kind::Pass;
    cuArrayCreate_v2, c"cuArrayCreate", 3020, Kind::Take(Place::Current);
    cuArray3DCreate_v2, c"cuArray3DCreate", 3020, Kind::Take(Place::Current);
    cuMipmappedArrayCreate, c"cuMipmappedArrayCreate", 5000, Kind::Take(Place::Current);
    cuCtxCreate_v2, c"cuCtxCreate", 3020, Kind::MakeContext(2);
    cuCtxCreate_v3, c"cuCtxCreate", 11040, Kind::MakeContext(4);
    cuCtxCreate_v4, c"cuCtxCreate", 12050, Kind::MakeContext(3);
    cuCtxDestroy_v2, c"cuCtxDestroy", 4000, Kind::EndContext;
    cuDevicePrimaryCtxRetain, c"cuDevicePrimaryCtxRetain", 7000, Kind::Take(Place::Argument(1));
    cuDevicePrimaryCtxRelease, c"cuDevicePrimaryCtxRelease", 7000, Kind::ReleasePrimary;
    cuDevicePrimaryCtxRelease_v2, c"cuDevicePrimaryCtxRelease", 11000, Kind::ReleasePrimary;
    cuDevicePrimaryCtxReset, c"cuDevicePrimaryCtxReset", 7000, Kind::ResetPrimary;
    cuDevicePrimaryCtxReset_v2, c"cuDevicePrimaryCtxReset", 11000, Kind::ResetPrimary;
    cuModuleLoad, c"cuModuleLoad", 2000, Kind::Take(Place::Current);
    cuModuleLoadData, c"cuModuleLoadData", 2000, Kind::Take(Place::Current);
    cuModuleLoadDataEx, c"cuModuleLoadDataEx", 2010, Kind::Take(Place::Current);
    cuModuleLoadFatBinary, c"cuModuleLoadFatBinary", 2000, Kind::Take(Place::Current);
    cuLibraryLoadData, c"cuLibraryLoadData", 12000, Kind::Take(Place::Current);
    cuLibraryLoadFromFile, c"cuLibraryLoadFromFile", 12000, Kind::Take(Place::Current);
    cuGraphInstantiate, c"cuGraphInstantiate", 10000, Kind::Take(Place::Current);
    cuGraphInstantiate_v2, c"cuGraphInstantiate", 11000, Kind::Take(Place::Current);
    cuGraphInstantiateWithFlags, c"cuGraphInstantiateWithFlags", 11040, Kind::Take(Place::Current);
    cuGraphInstantiateWithParams, c"cuGraphInstantiateWithParams", 12000, Kind::Take(Place::Current);
    cuGraphInstantiateWithParams_ptsz, c"cuGraphInstantiateWithParams_ptsz", 12000, Kind::Take(Place::Current);
    cuGetProcAddress, c"cuGetProcAddress", 11030, Kind::Find;
    cuGetProcAddress_v2, c"cuGetProcAddress", 12000, Kind::Find;
}

impl Call {
    /// Returns the function that a symbol names.
    pub(crate) fn of_symbol(symbol: &CStr) -> Option<&'static Self> {
        CALLS.iter().find(|call| call.symbol == symbol)
    }

    /// Returns the function that `cuGetProcAddress` returns for a name and a version.
    pub(crate) fn of_name(name: &CStr, version: c_int) -> Option<&'static Self> {
        CALLS.iter().filter(|call| call.name == name && call.since <= version).max_by_key(|call| call.since)
    }

    /// Returns what stands in for the function at an address: that itself where it is one of these, or all are taken.
    pub(crate) fn stand_in_for(&self, address: usize) -> usize {
        if address == self.exported as usize || self.stand_ins.iter().any(|&own| own as usize == address) {
            return address;
        }
        for (target, stand_in) in self.targets.iter().zip(self.stand_ins) {
            let before = target.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
            if before.is_ok() || before == Err(address) {
                return stand_in as usize;
            }
        }
        address
    }

    /// Returns the address of the exported function.
    pub(crate) fn exported(&self) -> usize {
        self.exported as usize
    }

    /// Returns the address of what comes after the exported function; 0 if there is none.
    fn next(&self) -> usize {
        let known = self.next.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let found = lookup::behind_us(self.symbol).unwrap_or(0);
        self.next.store(found, Ordering::Relaxed);
        found
    }
}
