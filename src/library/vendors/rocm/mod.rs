//! ROCm's libraries.

mod hipblas;
mod hipblaslt;
mod hipsolver;
mod hipsparse;
mod miopen;

pub use hipblas::HIPBLAS;
pub use hipblaslt::HIPBLASLT;
pub use hipsolver::HIPSOLVER;
pub use hipsparse::HIPSPARSE;
pub use miopen::MIOPEN;
