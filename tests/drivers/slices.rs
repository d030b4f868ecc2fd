//! Slices for programs of cudarc, on the threads that use and drop them.

use std::mem::forget;
use std::sync::Arc;
use std::thread;

use cudarc::driver::CudaContext;
use gpupool::{PooledSlice, device, memory_stats};

use crate::double::{CUDA, on_double};

fn waiting_blocks() -> u64 {
    memory_stats(device(0).unwrap()).unwrap().total.waiting_blocks
}

#[test]
fn one_of_a_per_thread_default_stream_that_another_thread_drops_waits_for_that_threads_stream() {
    on_double!(CUDA);
    let context = CudaContext::new(0).unwrap();
    // The double has no call that ends it.
    forget(Arc::clone(&context));
    let stream = context.per_thread_stream();
    // SAFETY: nothing is read of it.
    let empty = || unsafe { PooledSlice::<u32>::empty(&stream, 1000) }.unwrap();
    drop(empty());
    assert_eq!(waiting_blocks(), 0, "the memory waits for its own stream");
    let slice = empty();
    // There cudarc has the stream of this name wait for all streams that have used the slice.
    thread::scope(|scope| scope.spawn(|| drop(slice)).join().unwrap());
    assert_eq!(waiting_blocks(), 1, "the memory is free before the streams that have used it are done");
}
