//! The libraries that gpupool knows, one small file each, and the simulated one.

mod cublas;
mod cublaslt;
mod cudnn;
mod cudss;
mod cusolver;
mod cusparse;
mod cusparselt;
mod custatevec;
mod cutensor;
mod cutensornet;
mod rocm;
pub mod simulated;

pub use cublas::CUBLAS;
pub use cublaslt::CUBLASLT;
pub use cudnn::CUDNN;
pub use cudss::CUDSS;
pub use cusolver::CUSOLVER;
pub use cusparse::CUSPARSE;
pub use cusparselt::CUSPARSELT;
pub use custatevec::CUSTATEVEC;
pub use cutensor::CUTENSOR;
pub use cutensornet::CUTENSORNET;
pub use rocm::{HIPBLAS, HIPBLASLT, HIPSOLVER, HIPSPARSE, MIOPEN};
