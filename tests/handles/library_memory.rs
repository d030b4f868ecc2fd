//! A library of one's own can be told to take its device memory from a MemPool.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use crate::common::{device, stream};
use gpupool::c_api::C_API;
use gpupool::library::simulated::SimulatedLibrary;
use gpupool::library::{DeviceMemHandler, Library, RawHandle};
use gpupool::runtime::{self, BoundDevice};
use gpupool::{Device, ErrorKind, HandlePool, MemPool, Result, Stream};

/// What a handle's address points to: the handler that it was told.
type Told = Mutex<Option<DeviceMemHandler>>;

struct Own;

fn told(handle: *mut c_void) -> DeviceMemHandler {
    // SAFETY: it is the address of a live handle of this library.
    unsafe { &*handle.cast::<Told>() }.lock().unwrap().expect("a handler")
}

impl Library for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn create(&self, _device: Device) -> Result<RawHandle> {
        let handle = NonNull::from(Box::leak(Box::new(Told::default())));
        // SAFETY: `destroy` takes the box back.
        Ok(unsafe { RawHandle::from_ptr(handle.cast()) })
    }

    fn destroy(&self, handle: RawHandle) -> Result<()> {
        // SAFETY: `create` leaked the box.
        drop(unsafe { Box::from_raw(handle.as_ptr().cast::<Told>()) });
        Ok(())
    }

    fn set_stream(&self, _handle: &RawHandle, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    fn takes_memory(&self) -> Result<bool> {
        Ok(true)
    }

    fn set_memory(&self, handle: &RawHandle, memory: &DeviceMemHandler) -> Result<()> {
        // SAFETY: the handle is a box of this library.
        *unsafe { &*handle.as_ptr().cast::<Told>() }.lock().unwrap() = Some(*memory);
        Ok(())
    }
}

#[test]
fn its_handles_take_it_and_give_it_back() {
    host!();
    let (pool, stream) = (HandlePool::new(Own).unwrap(), stream(0));
    let mem_pool = MemPool::builder().device(device(0)).build().unwrap();
    let held = pool.handle(&stream).unwrap();
    pool.set_mem_pool(device(0), Some(&mem_pool.token())).unwrap();
    assert_eq!(mem_pool.use_count(), 2);
    assert_eq!(pool.handle(&stream).unwrap().as_ptr(), held.as_ptr());

    let (handler, raw) = (told(held.as_ptr()), stream.raw().as_ptr());
    let mut address = ptr::null_mut();
    // SAFETY: the context is the handler's own, and the place is one for a pointer.
    assert_eq!(unsafe { (handler.device_alloc)(handler.context, &mut address, 1 << 20, raw) }, 0);
    assert!(!address.is_null());
    assert_eq!(mem_pool.stats().unwrap().live_bytes, 1 << 20);
    // SAFETY: the context is the handler's own, and the place is one for a pointer.
    assert_ne!(unsafe { (handler.device_alloc)(handler.context, &mut ptr::null_mut(), 1 << 60, raw) }, 0);

    assert_eq!(pool.mem_pool(device(0)).unwrap().map(|token| token.id()), Some(mem_pool.id()));
    pool.set_mem_pool(device(0), None).unwrap();
    assert!(pool.mem_pool(device(0)).unwrap().is_none());
    assert_eq!(mem_pool.use_count(), 1);
    // SAFETY: the memory came from this handler.
    assert_eq!(unsafe { (handler.device_free)(handler.context, address, 1 << 20, raw) }, 0);
    assert_eq!(mem_pool.stats().unwrap().live_bytes, 0);
    // Without a pool it is the driver's, which the pool's owner does not see.
    // SAFETY: the context is the handler's own, the place is one for a pointer, and the memory is used no more.
    unsafe {
        assert_eq!((handler.device_alloc)(handler.context, &mut address, 1 << 20, raw), 0);
        assert_eq!((handler.device_free)(handler.context, address, 1 << 20, raw), 0);
        assert_ne!((handler.device_free)(handler.context, address, 1 << 20, raw), 0, "freed before");
    }
    pool.close().unwrap();
}

/// Returns why the last free failed, of a handler of `pool`'s.
fn refusal(handler: &DeviceMemHandler, address: *mut c_void, stream: &Stream) -> String {
    // SAFETY: the context is the handler's own; memory that nothing allocated there is refused.
    unsafe {
        assert_ne!((handler.device_free)(handler.context, address, 1 << 20, stream.raw().as_ptr()), 0);
        CStr::from_ptr((C_API.last_error)()).to_str().unwrap().to_owned()
    }
}

#[test]
fn what_a_library_had_from_the_driver_goes_back_there_and_what_neither_gave_is_refused_by_its_address() {
    host!();
    let (pool, stream) = (HandlePool::new(Own).unwrap(), stream(0));
    let held = pool.handle(&stream).unwrap();
    // Before the library is told where to allocate.
    let runtime = runtime::get().unwrap();
    let _bound = BoundDevice::new(runtime, device(0)).unwrap();
    let early = runtime.memory_allocate(2 << 20).unwrap();
    let early = ptr::without_provenance_mut::<c_void>(early as usize);
    let mem_pool = MemPool::builder().device(device(0)).build().unwrap();
    pool.set_mem_pool(device(0), Some(&mem_pool.token())).unwrap();
    assert_eq!(pool.handle(&stream).unwrap().as_ptr(), held.as_ptr());
    let handler = told(held.as_ptr());
    let free_bytes = || runtime.memory_info().unwrap().free;
    let before = free_bytes();
    // SAFETY: the context is the handler's own, and the memory is used no more.
    assert_eq!(unsafe { (handler.device_free)(handler.context, early, 2 << 20, stream.raw().as_ptr()) }, 0);
    assert_eq!(free_bytes(), before + (2 << 20));

    let foreign = ptr::without_provenance_mut(0x1234_5000);
    for wrong in [early, foreign] {
        let why = refusal(&handler, wrong, &stream);
        assert!(why.contains(&format!("{wrong:p}")) && why.contains("device 0"), "{why}");
    }
    // What is gpupool's is not the driver's to free.
    let buffer = mem_pool.empty(1 << 20, &stream).unwrap();
    let inner = ptr::without_provenance_mut(buffer.ptr() as usize + 512);
    let why = refusal(&handler, inner, &stream);
    assert!(why.contains(&format!("{inner:p}")) && why.contains("not the start of a block"), "{why}");
    assert_eq!(mem_pool.stats().unwrap().live_bytes, 1 << 20);
    pool.close().unwrap();
}

#[test]
fn a_library_that_cannot_be_told_says_so() {
    host!();
    let mem_pool = MemPool::builder().device(device(0)).build().unwrap();
    let pool = HandlePool::new(SimulatedLibrary).unwrap();
    let error = pool.set_mem_pool(device(0), Some(&mem_pool.token())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    pool.set_mem_pool(device(0), None).unwrap();
    assert_eq!(mem_pool.use_count(), 1);
}
