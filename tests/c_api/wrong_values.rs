//! Wrong values through each function of the table that takes such: each is refused by a reason that names it, and whatever was
//! there before stays as it was.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{self, null, null_mut};

use super::handles::{NO_LEASE, SIMULATED};
use crate::common::c_pools::{
    CPool, INVALID_VALUE, OUT_OF_MEMORY, allocate, create, deallocate, failed, last_error, options, succeeded,
};
use crate::common::memory::MIB;
use crate::common::{device, stream};
use gpupool::c_api::{
    Attached, Block, C_API, DeviceStats, Durations, HandleCounts, PoolHandle, PoolOptions, Recording, SnapshotVisitor,
};
use gpupool::{Stream, memory_stats};

/// `GPUPOOL_TOKEN_BYTES`.
const TOKEN: usize = 108;

/// Returns a token of a block, and what it is attached as.
fn attached(pointer: *const c_void) -> ([u8; TOKEN], *mut Attached) {
    let (mut token, mut bytes, mut offset) = ([0_u8; TOKEN], TOKEN as u64, 0);
    let (mut attached, mut address) = (null_mut(), null_mut());
    // SAFETY: all places are alive, and device -1 has no stream.
    unsafe {
        let place = token.as_mut_ptr().cast();
        succeeded((C_API.share)(pointer, -1, null_mut(), 0, place, &raw mut bytes, &raw mut offset));
        let place = token.as_ptr().cast();
        succeeded((C_API.attach)(place, bytes, -1, null_mut(), &raw mut attached, &raw mut address));
    }
    (token, attached)
}

/// Gives back what a test had made.
fn release(block: *mut c_void, own: *mut Attached, pool: CPool) {
    // SAFETY: both are the caller's, and not used after this.
    unsafe {
        succeeded((C_API.detach)(own, -1, null_mut()));
        succeeded((C_API.deallocate)(block));
    }
    pool.release();
}

/// The call failed, and the reason names this device.
#[track_caller]
fn names(device: c_int, status: c_int) {
    failed(status, INVALID_VALUE, &[&format!("no device {device}:")]);
}

#[test]
fn attached_memory_whose_end_is_refused_is_as_it_was() {
    host!();
    let (stream, elsewhere) = (stream(0), crate::common::stream(1));
    let block = allocate(MIB, &stream);
    let (_, own) = attached(block);
    // SAFETY: the stream is alive, and only the last call gives up what was attached.
    unsafe {
        failed((C_API.detach)(own, 1, elsewhere.raw().as_ptr()), INVALID_VALUE, &["was attached for device 0"]);
        succeeded((C_API.attached_record_stream)(own, 0, stream.raw().as_ptr()));
        succeeded((C_API.detach)(own, 0, stream.raw().as_ptr()));
        succeeded((C_API.deallocate)(block));
    }
    gpupool::empty_cache().unwrap();
}

#[test]
fn a_device_that_is_none_is_refused_by_every_function_that_takes_one() {
    host!();
    let stream = stream(0);
    let raw = stream.raw().as_ptr();
    let block = allocate(MIB, &stream);
    let (token, own) = attached(block);
    let pool = create(options());
    let (pool_id, plain) = (pool.id(), options());
    // SAFETY: the stream is alive, all places are, and devices that are none are refused.
    unsafe {
        for wrong in [-1, -2, -7, c_int::MIN, 2, c_int::MAX] {
            let (mut pointer, mut bytes, mut offset, mut fraction) = (null_mut(), 0, 0, 0.0);
            let mut made = null_mut();
            let mut stats = DeviceStats { size: size_of::<DeviceStats>() as u64, ..DeviceStats::default() };
            names(wrong, (C_API.allocate)(MIB, wrong, raw, &raw mut pointer));
            names(wrong, (C_API.record_stream)(block, wrong, raw));
            names(wrong, (C_API.deallocate_on)(block, wrong, raw));
            names(wrong, (C_API.get_per_process_memory_fraction)(wrong, &raw mut fraction));
            names(wrong, (C_API.set_per_process_memory_fraction)(wrong, 0.5));
            names(wrong, (C_API.largest_block)(wrong, &raw mut bytes));
            names(wrong, (C_API.enable_peer_access)(wrong, 0));
            names(wrong, (C_API.enable_peer_access)(0, wrong));
            names(wrong, (C_API.pool_create)(wrong, &raw const plain, &raw mut made));
            names(wrong, (C_API.pool_by_id)(wrong, &raw const pool_id, &raw mut made));
            names(wrong, (C_API.device_stats)(wrong, &raw mut stats));
            names(wrong, (C_API.reset_peak_stats)(wrong));
            names(wrong, (C_API.declare_lasting)(wrong, raw));
            names(wrong, (C_API.expect_captures)(wrong));
            names(wrong, (C_API.end_expecting_captures)(wrong));
            names(wrong, (C_API.sleep_device)(wrong, 1, &raw mut bytes));
            names(wrong, (C_API.wake_device)(wrong, &raw mut bytes));
            names(wrong, (C_API.synchronize)(wrong, raw));
            names(wrong, (C_API.warm_handles)(SIMULATED, wrong, 1, 0, &raw mut bytes));
            names(wrong, (C_API.warm_handles)(SIMULATED, wrong, 1, 1, &raw mut bytes));
            assert!((C_API.cupy_malloc)(null_mut(), 1000, wrong).is_null());
            names(wrong, INVALID_VALUE);
            if wrong == -1 {
                // All devices, the stream's own, or no stream.
                continue;
            }
            let visitor = SnapshotVisitor { size: size_of::<SnapshotVisitor>() as u64, ..zeroed() };
            names(wrong, (C_API.empty_cache)(wrong, &raw mut bytes));
            let (mut lease, mut counts) = (NO_LEASE, handle_counts(size_of::<HandleCounts>() as u64));
            names(wrong, (C_API.handle)(SIMULATED, wrong, raw, &raw mut pointer));
            names(wrong, (C_API.lease)(SIMULATED, wrong, raw, 0, &raw mut lease));
            names(wrong, (C_API.handle_stats)(SIMULATED, wrong, &raw mut counts));
            names(wrong, (C_API.reset_peak_handle_stats)(SIMULATED, wrong));
            names(wrong, (C_API.trim_handles)(SIMULATED, wrong, &raw mut bytes));
            names(wrong, (C_API.snapshot)(wrong, null(), &raw const visitor));
            assert!((C_API.malloc)(1000, wrong, raw).is_null());
            names(wrong, INVALID_VALUE);
            (C_API.free)(block, 0, wrong, raw);
            names(wrong, INVALID_VALUE);
            let (mut copy, mut room) = (token, TOKEN as u64);
            let place = copy.as_mut_ptr().cast();
            names(wrong, (C_API.share)(block, wrong, raw, 0, place, &raw mut room, &raw mut offset));
            let (mut other, place) = (null_mut(), token.as_ptr().cast());
            names(wrong, (C_API.attach)(place, TOKEN as u64, wrong, raw, &raw mut other, &raw mut pointer));
            names(wrong, (C_API.attached_record_stream)(own, wrong, raw));
            names(wrong, (C_API.detach)(own, wrong, raw));
        }
        // What was refused has changed nothing.
        assert_eq!(memory_stats(device(0)).unwrap().total.live_blocks, 1);
    }
    release(block, own, pool);
}

fn handle_counts(size: u64) -> HandleCounts {
    HandleCounts { size, ..HandleCounts::default() }
}

#[test]
fn a_library_that_is_none_is_refused_by_every_function_that_takes_one() {
    host!();
    let stream = stream(0);
    let raw = stream.raw().as_ptr();
    for wrong in [-1, 16, c_int::MIN, c_int::MAX] {
        let (mut handle, mut lease, mut number, mut is_available) = (null_mut(), NO_LEASE, 0, 0);
        let mut counts = handle_counts(size_of::<HandleCounts>() as u64);
        let named = format!("no library {wrong}");
        let words: [&str; 4] = [&named, "gpupool_library", "0 (cudnn)", "15 (cusparselt)"];
        // SAFETY: the stream and the places are alive.
        unsafe {
            failed((C_API.handle)(wrong, 0, raw, &raw mut handle), INVALID_VALUE, &words);
            failed((C_API.lease)(wrong, 0, raw, 0, &raw mut lease), INVALID_VALUE, &words);
            failed((C_API.library_is_available)(wrong, &raw mut is_available), INVALID_VALUE, &words);
            failed((C_API.handle_stats)(wrong, 0, &raw mut counts), INVALID_VALUE, &words);
            failed((C_API.reset_peak_handle_stats)(wrong, 0), INVALID_VALUE, &words);
            failed((C_API.warm_handles)(wrong, 0, 1, 0, &raw mut number), INVALID_VALUE, &words);
            failed((C_API.trim_handles)(wrong, 0, &raw mut number), INVALID_VALUE, &words);
            failed((C_API.set_handle_limit)(wrong, 1), INVALID_VALUE, &words);
        }
        assert!(handle.is_null() && lease.handle.is_null() && counts.created == 0);
    }
    // SAFETY: it takes numbers.
    failed(unsafe { (C_API.set_handle_limit)(SIMULATED, 0) }, INVALID_VALUE, &["at most 0 handles", "1 or more"]);
}

#[test]
fn a_numa_node_that_is_none_is_refused_by_every_function_that_takes_one() {
    host!();
    let mut stats = DeviceStats { size: size_of::<DeviceStats>() as u64, ..DeviceStats::default() };
    for wrong in [-2, c_int::MIN, 99, c_int::MAX] {
        let mut pointer = null_mut();
        let words = [&*wrong.to_string()];
        // SAFETY: the places are alive.
        unsafe {
            failed((C_API.allocate_pinned)(1000, wrong, &raw mut pointer), INVALID_VALUE, &words);
            failed((C_API.warm_pinned)(1000, wrong, 0), INVALID_VALUE, &words);
            failed((C_API.pinned_stats)(wrong, &raw mut stats), INVALID_VALUE, &words);
            failed((C_API.reset_peak_pinned_stats)(wrong), INVALID_VALUE, &words);
        }
        assert!(pointer.is_null());
    }
}

#[test]
fn pinned_memory_is_not_shared() {
    host!();
    let (mut pinned, mut token, mut bytes, mut offset) = (null_mut(), [0_u8; TOKEN], TOKEN as u64, 0);
    // SAFETY: all places are alive, device -1 has no stream, and the block is not used after it is freed.
    unsafe {
        succeeded((C_API.allocate_pinned)(MIB, 1, &raw mut pinned));
        let place = token.as_mut_ptr().cast();
        let refused = (C_API.share)(pinned, -1, null_mut(), 0, place, &raw mut bytes, &raw mut offset);
        failed(refused, INVALID_VALUE, &["NUMA node 1 of the host"]);
        succeeded((C_API.deallocate)(pinned));
    }
}

#[test]
fn a_null_pointer_is_refused_by_its_name() {
    host!();
    let stream = stream(0);
    let raw = stream.raw().as_ptr();
    let block = allocate(MIB, &stream);
    let (token, own) = attached(block);
    let pool = create(options());
    let (mut made, mut pointer, mut number, mut room) = (null_mut(), null_mut(), 0, TOKEN as u64);
    let (plain, pool_id) = (options(), pool.id());
    let refused = |status, name: &str| failed(status, INVALID_VALUE, &[name, "is a null pointer"]);
    // SAFETY: the places that are given are alive, and the stream is.
    unsafe {
        refused((C_API.allocate)(1, 0, raw, null_mut()), "pointer");
        refused((C_API.find_block)(block, null_mut()), "gpupool_block");
        refused((C_API.get_per_process_memory_fraction)(0, null_mut()), "fraction");
        refused((C_API.largest_block)(0, null_mut()), "bytes");
        refused((C_API.on_oom)(None, null_mut()), "callback");
        refused((C_API.remove_oom_callback)(None, null_mut()), "callback");
        refused((C_API.pool_create)(0, null(), &raw mut made), "gpupool_pool_options");
        refused((C_API.pool_create)(0, &raw const plain, null_mut()), "pool");
        refused((C_API.pool_by_id)(0, null(), &raw mut made), "id");
        refused((C_API.pool_by_id)(0, &raw const pool_id, null_mut()), "pool");
        refused((C_API.pool_id)(pool.0, null_mut()), "id");
        refused((C_API.pool_allocate)(pool.0, u64::MAX, 1, raw, null_mut()), "pointer");
        refused((C_API.pool_checkpoint)(pool.0, null_mut()), "checkpoint");
        refused((C_API.pool_restore)(pool.0, null(), null_mut(), None, None), "checkpoint");
        refused((C_API.pool_is_asleep)(pool.0, null_mut()), "is_asleep");
        refused((C_API.pool_enter)(pool.0, null_mut()), "scope");
        refused((C_API.pool_on_segment)(pool.0, None, null_mut()), "callback");
        refused((C_API.pool_remove_segment_callback)(pool.0, None, null_mut()), "callback");
        refused((C_API.device_stats)(0, null_mut()), "gpupool_device_stats");
        refused((C_API.snapshot)(0, null(), null()), "gpupool_snapshot_visitor");
        refused((C_API.visit_stacks)(null_mut(), None), "visit");
        refused((C_API.allocate_pinned)(1, -1, null_mut()), "pointer");
        refused((C_API.pinned_stats)(-1, null_mut()), "gpupool_device_stats");
        refused((C_API.handle)(SIMULATED, 0, raw, null_mut()), "handle");
        refused((C_API.lease)(SIMULATED, 0, raw, 0, null_mut()), "lease");
        refused((C_API.lease_release)(null_mut()), "lease");
        refused((C_API.lease_discard)(null_mut()), "lease");
        refused((C_API.library_is_available)(SIMULATED, null_mut()), "is_available");
        refused((C_API.handle_stats)(SIMULATED, 0, null_mut()), "gpupool_handle_stats");
        refused((C_API.pinned_snapshot)(null()), "gpupool_snapshot_visitor");
        let (mut copy, shared) = (token, token.as_ptr().cast());
        let place = copy.as_mut_ptr().cast();
        refused((C_API.share)(block, -1, null_mut(), 0, null_mut(), &raw mut room, &raw mut number), "token");
        refused((C_API.share)(block, -1, null_mut(), 0, place, null_mut(), &raw mut number), "bytes");
        refused((C_API.share)(block, -1, null_mut(), 0, place, &raw mut room, null_mut()), "offset");
        let mut other = null_mut();
        refused((C_API.attach)(null(), 0, -1, null_mut(), &raw mut other, &raw mut pointer), "token");
        refused((C_API.attach)(shared, room, -1, null_mut(), null_mut(), &raw mut pointer), "attached");
        refused((C_API.attach)(shared, room, -1, null_mut(), &raw mut other, null_mut()), "pointer");
        refused((C_API.attached_record_stream)(null(), 0, raw), "attached");
        refused((C_API.detach)(null_mut(), -1, null_mut()), "attached");
        assert_ne!((C_API.handler_alloc)(null_mut(), null_mut(), 1, raw), 0);
        refused(INVALID_VALUE, "pointer");
        for pool in [null_mut::<PoolHandle>(), ptr::without_provenance_mut(0x1234)] {
            let mut is_asleep = 0;
            let words: &[&str] = &[if pool.is_null() { "pool is a null pointer" } else { "0x1234 is not a pool" }];
            failed((C_API.pool_sleep)(pool, 0, &raw mut number), INVALID_VALUE, words);
            failed((C_API.pool_wake)(pool, &raw mut number), INVALID_VALUE, words);
            failed((C_API.pool_is_asleep)(pool, &raw mut is_asleep), INVALID_VALUE, words);
            failed((C_API.pool_enter)(pool, &raw mut number), INVALID_VALUE, words);
        }
        // There is nothing to free.
        (C_API.free)(null_mut(), 0, 0, raw);
        (C_API.cupy_free)(null_mut(), null_mut(), 0);
        (C_API.checkpoint_release)(null_mut());
        assert_eq!((C_API.handler_free)(null_mut(), null_mut(), 0, raw), 0);
        succeeded((C_API.deallocate_on)(null_mut(), 0, raw));
        assert_eq!((C_API.owns)(null()), 0);
    }
    release(block, own, pool);
}

#[test]
fn a_struct_without_its_size_is_refused() {
    host!();
    let block = allocate(MIB, &stream(0));
    let refused = |status, size: u64, name: &str| {
        failed(status, INVALID_VALUE, &[&format!("size of a {name} is {size}"), &format!("sizeof({name})")]);
    };
    for size in [0, 1, 7] {
        // SAFETY: the structs are alive, numbers and pointers alone, and refused for their size.
        unsafe {
            let mut found = Block { size, ..zeroed() };
            refused((C_API.find_block)(block, &raw mut found), size, "gpupool_block");
            let mut stats = DeviceStats { size, ..DeviceStats::default() };
            refused((C_API.device_stats)(0, &raw mut stats), size, "gpupool_device_stats");
            refused((C_API.pinned_stats)(-1, &raw mut stats), size, "gpupool_device_stats");
            let visitor = SnapshotVisitor { size, ..zeroed() };
            refused((C_API.snapshot)(0, null(), &raw const visitor), size, "gpupool_snapshot_visitor");
            refused((C_API.pinned_snapshot)(&raw const visitor), size, "gpupool_snapshot_visitor");
            let recording = Recording { size, ..zeroed() };
            refused((C_API.record)(&raw const recording), size, "gpupool_recording");
            let mut durations = Durations { size, ..Durations::default() };
            refused((C_API.pinned_times)(&raw mut durations, null_mut()), size, "gpupool_durations");
            refused((C_API.pinned_times)(null_mut(), &raw mut durations), size, "gpupool_durations");
            let mut counts = handle_counts(size);
            refused((C_API.handle_stats)(SIMULATED, 0, &raw mut counts), size, "gpupool_handle_stats");
            let (mut made, wrong) = (ptr::dangling_mut(), PoolOptions { size, ..options() });
            refused((C_API.pool_create)(0, &raw const wrong, &raw mut made), size, "gpupool_pool_options");
            assert!(made.is_null());
        }
    }
    deallocate(block);
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    host!();
    let stream = stream(0);
    let raw = stream.raw().as_ptr();
    let block = allocate(MIB, &stream);
    let (token, own) = attached(block);
    let pool = create(options());
    let mut number = 0;
    // SAFETY: the stream and the places are alive.
    unsafe {
        for bytes in [1 << 40, u64::MAX / 2, u64::MAX - 511, u64::MAX] {
            let mut pointer = ptr::dangling_mut();
            failed((C_API.allocate)(bytes, 0, raw, &raw mut pointer), OUT_OF_MEMORY, &["out of memory on device 0"]);
            assert!(pointer.is_null());
            let status = (C_API.pool_allocate)(pool.0, u64::MAX, bytes, raw, &raw mut pointer);
            failed(status, OUT_OF_MEMORY, &["out of memory on device 0"]);
            failed((C_API.allocate_pinned)(bytes, -1, &raw mut pointer), OUT_OF_MEMORY, &["out of memory"]);
            failed((C_API.warm_pinned)(bytes, -1, 0), OUT_OF_MEMORY, &["out of memory"]);
            assert_ne!((C_API.handler_alloc)(null_mut(), &raw mut pointer, bytes as usize, raw), 0);
            assert!(last_error().contains("out of memory on device 0"), "{}", last_error());
        }
        for bytes in [-1, isize::MIN] {
            assert!((C_API.malloc)(bytes, 0, raw).is_null());
            failed(INVALID_VALUE, INVALID_VALUE, &[&format!("{bytes} bytes")]);
        }
        assert!((C_API.malloc)(0, 0, raw).is_null());
        for wrong in [-0.5, 1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            failed(
                (C_API.set_per_process_memory_fraction)(0, wrong),
                INVALID_VALUE,
                &[&wrong.to_string(), "no fraction"],
            );
        }
        for wrong in [-1, 2, c_int::MIN, c_int::MAX] {
            failed((C_API.pool_sleep)(pool.0, wrong, &raw mut number), INVALID_VALUE, &[&wrong.to_string()]);
            failed((C_API.sleep_device)(0, wrong, &raw mut number), INVALID_VALUE, &[&wrong.to_string()]);
        }
        for wrong in [0, 99, u64::MAX] {
            failed((C_API.scope_leave)(wrong), INVALID_VALUE, &[&format!("{wrong} is not a scope")]);
        }
        // A token of another size than it has.
        let mut long = [0_u8; 2 * TOKEN];
        long[..TOKEN].copy_from_slice(&token);
        for wrong in [0, 8, TOKEN as u64 - 1, TOKEN as u64 + 1, 1 << 63, u64::MAX] {
            let (mut other, mut pointer) = (null_mut(), null_mut());
            let place = long.as_ptr().cast();
            let status = (C_API.attach)(place, wrong, -1, null_mut(), &raw mut other, &raw mut pointer);
            let size = format!("this one has {wrong}:");
            failed(status, INVALID_VALUE, &[if wrong < 9 { "not a token" } else { &size }]);
            assert!(other.is_null() && pointer.is_null());
        }
        for room in [0, TOKEN as u64 - 1] {
            let (mut copy, mut bytes, mut offset) = (token, room, 0);
            let place = copy.as_mut_ptr().cast();
            let status = (C_API.share)(block, -1, null_mut(), 0, place, &raw mut bytes, &raw mut offset);
            failed(status, INVALID_VALUE, &["108", &format!("room for {room}")]);
        }
        failed((C_API.end_expecting_captures)(0), INVALID_VALUE, &["expect_captures"]);
    }
    release(block, own, pool);
}

/// A function that frees by an address, and says whether it could.
type Free = fn(*mut c_void, &Stream) -> bool;

/// Every function that takes the address of a block. Those that return nothing say nothing but by `last_error`.
const FREE: [(&str, Free); 5] = [
    // SAFETY: what is no block of gpupool's is refused, as are the rest.
    ("deallocate", |pointer, _| unsafe { (C_API.deallocate)(pointer) == 0 }),
    // SAFETY: the stream is alive.
    ("deallocate_on", |pointer, stream| unsafe { (C_API.deallocate_on)(pointer, 0, stream.raw().as_ptr()) == 0 }),
    // SAFETY: the stream is alive.
    ("handler_free", |pointer, stream| unsafe {
        (C_API.handler_free)(null_mut(), pointer, 0, stream.raw().as_ptr()) == 0
    }),
    ("free", |pointer, stream| {
        let live = live();
        // SAFETY: the stream is alive.
        unsafe { (C_API.free)(pointer, 0, 0, stream.raw().as_ptr()) };
        self::live() < live
    }),
    ("cupy_free", |pointer, _| {
        let live = live();
        // SAFETY: what is no block of gpupool's is refused.
        unsafe { (C_API.cupy_free)(null_mut(), pointer, 0) };
        self::live() < live
    }),
];

fn live() -> u64 {
    memory_stats(device(0)).unwrap().total.live_blocks
}

#[test]
fn a_second_free_a_foreign_pointer_and_an_inner_one_are_refused_by_their_address() {
    host!();
    static OTHERS: u64 = 0;
    let stream = stream(0);
    let foreign = (&raw const OTHERS).cast_mut().cast::<c_void>();
    for (name, free) in FREE {
        let pointer = allocate(MIB, &stream);
        let inner = pointer.wrapping_byte_add(512);
        // SAFETY: it takes any address.
        assert_eq!([foreign, pointer, inner].map(|at| unsafe { (C_API.owns)(at) }), [0, 1, 1]);
        for (wrong, why) in [(foreign, "not memory that gpupool handed out"), (inner, "not the start of a block")] {
            assert!(!free(wrong, &stream), "{name}");
            failed(INVALID_VALUE, INVALID_VALUE, &[&format!("{wrong:p}"), why]);
        }
        assert!(free(pointer, &stream), "{name}: {}", last_error());
        assert!(!free(pointer, &stream), "{name}");
        failed(INVALID_VALUE, INVALID_VALUE, &[&format!("{pointer:p}"), "free"]);
    }
    let (pointer, raw) = (allocate(MIB, &stream), stream.raw().as_ptr());
    let inner = pointer.wrapping_byte_add(512);
    for (wrong, why) in [(foreign, "not memory that gpupool handed out"), (inner, "not the start of a block")] {
        // SAFETY: the stream is alive, and so is the block.
        unsafe {
            let mut block = Block { size: size_of::<Block>() as u64, ..zeroed() };
            let address = format!("{wrong:p}");
            failed((C_API.record_stream)(wrong, 0, raw), INVALID_VALUE, &[&address, why]);
            failed((C_API.find_block)(wrong, &raw mut block), INVALID_VALUE, &[&address, why]);
        }
    }
    let (mut token, mut bytes, mut offset) = ([0_u8; TOKEN], TOKEN as u64, 0);
    // SAFETY: the places are alive.
    let status = unsafe {
        (C_API.share)(foreign, -1, null_mut(), 0, token.as_mut_ptr().cast(), &raw mut bytes, &raw mut offset)
    };
    failed(status, INVALID_VALUE, &[&format!("{foreign:p}")]);
    assert!(FREE[0].1(pointer, &stream));
}
