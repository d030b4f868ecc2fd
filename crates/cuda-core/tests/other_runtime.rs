//! gpupool on the simulated device, whose memory no GPU can use: a program of its own, since a process has one runtime.

use std::mem::ManuallyDrop;

use cuda_core::{Context, Stream};
use gpupool_cuda_core::{Error, PooledAllocation};

#[test]
fn memory_of_a_simulated_device_is_refused() {
    // SAFETY: no other thread has begun, and the runtime is chosen later.
    unsafe { std::env::set_var("GPUPOOL_RUNTIME", "host") };
    // SAFETY: they are neither used nor dropped, for which cuda-core would ask the driver.
    let stream = ManuallyDrop::new(unsafe { Stream::borrow_raw(1 as _, &Context::borrow_raw(16 as _, 0, 0)) });
    let error = PooledAllocation::new(&stream, 1).unwrap_err();
    assert!(matches!(error, Error::OtherRuntime("host")));
    assert!(error.to_string().contains("unset GPUPOOL_RUNTIME"), "{error}");
}
