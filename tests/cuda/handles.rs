//! The same promises on a real GPU, for each library that is there.

use std::ptr;
use std::sync::{Arc, Barrier, MutexGuard};
use std::thread;

use cudarc::driver::sys;
use gpupool::runtime::{self, BoundDevice};
use gpupool::{
    CaptureStatus, Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, Device, Event, HandlePool, Pooled, Stream,
};

const DEVICE: Device = Device::from_ordinal(0);

/// The pools of the libraries that are there.
fn pools() -> (MutexGuard<'static, ()>, Vec<HandlePool>) {
    let turn = crate::driver::turn();
    let every = [Cudnn::pool(), Cusparse::pool(), Cudss::pool(), Cublas::pool(), CublasLt::pool(), Cusolver::pool()];
    (turn, every.into_iter().filter(HandlePool::is_available).collect())
}

fn current_context() -> usize {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is a valid place for a context.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut context) }, sys::CUresult::CUDA_SUCCESS);
    context.addr()
}

#[test]
#[ignore = "needs a GPU"]
fn threads_share_handles_and_each_has_its_own() {
    let (_guard, pools) = pools();
    for pool in pools {
        let barrier = Arc::new(Barrier::new(8));
        for _wave in 0..4 {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let barrier = Arc::clone(&barrier);
                    thread::spawn(move || {
                        let (first, second) = (Stream::new(DEVICE).unwrap(), Stream::new(DEVICE).unwrap());
                        let handle = pool.handle(&first).unwrap().as_ptr();
                        for _ in 0..100 {
                            assert_eq!(pool.handle(&second).unwrap().as_ptr(), handle);
                            assert_eq!(pool.handle(&first).unwrap().as_ptr(), handle);
                        }
                        barrier.wait();
                        handle.addr()
                    })
                })
                .collect();
            let mut handles: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            handles.sort_unstable();
            handles.dedup();
            // cuBLASLt's handles are stateless: its library answers the same one to all.
            let expected = if pool.name() == "cublaslt" { 1 } else { 8 };
            assert_eq!(handles.len(), expected, "{}", pool.name());
        }
        let stats = pool.stats(None).unwrap();
        assert!(stats.created <= 16, "{}: {stats:?}", pool.name());
        assert_eq!(stats.created, stats.idle + stats.held + stats.destroyed, "{}: {stats:?}", pool.name());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_callers_context_stays_what_it_was() {
    let (_guard, pools) = pools();
    let devices = if pools.is_empty() { 0 } else { runtime::get().unwrap().device_count() };
    for (pool, device) in pools.into_iter().flat_map(|pool| (0..devices).map(move |device| (pool, device))) {
        let device = Device::from_ordinal(device);
        // A new thread has no context. Afterwards it has none either: after a creation, hits, and changed streams.
        thread::spawn(move || {
            assert_eq!(current_context(), 0);
            let (first, second) = (Stream::new(device).unwrap(), Stream::new(device).unwrap());
            for stream in
                [&first, &first, &second, &Stream::legacy(device).unwrap(), &Stream::per_thread(device).unwrap()]
            {
                pool.handle(stream).unwrap();
                assert_eq!(current_context(), 0, "{} on {device}, {stream:?}", pool.name());
            }
        })
        .join()
        .unwrap();
        // With another device current, default streams are still those of the handle's device.
        thread::spawn(move || {
            let other = Stream::new(Device::from_ordinal(devices - 1)).unwrap();
            let _scope = other.enter().unwrap();
            let before = current_context();
            pool.handle(&Stream::new(device).unwrap()).unwrap();
            pool.handle(&Stream::legacy(device).unwrap()).unwrap();
            pool.handle(&Stream::per_thread(device).unwrap()).unwrap();
            assert_eq!(current_context(), before, "{} on {device}", pool.name());
        })
        .join()
        .unwrap();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_first_handle_inside_a_capture_leaves_the_capture_whole() {
    let (_guard, pools) = pools();
    for pool in pools {
        thread::spawn(move || {
            let stream = Stream::new(DEVICE).unwrap();
            let raw = stream.raw().as_ptr().cast();
            for mode in [
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
            ] {
                // SAFETY: the stream is alive.
                let begun = unsafe { sys::cuStreamBeginCapture_v2(raw, mode) };
                assert_eq!(begun, sys::CUresult::CUDA_SUCCESS);
                let intact = |step: &str| {
                    let status = stream.capture_status().unwrap();
                    assert_eq!(status, CaptureStatus::Active, "{}, {mode:?}: {step}", pool.name());
                };
                pool.handle(&stream).unwrap();
                intact("a first handle on the captured stream");
                // A thread that holds no handle, on a stream of its own.
                thread::spawn(move || pool.handle(&Stream::new(DEVICE).unwrap()).map(drop).unwrap()).join().unwrap();
                intact("a first handle on another thread");
                // SAFETY: `stream` outlives the view.
                let view = unsafe { Stream::from_raw(stream.raw().as_ptr()) }.unwrap();
                assert_eq!(view.device(), DEVICE);
                intact("asking for the captured stream's device");
                pool.warm(1, DEVICE).unwrap();
                intact("warming");
                thread::spawn(move || pool.trim(None).map(drop).unwrap()).join().unwrap();
                intact("trimming on another thread");
                let mut graph = ptr::null_mut();
                // SAFETY: the stream is alive and `graph` is a valid place for a graph.
                let ended = unsafe { sys::cuStreamEndCapture(raw, &mut graph) };
                assert_eq!(ended, sys::CUresult::CUDA_SUCCESS, "{} {mode:?}", pool.name());
            }
        })
        .join()
        .unwrap();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn streams_and_events_work_on_the_driver() {
    let (_guard, pools) = pools();
    if pools.is_empty() {
        return;
    }
    let (stream, event) = (Stream::new(DEVICE).unwrap(), Event::new(DEVICE).unwrap());
    event.record(&stream).unwrap();
    Stream::legacy(DEVICE).unwrap().wait(&event).unwrap();
    stream.synchronize().unwrap();
    event.synchronize().unwrap();
    assert!(stream.query().unwrap() && event.query().unwrap());
    assert_eq!(stream.capture_status().unwrap(), CaptureStatus::None);
    let _scope = stream.enter().unwrap();
    assert_eq!(Stream::current().unwrap().raw(), stream.raw());
    assert!(!runtime::device_info(DEVICE).unwrap().name.is_empty());
}

#[test]
#[ignore = "needs a GPU"]
fn memory_moves_between_two_addresses_on_the_driver() {
    let (_guard, _) = pools();
    let driver = runtime::get().unwrap();
    if !driver.supports_virtual_memory(DEVICE.into()).unwrap() {
        return;
    }
    let total = driver.total_memory(DEVICE.into()).unwrap();
    let _bound = BoundDevice::new(driver, DEVICE).unwrap();
    assert!(driver.memory_info().unwrap().free <= total);
    let page = driver.page_bytes(DEVICE.into()).unwrap();
    let (from, to) = (driver.address_reserve(page).unwrap(), driver.address_reserve(2 * page).unwrap());
    assert_eq!((from % page, to % page), (0, 0));
    let extent = driver.extent_create(DEVICE.into(), page).unwrap();
    let read = |address: u64| {
        let mut value = 0_u64;
        // SAFETY: `value` has eight bytes, and the address is mapped with access.
        let status = unsafe { sys::cuMemcpyDtoH_v2((&raw mut value).cast(), address, 8) };
        assert_eq!(status, sys::CUresult::CUDA_SUCCESS);
        value
    };
    // SAFETY: the addresses are reserved, the memory is alive, and nothing is used after its end.
    unsafe {
        driver.memory_map(from, page, extent).unwrap();
        driver.memory_set_access(from, page, &[DEVICE.into()]).unwrap();
        assert_eq!(sys::cuMemsetD32_v2(from, 17, page as usize / 4), sys::CUresult::CUDA_SUCCESS);
        // Both addresses are the same bytes.
        driver.memory_map(to + page, page, extent).unwrap();
        driver.memory_set_access(to + page, page, &[DEVICE.into()]).unwrap();
        assert_eq!(read(to + page), 17 << 32 | 17);
        driver.memory_unmap(from, page).unwrap();
        driver.address_free(from, page).unwrap();
        driver.extent_release(extent).unwrap();
        assert_eq!(read(to + page), 17 << 32 | 17);
        driver.memory_unmap(to + page, page).unwrap();
        driver.address_free(to, 2 * page).unwrap();
        // Allocations, with and without a stream.
        driver.memory_free(driver.memory_allocate(100).unwrap()).unwrap();
        let stream = Stream::new(DEVICE).unwrap();
        let address = driver.allocate_async(100, stream.raw()).unwrap();
        driver.free_async(address, stream.raw()).unwrap();
        stream.synchronize().unwrap();
    }
    assert!(driver.extent_create(DEVICE.into(), total * 2 / page * page).is_err());
    assert!(!driver.can_access_peer(DEVICE, DEVICE).unwrap());
}
