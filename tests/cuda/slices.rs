//! Slices for programs of cudarc on a real GPU: in copies, as arguments of kernels, on other streams, in graphs. Without a GPU
//! every test says so and passes.

use std::sync::Arc;

use crate::driver::DEVICE;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DeviceSlice, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use gpupool::{MemPool, PooledSlice, Stream, memory_stats};

const WORDS: usize = 1 << 20;

/// The kernels of `kernels.ptx` as cudarc has them.
struct Kernels {
    fill: CudaFunction,
    check: CudaFunction,
    spin: CudaFunction,
}

impl Kernels {
    fn new(context: &Arc<CudaContext>) -> Self {
        let module = context.load_module(Ptx::from_src(include_str!("driver/kernels.ptx"))).unwrap();
        let load = |name| module.load_function(name).unwrap();
        Self { fill: load("fill"), check: load("check"), spin: load("spin") }
    }

    fn fill(&self, stream: &CudaStream, slice: &mut PooledSlice<u32>, seed: u32) {
        let words = slice.len() as u64;
        let mut launch = stream.launch_builder(&self.fill);
        launch.arg(slice).arg(&words).arg(&seed);
        // SAFETY: these are the kernel's arguments, and the slice has so many words.
        unsafe { launch.launch(LaunchConfig::for_num_elems(words as u32)) }.unwrap();
    }

    fn check(&self, stream: &CudaStream, slice: &PooledSlice<u32>, seed: u32, wrong: &mut CudaSlice<u32>) {
        let words = slice.len() as u64;
        let mut launch = stream.launch_builder(&self.check);
        launch.arg(slice).arg(&words).arg(&seed).arg(wrong);
        // SAFETY: these are the kernel's arguments, and the slice has so many words.
        unsafe { launch.launch(LaunchConfig::for_num_elems(words as u32)) }.unwrap();
    }

    fn spin(&self, stream: &CudaStream, nanoseconds: u64) {
        let mut launch = stream.launch_builder(&self.spin);
        launch.arg(&nanoseconds);
        // SAFETY: this is the kernel's argument.
        unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.unwrap();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_slice_is_copied_and_lent_in_parts_as_cudarcs_own() {
    let _turn = crate::driver::turn();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let numbers: Vec<u32> = (0..WORDS as u32).collect();
    let mut slice = PooledSlice::from_host(&stream, &numbers).unwrap();
    assert_eq!(slice.buffer().nbytes(), 4 * WORDS as u64);
    stream.memcpy_htod(&[7, 8, 9], &mut slice.slice_mut(1..4)).unwrap();
    assert_eq!(stream.clone_dtoh(&slice.slice(..6)).unwrap(), [0, 7, 8, 9, 4, 5]);
    let mut copy = PooledSlice::<u32>::zeros(&stream, WORDS).unwrap();
    assert!(stream.clone_dtoh(&copy).unwrap().iter().all(|number| *number == 0));
    stream.memcpy_dtod(&slice, &mut copy).unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap()[4..], numbers[4..]);
    let nothing = PooledSlice::<u32>::zeros(&stream, 0).unwrap();
    assert!(nothing.is_empty() && PooledSlice::<u32>::from_host(&stream, &[]).unwrap().is_empty());
    // SAFETY: nothing is read of it.
    let too_many = unsafe { PooledSlice::<u32>::empty(&stream, usize::MAX / 2) };
    assert!(too_many.is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn a_slice_dropped_after_work_on_another_stream_is_used_again_behind_it() {
    let _turn = crate::driver::turn();
    let context = CudaContext::new(0).unwrap();
    let kernels = Kernels::new(&context);
    let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut wrong = other.alloc_zeros::<u32>(1).unwrap();
    for seed in 0..50 {
        let mut slice = PooledSlice::<u32>::zeros(&stream, WORDS).unwrap();
        kernels.fill(&stream, &mut slice, seed);
        kernels.spin(&other, 2_000_000);
        kernels.check(&other, &slice, seed, &mut wrong);
        let address = slice.buffer().ptr();
        drop(slice);
        let mut next = PooledSlice::<u32>::zeros(&stream, WORDS).unwrap();
        assert_eq!(next.buffer().ptr(), address, "what is freed is used again at once");
        kernels.fill(&stream, &mut next, seed + 1);
    }
    assert_eq!(other.clone_dtoh(&wrong).unwrap(), [0]);
}

#[test]
#[ignore = "needs a GPU"]
fn slices_of_a_capture_are_the_graphs_until_it_is_reset() {
    let _turn = crate::driver::turn();
    let context = CudaContext::new(0).unwrap();
    // As cudarc asks of programs that capture.
    // SAFETY: each slice is used on one stream.
    unsafe { context.disable_event_tracking() };
    let kernels = Kernels::new(&context);
    let stream = context.new_stream().unwrap();
    let mut wrong = stream.alloc_zeros::<u32>(1).unwrap();
    let pool = MemPool::builder().device(DEVICE).build().unwrap();
    // SAFETY: the stream lives to the end of the test.
    let view = unsafe { Stream::from_raw_on(stream.cu_stream().cast(), DEVICE) }.unwrap();

    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let scope = pool.capture(&view).unwrap();
    let mut addresses = Vec::new();
    for seed in 0..4 {
        // SAFETY: it is written before it is read.
        let mut slice = unsafe { PooledSlice::<u32>::empty(&stream, WORDS) }.unwrap();
        kernels.fill(&stream, &mut slice, seed);
        kernels.check(&stream, &slice, seed, &mut wrong);
        addresses.push(slice.buffer().ptr());
    }
    let memory = scope.end().unwrap();
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).unwrap().unwrap();
    assert!(
        addresses.iter().all(|address| *address == addresses[0]),
        "a slice's memory serves the next one of the graph"
    );

    let taken: Vec<_> = (0..8).map(|_| PooledSlice::<u32>::zeros(&stream, WORDS).unwrap()).collect();
    assert!(taken.iter().all(|slice| slice.buffer().ptr() != addresses[0]));
    for _ in 0..100 {
        graph.launch().unwrap();
    }
    assert_eq!(stream.clone_dtoh(&wrong).unwrap(), [0]);
    assert!(taken.iter().all(|slice| stream.clone_dtoh(slice).unwrap().iter().all(|number| *number == 0)));
    drop((graph, taken));
    memory.reset();
    drop(pool);
    stream.synchronize().unwrap();
    assert!(memory_stats(DEVICE).unwrap().total.live_bytes == 0);
}
