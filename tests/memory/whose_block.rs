//! Whose a block is: an address that was freed before, or is another's, frees nothing of gpupool's own.

use crate::common::memory::{MIB, assert_all_back, deallocate, pool};
use crate::common::{device, on_thread, stream};
use gpupool::memory::record_stream;
use gpupool::runtime::host::{Call, Fault, before_call, clear_before_call, clear_faults, inject};
use gpupool::{Backup, ErrorKind, PinnedBuffer, Result, StatusKind, empty, empty_pinned, memory_stats};

/// The address of pinned memory that was freed, which the next request for as much gets.
fn freed(bytes: u64) -> u64 {
    let address = empty_pinned(bytes, None).unwrap().into_ptr();
    deallocate(address, None).unwrap();
    address
}

/// gpupool holds the block at this address itself, and the call says so.
#[track_caller]
fn assert_gpupools(outcome: Result<()>, address: u64) {
    let error = outcome.expect_err("the block is gpupool's own");
    assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
    let text = error.to_string();
    let words = [&*format!("{address:#x}"), "gpupool has for its own work", "freed before"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

fn fill(buffer: &mut PinnedBuffer, byte: u8) {
    // SAFETY: no device uses the memory.
    unsafe { buffer.as_mut_slice() }.fill(byte);
}

#[test]
fn a_second_free_does_not_free_the_backup_of_a_sleeping_pool() {
    memory!();
    let stream = stream(0);
    let pool = pool();
    let weights = pool.empty(4 * MIB, &stream).unwrap();
    weights.copy_from(&[7; 4 << 20], &stream).unwrap();
    let address = freed(4 * MIB);
    pool.sleep(Backup::Host).unwrap();
    assert_gpupools(deallocate(address, None), address);
    assert_gpupools(deallocate(address, Some(&stream)), address);
    assert_gpupools(on_thread(move || deallocate(address, None)), address);
    assert_gpupools(record_stream(address, &stream), address);
    let mut other = empty_pinned(4 * MIB, None).unwrap();
    assert_ne!(other.ptr(), address);
    fill(&mut other, 1);
    pool.wake().unwrap();
    let mut found = vec![0; 4 << 20];
    weights.copy_to(&mut found, &stream).unwrap();
    assert!(found.iter().all(|&byte| byte == 7), "the pool woke with other bytes");
    // gpupool's own end has freed the backup, whose memory is anyone's again.
    assert_eq!(freed(4 * MIB), address);
}

#[test]
fn a_second_free_does_not_free_the_memory_that_a_copy_goes_by() {
    memory!();
    let stream = stream(0);
    let buffer = empty(MIB, &stream).unwrap();
    let address = freed(MIB);
    before_call(Call::CopyToDevice, 0, move || assert_gpupools(deallocate(address, None), address));
    buffer.copy_from(&[7; 1 << 20], &stream).unwrap();
    assert_eq!(clear_before_call(), 0, "the copy was met");
    assert_eq!(freed(MIB), address);
}

#[test]
fn a_block_whose_free_is_refused_is_as_it_was_and_a_buffer_is_freed_as_by_dropping_it() {
    memory!();
    let (own, elsewhere) = (stream(0), stream(1));
    let live = || memory_stats(device(0)).unwrap().total.live_blocks;
    let is_of_stream = |error: &gpupool::Error| matches!(error.kind(), ErrorKind::InvalidValue(_));
    let error = empty(40 * MIB, &own).unwrap().free_on(&elsewhere).unwrap_err();
    assert!(is_of_stream(&error), "{error}");
    assert_eq!(live(), 0);
    let address = empty(40 * MIB, &own).unwrap().into_ptr();
    let error = deallocate(address, Some(&elsewhere)).unwrap_err();
    assert!(is_of_stream(&error), "{error}");
    assert_eq!(live(), 1);
    deallocate(address, None).unwrap();
}

#[test]
fn a_free_that_the_driver_keeps_memory_of_is_one() {
    memory!();
    let stream = stream(0);
    for call in [Call::MemoryUnmap, Call::ExtentRelease, Call::Bind, Call::ExchangeCaptureMode] {
        for is_elsewhere in [false, true] {
            let pool = pool();
            let address = pool.empty(4 * MIB, &stream).unwrap().into_ptr();
            pool.close().unwrap();
            inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 });
            // Whoever is told that it failed would free it once more.
            deallocate(address, is_elsewhere.then_some(&stream)).unwrap();
            clear_faults();
            let error = deallocate(address, None).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::InvalidValue(_)), "{error}");
            drop(pool);
            assert_all_back();
        }
    }
}
