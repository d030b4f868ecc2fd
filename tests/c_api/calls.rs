//! The C interface: what a C program gets, and what it is told when it calls wrongly.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use crate::common::c_pools::{
    DRIVER, INVALID_VALUE, OUT_OF_MEMORY, allocate, create, deallocate, failed, last_error, options, try_allocate,
    try_deallocate,
};
use crate::common::memory::MIB;
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::c_api::{Block, C_API, PoolHandle};
use gpupool::runtime::host::{Call, Fault, begin_capture, complete_all, create_stream, end_capture, inject, submit};
use gpupool::{CaptureMode, StatusKind, Stream, empty_cache, memory_stats};

/// A slot of a slab, a block cut to size in a page, one of several pages.
const SIZES: [u64; 3] = [700, 100 << 10, 5 << 20];

fn owns(pointer: *const c_void) -> c_int {
    // SAFETY: it takes any address.
    unsafe { (C_API.owns)(pointer) }
}

fn find_block(pointer: *const c_void) -> Result<Block, c_int> {
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut block = Block { size: size_of::<Block>() as u64, ..unsafe { std::mem::zeroed() } };
    // SAFETY: the block says its size.
    match unsafe { (C_API.find_block)(pointer, &raw mut block) } {
        0 => Ok(block),
        status => Err(status),
    }
}

#[test]
fn blocks_are_allocated_found_and_freed() {
    memory!();
    let stream = stream(0);
    for bytes in SIZES {
        let pointer = allocate(bytes, &stream);
        assert_eq!(owns(pointer), 1);
        let block = find_block(pointer).unwrap();
        assert_eq!((block.address, block.requested), (pointer, bytes));
        assert_eq!((block.is_live, block.is_waiting, block.device, block.stack), (1, 0, 0, 0));
        assert_eq!((block.stream, block.pool), (stream.raw().as_ptr(), gpupool::PoolId::NONE));
        assert!(block.bytes >= bytes && block.bytes < bytes + bytes / 8 + 512, "{block:?}");
        let (segment, address) = (block.segment.addr(), block.address.addr());
        assert!(
            segment <= address && address as u64 + block.bytes <= segment as u64 + block.segment_bytes,
            "{block:?}"
        );
        deallocate(pointer);
        failed(find_block(pointer).unwrap_err(), INVALID_VALUE, &["device 0"]);
        failed(try_deallocate(pointer), INVALID_VALUE, &["device 0", "free"]);
    }
    assert_eq!(memory_stats(device(0)).unwrap().total.live_blocks, 0);
}

#[test]
fn no_bytes_are_a_null_pointer_which_can_be_freed() {
    memory!();
    assert_eq!(try_allocate(0, &stream(0)), Ok(ptr::null_mut()));
    assert_eq!(try_deallocate(ptr::null()), 0);
}

#[test]
fn an_older_program_gets_what_its_structs_have_room_for() {
    memory!();
    let pointer = allocate(MIB, &stream(0));
    // SAFETY: numbers and pointers, all of which may be zero.
    let mut block = Block { size: 24, requested: 77, ..unsafe { std::mem::zeroed() } };
    // SAFETY: the block says how much of it there is.
    assert_eq!(unsafe { (C_API.find_block)(pointer, &raw mut block) }, 0);
    assert_eq!((block.size, block.address, block.bytes, block.requested), (24, pointer, MIB, 77));
    deallocate(pointer);
}

#[test]
fn a_thread_is_told_of_its_own_failures_alone() {
    memory!();
    failed(try_deallocate(ptr::without_provenance(0x1000)), INVALID_VALUE, &["0x1000"]);
    assert!(on_thread(last_error).contains("no call of this thread has failed"));
    assert_eq!(try_deallocate(ptr::null()), 0);
    assert!(last_error().contains("0x1000"), "success leaves the reason of the last failure");
}

#[test]
fn a_shared_block_that_no_process_attached_is_free_at_once() {
    memory!();
    let pointer = allocate(MIB, &stream(0));
    let (mut token, mut bytes, mut offset) = ([0_u8; 108], 108, 0);
    let place = token.as_mut_ptr().cast();
    // SAFETY: the places are alive, and device -1 has no stream.
    let shared = unsafe { (C_API.share)(pointer, -1, ptr::null_mut(), 0, place, &raw mut bytes, &raw mut offset) };
    assert_eq!((shared, try_deallocate(pointer)), (0, 0));
    assert_eq!(memory_stats(device(0)).unwrap().total.live_blocks, 0);
}

#[test]
fn a_block_that_is_freed_on_a_stream_waits_for_that_one() {
    memory!();
    let (own, other) = (stream(0), stream(0));
    // SAFETY: the stream is alive and of the device; what is no block is refused.
    let free_on = |pointer, stream: &Stream| unsafe { (C_API.deallocate_on)(pointer, 0, stream.raw().as_ptr()) };
    for bytes in SIZES {
        submit(&own).unwrap();
        submit(&other).unwrap();
        let pointer = allocate(bytes, &own);
        assert_eq!(free_on(pointer, &own), 0);
        // In the order of its own stream, it may be used there again at once.
        assert_eq!(allocate(bytes, &own), pointer);
        assert_eq!(free_on(pointer, &other), 0);
        assert_eq!(memory_stats(device(0)).unwrap().total.waiting_blocks, 1);
        complete_all().unwrap();
        empty_cache().unwrap();
        assert_eq!(memory_stats(device(0)).unwrap().total.waiting_blocks, 0);
    }
    assert_eq!(free_on(ptr::null_mut(), &own), 0);
    failed(free_on((&raw const OTHERS).cast_mut().cast(), &own), INVALID_VALUE, &["0x"]);
}

#[test]
fn memory_for_code_that_names_no_stream_is_idle_and_waits_for_all_work_when_it_is_freed() {
    memory!();
    let (pool, user) = (create(options()), stream(0));
    let allocate = |pool: *const PoolHandle, device, bytes| {
        let mut pointer = ptr::dangling_mut();
        // SAFETY: the pool is alive or null, and there is a place for the pointer.
        let status = unsafe { (C_API.feed_allocate)(pool, device, bytes, &raw mut pointer) };
        (status, pointer)
    };
    // SAFETY: what is no block is refused.
    let free = |pointer| unsafe { (C_API.feed_deallocate)(pointer) };
    for bytes in SIZES {
        let (status, pointer) = allocate(pool.0, 0, bytes);
        assert_eq!((status, find_block(pointer).unwrap().requested), (0, bytes));
        // Of a stream that nobody names.
        submit(&user).unwrap();
        assert_eq!(free(pointer), 0);
        let (_, other) = allocate(pool.0, 0, bytes);
        assert_ne!(other, pointer);
        complete_all().unwrap();
        assert_eq!((free(other), memory_stats(device(0)).unwrap().total.live_blocks), (0, 0));
    }
    // A block of a stream is freed so, too.
    assert_eq!(free(self::allocate(MIB, &user)), 0);
    let (_, of_default) = allocate(ptr::null(), 1, MIB);
    assert_eq!((find_block(of_default).unwrap().device, free(of_default)), (1, 0));
    assert_eq!((allocate(pool.0, 0, 0), free(ptr::null_mut())), ((0, ptr::null_mut()), 0));
    failed(allocate(pool.0, 1, MIB).0, INVALID_VALUE, &["has no memory for device 1"]);
    failed(allocate(ptr::null(), 9, MIB).0, INVALID_VALUE, &["no device 9"]);
    assert_eq!(allocate(pool.0, 0, 1 << 50), (OUT_OF_MEMORY, ptr::null_mut()));
    failed(free((&raw const OTHERS).cast_mut().cast()), INVALID_VALUE, &["0x"]);
    // SAFETY: it is the only use.
    assert_eq!(unsafe { (C_API.pool_release)(pool.0) }, 0);
}

/// Memory that is not gpupool's.
static OTHERS: u64 = 0;

#[test]
fn a_stream_is_waited_for() {
    memory!();
    let stream = stream(0);
    // SAFETY: the stream is alive and of the device.
    let synchronize = |device| unsafe { (C_API.synchronize)(device, stream.raw().as_ptr()) };
    assert_eq!(synchronize(0), 0);
    failed(synchronize(99), INVALID_VALUE, &["device 99"]);
    inject(Fault { call: Call::StreamSynchronize, kind: StatusKind::Other, after: 0, times: 1 });
    failed(synchronize(0), DRIVER, &["device 0"]);
    begin_capture(&stream, CaptureMode::Relaxed).unwrap();
    assert_ne!(synchronize(0), 0);
    assert!(end_capture(&stream).is_err(), "waiting spoils a capture");
}

/// A stream of other code's, which gpupool touches only in calls that name it.
fn foreign() -> Stream {
    let raw = create_stream(device(0)).unwrap();
    // SAFETY: the stream is alive and of the device.
    unsafe { Stream::from_raw_on(raw.as_ptr(), device(0)) }.unwrap()
}

/// Gives memory back that a stream of other code's uses which is captured, and says whether the capture is right.
fn is_spared(captured: &Stream) -> bool {
    let own = stream(0);
    let pointer = allocate(4 * MIB, &own);
    begin_capture(captured, CaptureMode::Relaxed).unwrap();
    // SAFETY: the stream is alive and of the device.
    assert_eq!(unsafe { (C_API.record_stream)(pointer, 0, captured.raw().as_ptr()) }, 0);
    deallocate(pointer);
    let mut bytes = u64::MAX;
    // SAFETY: the place is one for a number.
    assert_eq!(unsafe { (C_API.empty_cache)(-1, &raw mut bytes) }, 0);
    end_capture(captured).is_ok() && bytes == 0
}

#[test]
fn captures_that_are_expected_or_known_of_are_not_spoilt() {
    memory!();
    // SAFETY: both take any ordinal.
    let expect = |ordinal| unsafe { (C_API.expect_captures)(ordinal) };
    // SAFETY: the same.
    let end = |ordinal| unsafe { (C_API.end_expecting_captures)(ordinal) };
    assert_eq!((expect(0), expect(0), end(0)), (0, 0, 0));
    assert!(is_spared(&foreign()), "one more capture is expected");
    assert_eq!(end(0), 0);
    failed(end(0), INVALID_VALUE, &["end_expecting_captures", "expect_captures"]);
    let stream = foreign();
    // SAFETY: the stream is alive and of the device.
    assert_eq!(unsafe { (C_API.declare_lasting)(0, stream.raw().as_ptr()) }, 0);
    assert!(is_spared(&stream), "a stream that lasts is asked");
    let own = Stream::per_thread(gpupool::device(0).unwrap()).unwrap();
    // SAFETY: the stream is alive and of the device.
    let refused = unsafe { (C_API.declare_lasting)(0, own.raw().as_ptr()) };
    failed(refused, INVALID_VALUE, &["stream 2", "per-thread default stream"]);
    empty_cache().unwrap();
    failed(expect(99), INVALID_VALUE, &["99"]);
    failed(end(99), INVALID_VALUE, &["99"]);
}

#[test]
fn limits_caches_and_the_largest_block_are_those_of_the_device() {
    memory!();
    let stream = stream(1);
    empty_cache().unwrap();
    // SAFETY: the places are good.
    unsafe {
        let (mut fraction, mut bytes) = (0.0, 0);
        assert_eq!((C_API.get_per_process_memory_fraction)(1, &raw mut fraction), 0);
        assert_eq!(fraction.to_bits(), 1.0_f64.to_bits());
        assert_eq!((C_API.largest_block)(1, &raw mut bytes), 0);
        assert_eq!(bytes, MEMORY);
        assert_eq!((C_API.set_per_process_memory_fraction)(1, 0.25), 0);
        assert_eq!((C_API.largest_block)(1, &raw mut bytes), 0);
        assert_eq!(bytes, MEMORY / 4);
        failed(
            try_allocate(MEMORY / 2, &stream).unwrap_err(),
            OUT_OF_MEMORY,
            &["out of memory on device 1", "fraction"],
        );
        let pointer = allocate(MEMORY / 4, &stream);
        assert_eq!((C_API.largest_block)(1, &raw mut bytes), 0);
        assert_eq!(bytes, 0);
        deallocate(pointer);
        assert_eq!((C_API.largest_block)(1, &raw mut bytes), 0);
        assert_eq!(bytes, MEMORY / 4);
        assert_eq!((C_API.empty_cache)(0, &raw mut bytes), 0);
        assert_eq!(bytes, 0, "another device's");
        assert_eq!((C_API.empty_cache)(-1, &raw mut bytes), 0);
        assert_eq!(bytes, MEMORY / 4);
        assert_eq!((C_API.set_per_process_memory_fraction)(1, 1.0), 0);
    }
}

#[test]
fn giving_back_waits_for_the_work_that_may_use_the_memory() {
    memory!();
    let (stream, other) = (stream(0), stream(0));
    let (freed, recorded) = (allocate(8 * MIB, &stream), allocate(8 * MIB, &stream));
    submit(&stream).unwrap();
    submit(&other).unwrap();
    // SAFETY: the streams are alive and of the device.
    assert_eq!(unsafe { (C_API.record_stream)(recorded, 0, other.raw().as_ptr()) }, 0);
    assert_eq!((try_deallocate(freed), try_deallocate(recorded)), (0, 0));
    assert_eq!(empty_cache().unwrap(), 0, "that of Rust does not wait");
    assert!(memory_stats(device(0)).unwrap().total.reserved_bytes >= 16 * MIB);
    let mut bytes = 0;
    // SAFETY: the place is one for a number.
    assert_eq!(unsafe { (C_API.empty_cache)(0, &raw mut bytes) }, 0);
    assert_eq!((bytes, memory_stats(device(0)).unwrap().total.reserved_bytes), (16 * MIB, 0));
}

#[test]
fn a_device_uses_the_memory_of_its_peer() {
    memory!();
    let pointer = allocate(MIB, &stream(1));
    let other = stream(0);
    // SAFETY: the stream is alive and of the device.
    unsafe {
        failed((C_API.record_stream)(pointer, 0, other.raw().as_ptr()), INVALID_VALUE, &["enable_peer_access"]);
        assert_eq!((C_API.enable_peer_access)(0, 1), 0);
        assert_eq!((C_API.record_stream)(pointer, 0, other.raw().as_ptr()), 0);
    }
    deallocate(pointer);
}

unsafe extern "C" fn free_nothing(_context: *mut c_void, _device: c_int, _bytes: u64) -> c_int {
    0
}

/// Frees the block whose address the context has.
unsafe extern "C" fn free_block(context: *mut c_void, device: c_int, bytes: u64) -> c_int {
    assert_eq!((device, bytes), (0, MEMORY / 2));
    let held = context.cast::<*mut c_void>();
    // SAFETY: the test passes the place of a pointer, and waits.
    let pointer = unsafe { held.replace(ptr::null_mut()) };
    c_int::from(!pointer.is_null() && try_deallocate(pointer) == 0)
}

#[test]
fn callbacks_are_asked_before_a_request_fails() {
    memory!();
    let stream = stream(0);
    empty_cache().unwrap();
    let mut held = allocate(MEMORY * 3 / 4, &stream);
    let context = (&raw mut held).cast();
    // SAFETY: the functions and the context stay until they are removed.
    unsafe {
        assert_eq!((C_API.on_oom)(Some(free_nothing), ptr::null_mut()), 0);
        failed(try_allocate(MEMORY / 2, &stream).unwrap_err(), OUT_OF_MEMORY, &["out of memory on device 0"]);
        assert_eq!((C_API.on_oom)(Some(free_block), context), 0);
        let pointer = allocate(MEMORY / 2, &stream);
        deallocate(pointer);
        assert_eq!((C_API.remove_oom_callback)(Some(free_block), context), 0);
        assert_eq!((C_API.remove_oom_callback)(Some(free_nothing), ptr::null_mut()), 0);
        failed((C_API.remove_oom_callback)(Some(free_block), context), INVALID_VALUE, &["no such callback"]);
    }
}

/// What the destructor of a key was told.
static TOLD_AT_THE_END: Mutex<String> = Mutex::new(String::new());

/// Fails once the thread's own destructors have run.
unsafe extern "C" fn fail_at_the_end(_value: *mut c_void) {
    assert_ne!(try_deallocate(ptr::without_provenance(4096)), 0);
    *TOLD_AT_THE_END.lock().unwrap() = last_error();
}

#[test]
fn an_error_is_told_to_the_very_end_of_a_thread() {
    memory!();
    let mut key = 0;
    // SAFETY: the key is a valid place for one, and the destructor takes any value.
    assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(fail_at_the_end)) }, 0);
    on_thread(move || {
        // One before, whose text would go with the thread's own destructors.
        assert_ne!(try_deallocate(ptr::without_provenance(8192)), 0);
        // SAFETY: the key was just made.
        assert_eq!(unsafe { libc::pthread_setspecific(key, ptr::without_provenance(1)) }, 0);
    });
    let told = TOLD_AT_THE_END.lock().unwrap();
    assert!(told.contains("0x1000"), "{told}");
}
