//! CUDA's and HIP's drivers, as doubles that a compiler makes of `tests/abi`: the real bindings, without a GPU.

mod double;
mod first_use;
mod slices;
mod unknown_statuses;
