//! The pools of the libraries that gpupool knows, by type.

use super::lease::Lease;
use super::pool::{BUILT_IN, HandlePool, PoolState};
use super::window::Handle;
use crate::error::Result;
use crate::library::{self, Library};
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
    EVERY.get(number).map(|pool| HandlePool::built_in(pool))
}

macro_rules! built_in {
    ($($id:literal $name:ident $pool:ident $library:expr, $doc:literal;)*) => {
        $(
            #[doc = $doc]
            #[derive(Debug, Clone, Copy)]
            pub struct $name;

            static $pool: PoolState = PoolState::new($id, $library as &dyn Library);

            impl Pooled for $name {
                #[inline]
                fn pool() -> HandlePool {
                    HandlePool::built_in(&$pool)
                }
            }
        )*

        /// By their ids.
        static EVERY: [&PoolState; BUILT_IN] = [$(&$pool),*];

        const _: () = assert!([$($id),*].len() == BUILT_IN, "the ids of other pools begin where these end");
        const _: () = {
            let (ids, mut place) = ([$($id),*], 0);
            while place < BUILT_IN {
                assert!(ids[place] == place, "the ids are in order: C finds a pool by its place");
                place += 1;
            }
        };
    };
}

built_in! {
    0 Cudnn CUDNN &library::CUDNN, "cuDNN's pool.";
    1 Cusparse CUSPARSE &library::CUSPARSE, "cuSPARSE's pool.";
    2 Cudss CUDSS &library::CUDSS, "cuDSS's pool.";
    3 Cublas CUBLAS &library::CUBLAS, "cuBLAS's pool.";
    4 CublasLt CUBLASLT &library::CUBLASLT, "cuBLASLt's pool. Its handles have no stream: each call takes one.";
    5 Cusolver CUSOLVER &library::CUSOLVER, "cuSOLVERDn's pool.";
    6 Miopen MIOPEN &library::MIOPEN, "MIOpen's pool, for AMD GPUs.";
    7 Simulated SIMULATED &library::simulated::SimulatedLibrary, "The pool of the simulated library.";
    8 Hipblas HIPBLAS &library::HIPBLAS, "hipBLAS's pool, for AMD GPUs. A thread has a handle for each stream.";
    9 HipblasLt HIPBLASLT &library::HIPBLASLT, "hipBLASLt's pool, for AMD GPUs. Its handles have no stream: each call takes one. But they cannot be shared by streams, so a thread has a handle for each.";
    10 Hipsolver HIPSOLVER &library::HIPSOLVER, "hipSOLVER's pool, for AMD GPUs. A thread has a handle for each stream.";
    11 Hipsparse HIPSPARSE &library::HIPSPARSE, "hipSPARSE's pool, for AMD GPUs. A thread has a handle for each stream.";
    12 Custatevec CUSTATEVEC &library::CUSTATEVEC, "cuStateVec's pool. A thread has a handle for each stream.";
    13 Cutensornet CUTENSORNET &library::CUTENSORNET, "cuTensorNet's pool. Its handles have no stream: each call takes one. A thread has a handle for each stream.";
    14 Cutensor CUTENSOR &library::CUTENSOR, "cuTENSOR's pool. Its handles have no stream: each call takes one.";
    15 CusparseLt CUSPARSELT &library::CUSPARSELT, "cuSPARSELt's pool. Its handles, which are `cusparseLtHandle_t *`, have no stream: each call takes one.";
}
