//! What the tests of memory on a GPU share: kernels that fill, check and spin, and a turn for each test.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]

use std::env;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys;
use gpupool::runtime::{self, BoundDevice, Kind};
use gpupool::{Device, DeviceBuffer, Stream};

pub const DEVICE: Device = Device::from_ordinal(0);
pub const MIB: u64 = 1 << 20;
const DEVICES: usize = 16;

/// A test's turn: they run one at a time, since a capture in global mode forbids some calls to every other thread.
///
/// # Panics
/// Without a GPU.
pub fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(runtime::get().expect("a runtime").kind(), Kind::Cuda, "needs a GPU");
    guard
}

/// Two GPUs that reach each other's memory; without them it says that the test is skipped.
pub fn two_devices() -> Option<[Device; 2]> {
    let (driver, devices) = (runtime::get().unwrap(), [0, 1].map(Device::from_ordinal));
    let [one, other] = devices;
    let reach = |from, to| driver.can_access_peer(from, to).unwrap();
    if driver.device_count() < 2 || !reach(one, other) || !reach(other, one) {
        eprintln!("skipped: needs two GPUs that reach each other");
        return None;
    }
    Some(devices)
}

/// Makes the device current for this thread until dropped.
pub fn bind(device: Device) -> BoundDevice {
    BoundDevice::new(runtime::get().unwrap(), device).unwrap()
}

#[track_caller]
pub fn ok(status: sys::CUresult) {
    assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
}

pub fn raw(stream: &Stream) -> sys::CUstream {
    stream.raw().as_ptr().cast()
}

/// Waits for everything on the thread's current device.
pub fn synchronize() {
    // SAFETY: a device is bound.
    ok(unsafe { sys::cuCtxSynchronize() });
}

/// The value of an environment variable, or this.
pub fn setting(name: &str, otherwise: u64) -> u64 {
    env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Word `index` of a range that was filled with the seed, as in kernels.ptx.
pub fn word(index: usize, seed: u32) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b9).wrapping_add(seed)
}

/// The kernels on one device, and a counter there of words that were wrong.
#[derive(Debug)]
pub struct Kernels {
    fill: sys::CUfunction,
    check: sys::CUfunction,
    spin: sys::CUfunction,
    counter: u64,
}

// SAFETY: functions of a loaded module may be launched from any thread, and the module is never unloaded.
unsafe impl Send for Kernels {}
// SAFETY: launching takes a function by its address and changes nothing of it, so threads may share it.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// The kernels of the device, loaded and run once, so that no later launch waits for loading.
    pub fn of(device: Device) -> &'static Self {
        static LOADED: [OnceLock<Kernels>; DEVICES] = [const { OnceLock::new() }; DEVICES];
        LOADED[device.ordinal()].get_or_init(|| {
            let _bound = bind(device);
            let kernels = Self::load();
            let stream = Stream::new(device).unwrap();
            kernels.fill(&stream, kernels.counter, 4, 0);
            kernels.check(&stream, kernels.counter, 4, 0);
            kernels.spin(&stream, 1);
            stream.synchronize().unwrap();
            kernels
        })
    }

    fn load() -> Self {
        let text = CString::new(include_str!("kernels.ptx")).unwrap();
        let (mut module, mut counter) = (ptr::null_mut(), 0);
        // SAFETY: the places are valid, and the text ends with a zero.
        ok(unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) });
        // SAFETY: the place is valid.
        ok(unsafe { sys::cuMemAlloc_v2(&mut counter, 4) });
        let function = |name: &CStr| {
            let mut function = ptr::null_mut();
            // SAFETY: the module was loaded just now and the place is valid.
            ok(unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) });
            function
        };
        Self { fill: function(c"fill"), check: function(c"check"), spin: function(c"spin"), counter }
    }

    fn launch(&self, function: sys::CUfunction, stream: &Stream, words: u64, parameters: &mut [*mut c_void]) {
        let blocks = words.div_ceil(1024).clamp(1, 1024) as u32;
        let threads = if words == 0 { 1 } else { 256 };
        let places = parameters.as_mut_ptr();
        // SAFETY: the function is loaded, the stream is alive, and the parameters are those of kernels.ptx.
        let status = unsafe {
            sys::cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, raw(stream), places, ptr::null_mut())
        };
        ok(status);
    }

    /// Fills a range, in stream order.
    pub fn fill(&self, stream: &Stream, mut address: u64, bytes: u64, mut seed: u32) {
        let mut words = bytes / 4;
        let parameters = &mut [(&raw mut address).cast(), (&raw mut words).cast(), (&raw mut seed).cast()];
        self.launch(self.fill, stream, bytes / 4, parameters);
    }

    /// Counts the words of a range that are not as [`Kernels::fill`] left them, in stream order.
    pub fn check(&self, stream: &Stream, mut address: u64, bytes: u64, mut seed: u32) {
        let (mut words, mut counter) = (bytes / 4, self.counter);
        let parameters = &mut [
            (&raw mut address).cast(),
            (&raw mut words).cast(),
            (&raw mut seed).cast(),
            (&raw mut counter).cast(),
        ];
        self.launch(self.check, stream, bytes / 4, parameters);
    }

    /// Keeps the stream busy for so long.
    pub fn spin(&self, stream: &Stream, mut nanoseconds: u64) {
        self.launch(self.spin, stream, 0, &mut [(&raw mut nanoseconds).cast()]);
    }

    /// Starts to count wrong words anew. The device is bound.
    pub fn reset(&self) {
        // SAFETY: the counter is 4 bytes.
        ok(unsafe { sys::cuMemsetD32_v2(self.counter, 0, 1) });
        synchronize();
    }

    /// Waits for the bound device and answers how many words were wrong.
    pub fn wrong_words(&self) -> u32 {
        synchronize();
        read(self.counter, 1)[0]
    }
}

/// A word of host memory for each of the device's. The device is bound.
pub fn read(address: u64, words: usize) -> Vec<u32> {
    let mut read = vec![0_u32; words];
    // SAFETY: both ranges have that many words.
    ok(unsafe { sys::cuMemcpyDtoH_v2(read.as_mut_ptr().cast(), address, words * 4) });
    read
}

/// Writes words to the device. The device is bound.
pub fn write(address: u64, words: &[u32]) {
    // SAFETY: both ranges have that many words.
    ok(unsafe { sys::cuMemcpyHtoD_v2(address, words.as_ptr().cast(), size_of_val(words)) });
}

/// A buffer that was filled, and with what.
#[derive(Debug)]
pub struct Filled {
    pub buffer: DeviceBuffer,
    pub seed: u32,
}

impl Filled {
    /// Allocates and fills, in stream order.
    pub fn new(kernels: &Kernels, stream: &Stream, bytes: u64, seed: u32) -> gpupool::Result<Self> {
        let buffer = gpupool::empty(bytes, stream)?;
        kernels.fill(stream, buffer.ptr(), bytes, seed);
        Ok(Self { buffer, seed })
    }

    /// Checks it in the order of a stream, which is one that runs after the filling.
    pub fn check_on(&self, kernels: &Kernels, stream: &Stream) {
        kernels.check(stream, self.buffer.ptr(), self.buffer.nbytes(), self.seed);
    }

    /// Checks it in the order of its own stream.
    pub fn check(&self, kernels: &Kernels) {
        self.check_on(kernels, &self.buffer.stream());
    }
}

/// A small generator of random numbers (splitmix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Whole words between two powers of two, each order of magnitude as likely, in bytes.
    pub fn bytes(&mut self, from: f64, to: f64) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((from + (to - from) * uniform).exp2() as u64).next_multiple_of(4)
    }
}

/// Ends a capture that is to be whole, and makes its graph ready to run.
pub fn instantiate(stream: &Stream) -> sys::CUgraphExec {
    let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the stream is alive and captured, and the places are valid.
    unsafe {
        ok(sys::cuStreamEndCapture(raw(stream), &mut graph));
        ok(sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0));
        ok(sys::cuGraphDestroy(graph));
    }
    ready
}
