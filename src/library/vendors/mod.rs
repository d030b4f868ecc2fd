//! The libraries that gpupool knows, one small file each, and the simulated one.

mod cublas;
mod cublaslt;
mod cudnn;
mod cudss;
mod cusolver;
mod cusparse;
mod hipblas;
mod hipblaslt;
mod hipsolver;
mod hipsparse;
mod miopen;
pub mod simulated;

pub use cublas::CUBLAS;
pub use cublaslt::CUBLASLT;
pub use cudnn::CUDNN;
pub use cudss::CUDSS;
pub use cusolver::CUSOLVER;
pub use cusparse::CUSPARSE;
pub use hipblas::HIPBLAS;
pub use hipblaslt::HIPBLASLT;
pub use hipsolver::HIPSOLVER;
pub use hipsparse::HIPSPARSE;
pub use miopen::MIOPEN;
