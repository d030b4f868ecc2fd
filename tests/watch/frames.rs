//! A program in Rust that takes memory in threads, and gives it back as a panic passes.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::thread;

#[link(name = "libcuda.so.1", kind = "dylib", modifiers = "+verbatim")]
unsafe extern "C" {
    fn cuInit(flags: u32) -> c_int;
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> c_int;
    fn cuCtxSetCurrent(context: *mut c_void) -> c_int;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int;
    fn cuMemFree_v2(address: u64) -> c_int;
    fn double_used(device: c_int) -> u64;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Tell = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, u64, u64, u64);

#[repr(C)]
struct Table {
    size: usize,
    join: usize,
    holders: unsafe extern "C" fn(c_int, Tell, *mut c_void),
}

const MIB: usize = 1 << 20;

struct Buffer(u64);

impl Buffer {
    fn new(bytes: usize) -> Self {
        let (mut context, mut address) = (std::ptr::null_mut(), 0);
        // SAFETY: the places are there.
        unsafe {
            assert_eq!((cuInit(0), cuDevicePrimaryCtxRetain(&mut context, 0), cuCtxSetCurrent(context)), (0, 0, 0));
            assert_eq!(cuMemAlloc_v2(&mut address, bytes), 0);
        }
        Self(address)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the address is that of an allocation.
        assert_eq!(unsafe { cuMemFree_v2(self.0) }, 0);
    }
}

/// Returns the bytes and allocations of this program.
fn held() -> (u64, u64) {
    unsafe extern "C" fn tell(
        sum: *mut c_void,
        name: *const c_char,
        _path: *const c_char,
        bytes: u64,
        _peak: u64,
        count: u64,
    ) {
        // SAFETY: these are the sum below and a string.
        let (sum, name) = unsafe { (&mut *sum.cast::<(u64, u64)>(), CStr::from_ptr(name)) };
        assert_eq!(name, c"frames");
        *sum = (sum.0 + bytes, sum.1 + count);
    }
    let mut sum = (0, 0);
    // SAFETY: the name is that of the table, and `tell` is called before this returns.
    unsafe {
        let table = dlsym(std::ptr::null_mut(), c"gpupool_watch".as_ptr()).cast::<Table>();
        ((*table).holders)(0, tell, (&raw mut sum).cast());
        assert_eq!(sum.0, double_used(0));
    }
    sum
}

fn main() {
    let whole = Buffer::new(3 * MIB);
    assert_eq!(held(), (3 * MIB as u64, 1));
    let threads: Vec<_> = (1..5).map(|size| thread::spawn(move || Buffer::new(size * MIB))).collect();
    let buffers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(held(), (13 * MIB as u64, 5));
    drop(buffers);
    std::panic::set_hook(Box::new(|_| {}));
    let ended = thread::spawn(|| {
        let _buffer = Buffer::new(MIB);
        panic!("the buffer is dropped");
    });
    assert!(ended.join().is_err());
    assert_eq!(held(), (3 * MIB as u64, 1));
    drop(whole);
    assert_eq!(held(), (0, 0));
}
