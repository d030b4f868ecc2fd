//! Buffers of cuda-core in memory of gpupool, on a GPU, or on a double of the driver as `make cuda-core` runs them.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use cuda_core::{Context, DeviceBuffer, Stream};
use gpupool::{ErrorKind, MemPool};
use gpupool_cuda_core::{Error, PooledAllocation, from_host, zeros};

/// A stream of the first device, and a pool of this test's own, of 32 MiB.
fn start() -> (Arc<Stream>, MemPool) {
    let stream = Context::new(0).unwrap().new_stream().unwrap();
    (stream, MemPool::builder().limit(32 << 20).build().unwrap())
}

fn live(pool: &MemPool) -> u64 {
    pool.stats().unwrap().live_bytes
}

#[test]
fn elements_come_back_as_they_were_given() {
    let (stream, pool) = start();
    let _scope = pool.enter().unwrap();
    let numbers: Vec<f32> = (0..1000).map(|number| number as f32).collect();
    let buffer = from_host(&stream, &numbers).unwrap();
    assert_eq!(buffer.to_host_vec(&stream).unwrap(), numbers);
    assert!(live(&pool) >= 4000, "the memory is of another pool");
}

#[test]
fn zeros_are_zero_where_other_bytes_were() {
    let (stream, pool) = start();
    let _scope = pool.enter().unwrap();
    let used = from_host(&stream, &[u8::MAX; 4096]).unwrap();
    let address = used.cu_deviceptr();
    drop(used);
    let fresh = zeros::<u32>(&stream, 1024).unwrap();
    assert_eq!(fresh.cu_deviceptr(), address, "freed memory is reused on its stream");
    assert_eq!(fresh.to_host_vec(&stream).unwrap(), [0; 1024]);
}

#[test]
fn memory_stays_while_any_view_has_it() {
    let (stream, pool) = start();
    let _scope = pool.enter().unwrap();
    let buffer = from_host(&stream, &[1_u64, 2, 3, 4]).unwrap();
    let last = buffer.storage().slice_bytes(24, 8).unwrap();
    drop(buffer);
    assert!(live(&pool) > 0, "a view of the memory is left");
    // SAFETY: these bytes are the last number, and there is no other view.
    let last = unsafe { DeviceBuffer::<u64>::from_storage_copy(last, 1) }.unwrap();
    assert_eq!(last.to_host_vec(&stream).unwrap(), [4]);
    drop(last);
    assert_eq!(live(&pool), 0);
}

#[test]
fn memory_stays_while_work_on_another_stream_has_it() {
    let (stream, pool) = start();
    let other = stream.fork().unwrap();
    let _scope = pool.enter().unwrap();
    let buffer = zeros::<u8>(&stream, 100).unwrap();
    let work = buffer.storage().acquire(&other, true, false).unwrap();
    drop(buffer);
    assert!(live(&pool) > 0, "work has the memory");
    other.synchronize().unwrap();
    drop(work);
    assert_eq!(live(&pool), 0, "the memory does not come back after the work");
}

#[test]
fn memory_outlives_the_callers_stream_and_pool() {
    let (stream, pool) = start();
    let buffer = {
        let _scope = pool.enter().unwrap();
        from_host(&stream, &[5_i32; 64]).unwrap()
    };
    let other = stream.fork().unwrap();
    drop((stream, pool));
    assert_eq!(buffer.to_host_vec(&other).unwrap(), [5; 64]);
}

#[test]
fn no_elements_take_no_memory() {
    let (stream, pool) = start();
    let _scope = pool.enter().unwrap();
    assert!(zeros::<f64>(&stream, 0).unwrap().is_empty());
    assert!(from_host::<f64>(&stream, &[]).unwrap().to_host_vec(&stream).unwrap().is_empty());
    assert_eq!(live(&pool), 0);
}

#[test]
fn a_pools_limit_holds() {
    let (stream, pool) = start();
    let _scope = pool.enter().unwrap();
    let Err(Error::Pool(error)) = PooledAllocation::new(&stream, 64 << 20) else { panic!("more than the limit") };
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory(_)), "{error}");
}

#[test]
fn more_than_an_address_can_say_is_refused() {
    let (stream, _pool) = start();
    let error = zeros::<u64>(&stream, usize::MAX / 4).err().unwrap();
    assert!(matches!(error, Error::TooLarge { size: 8, .. }));
    assert!(error.to_string().ends_with("elements of 8 bytes are too many"), "{error}");
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let (own, _pool) = start();
    // SAFETY: they are neither used nor dropped, for which cuda-core would ask the driver.
    let stream = unsafe { Stream::borrow_raw(own.cu_stream().cast(), &Context::borrow_raw(16 as _, 0, 0)) };
    let stream = ManuallyDrop::new(stream);
    let error = PooledAllocation::new(&stream, 1).unwrap_err();
    assert!(matches!(error, Error::OtherContext { ordinal: 0 }));
    assert!(error.to_string().contains("Context::new(0)"), "{error}");
}
