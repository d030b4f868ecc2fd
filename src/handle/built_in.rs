//! The pools of the libraries that gpupool knows, by type.

use super::lease::Lease;
use super::pool::{BUILT_IN, HandlePool, PoolState};
use super::window::Handle;
use crate::error::Result;
use crate::library;
use crate::runtime::Stream;

/// A library whose pool is found by its type: `gpupool::handle::<Cudnn>(&stream)`.
pub trait Pooled {
    /// Returns the process's pool of this library's handles.
    fn pool() -> HandlePool;
}

/// Returns the calling thread's handle of a library on the stream's device, with the stream set; see
/// [`HandlePool::handle`].
///
/// ```no_run
/// use gpupool::{Cublas, Stream};
///
/// let stream = Stream::new(gpupool::device(0)?)?;
/// let handle = gpupool::handle::<Cublas>(&stream)?;
/// // `handle.as_ptr()` is a cublasHandle_t that works on `stream`.
/// # Ok::<(), gpupool::Error>(())
/// ```
///
/// # Errors
/// As [`HandlePool::handle`].
#[inline]
pub fn handle<L: Pooled>(stream: &Stream) -> Result<Handle> {
    L::pool().handle(stream)
}

/// Returns a handle of a library for a scope, on the stream's device, with the stream set; see [`HandlePool::lease`].
///
/// ```no_run
/// use gpupool::{Cusolver, Stream};
///
/// let stream = Stream::new(gpupool::device(0)?)?;
/// let lease = gpupool::lease::<Cusolver>(&stream)?;
/// // `lease.as_ptr()` is a cusolverDnHandle_t, which only this scope uses until `lease` is dropped.
/// # Ok::<(), gpupool::Error>(())
/// ```
///
/// # Errors
/// As [`HandlePool::lease`].
#[inline]
pub fn lease<L: Pooled>(stream: &Stream) -> Result<Lease> {
    L::pool().lease(stream)
}

/// Returns the pool of the library with this number, which `gpupool.h` has too; none if there is no such library.
#[inline]
pub(crate) fn pool_of_number(number: usize) -> Option<HandlePool> {
    EVERY.get(number).map(HandlePool::built_in)
}

macro_rules! built_in {
    ($($name:ident $library:expr, $doc:literal;)*) => {
        /// Their places, which are the numbers of `gpupool_library`.
        enum BuiltIn {
            $($name,)*
        }

        static EVERY: [PoolState; BUILT_IN] = [$(PoolState::new(BuiltIn::$name as u8, $library)),*];

        $(
            #[doc = $doc]
            #[derive(Debug, Clone, Copy)]
            pub struct $name;

            impl Pooled for $name {
                #[inline]
                fn pool() -> HandlePool {
                    HandlePool::built_in(&EVERY[BuiltIn::$name as usize])
                }
            }
        )*
    };
}

built_in! {
    Cudnn &library::CUDNN, "cuDNN's pool.";
    Cusparse &library::CUSPARSE, "cuSPARSE's pool.";
    Cudss &library::CUDSS, "cuDSS's pool.";
    Cublas &library::CUBLAS, "cuBLAS's pool.";
    CublasLt &library::CUBLASLT, "cuBLASLt's pool. Its handles have no stream: each call takes one.";
    Cusolver &library::CUSOLVER, "cuSOLVERDn's pool.";
    Miopen &library::MIOPEN, "MIOpen's pool, for AMD GPUs.";
    Simulated &library::simulated::SimulatedLibrary, "The pool of the simulated library.";
    Hipblas &library::HIPBLAS, "hipBLAS's pool, for AMD GPUs. A thread has a handle for each stream.";
    HipblasLt &library::HIPBLASLT, "hipBLASLt's pool, for AMD GPUs. Its handles have no stream: each call takes one. But they cannot be shared by streams, so a thread has a handle for each.";
    Hipsolver &library::HIPSOLVER, "hipSOLVER's pool, for AMD GPUs. A thread has a handle for each stream.";
    Hipsparse &library::HIPSPARSE, "hipSPARSE's pool, for AMD GPUs. A thread has a handle for each stream.";
    Custatevec &library::CUSTATEVEC, "cuStateVec's pool. A thread has a handle for each stream.";
    Cutensornet &library::CUTENSORNET, "cuTensorNet's pool. Its handles have no stream: each call takes one. A thread has a handle for each stream.";
    Cutensor &library::CUTENSOR, "cuTENSOR's pool. Its handles have no stream: each call takes one.";
    CusparseLt &library::CUSPARSELT, "cuSPARSELt's pool. Its handles, which are `cusparseLtHandle_t *`, have no stream: each call takes one.";
}
