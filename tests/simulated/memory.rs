//! The simulated devices' memory has real bytes, is mapped as CUDA maps it, and refuses what the driver refuses.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::common::memory::{read, used, write};
use crate::common::{MEMORY, device, on_thread, stream};
use gpupool::library::Library;
use gpupool::library::simulated::SimulatedLibrary;
use gpupool::runtime::host::{
    Call, Fault, accessible, begin_capture, clear_faults, complete_all, driver_calls, end_capture, inject, submit,
};
use gpupool::runtime::{self, BoundDevice, Extent, RelaxedCapture, Runtime};
use gpupool::{CaptureMode, CaptureStatus, Device, ErrorKind, Event, MemoryLocation, Result, StatusKind, Stream};

const PAGE: u64 = 2 << 20;

fn driver() -> &'static dyn Runtime {
    runtime::get().unwrap()
}

fn location(ordinal: u32) -> MemoryLocation {
    device(ordinal).into()
}

// The calls without `unsafe`, which the simulated platform does not need: it refuses what does not fit.

fn map(address: u64, bytes: u64, extent: Extent) -> Result<()> {
    // SAFETY: the simulated platform checks that the addresses are free and the memory is alive.
    unsafe { driver().memory_map(address, bytes, extent) }
}

fn set_access(address: u64, bytes: u64, devices: &[Device]) -> Result<()> {
    // SAFETY: the simulated platform checks that the range is mapped.
    unsafe { driver().memory_set_access(address, bytes, &devices.iter().copied().map(Into::into).collect::<Vec<_>>()) }
}

fn unmap(address: u64, bytes: u64) -> Result<()> {
    // SAFETY: the simulated platform checks that the range is mapped, and no test uses it afterwards.
    unsafe { driver().memory_unmap(address, bytes) }
}

fn release(extent: Extent) -> Result<()> {
    // SAFETY: the simulated platform checks that the handle is alive.
    unsafe { driver().extent_release(extent) }
}

fn export(extent: Extent) -> Result<OwnedFd> {
    // SAFETY: the simulated platform checks that the extent is alive.
    unsafe { driver().extent_export(extent) }
}

fn import(descriptor: &OwnedFd) -> Result<Extent> {
    driver().extent_import(descriptor.as_fd())
}

fn give_up(address: u64, bytes: u64) -> Result<()> {
    // SAFETY: the simulated platform checks that this is a reservation without mappings.
    unsafe { driver().address_free(address, bytes) }
}

fn free(address: u64) -> Result<()> {
    // SAFETY: the simulated platform checks that this is an allocation, and no test uses it afterwards.
    unsafe { driver().memory_free(address) }
}

#[track_caller]
fn assert_code<T: fmt::Debug>(result: Result<T>, code: i32) {
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Library(refused) if refused.code == code), "{error}");
}

#[track_caller]
fn assert_out_of_memory<T: fmt::Debug>(result: Result<T>) {
    let error = result.unwrap_err();
    let ErrorKind::Library(refused) = error.kind() else { panic!("{error}") };
    assert_eq!((refused.code, refused.kind), (2, StatusKind::OutOfMemory), "{error}");
}

#[test]
fn bytes_survive_a_move_between_two_addresses() {
    memory!();
    let driver = driver();
    let (from, to) = (driver.address_reserve(2 * PAGE).unwrap(), driver.address_reserve(4 * PAGE).unwrap());
    assert_eq!((from % PAGE, to % PAGE), (0, 0));
    let extent = driver.extent_create(location(0), 2 * PAGE).unwrap();
    map(from, 2 * PAGE, extent).unwrap();
    set_access(from, 2 * PAGE, &[device(0)]).unwrap();
    write(from, 17);
    write(from + 2 * PAGE - 8, 18);
    // Both addresses are the same bytes.
    map(to + PAGE, 2 * PAGE, extent).unwrap();
    set_access(to + PAGE, 2 * PAGE, &[device(0)]).unwrap();
    assert_eq!((read(to + PAGE), read(to + 3 * PAGE - 8)), (17, 18));
    write(to + PAGE + 8, 19);
    assert_eq!(read(from + 8), 19);
    // The memory outlives the first address and the handle.
    unmap(from, 2 * PAGE).unwrap();
    release(extent).unwrap();
    give_up(from, 2 * PAGE).unwrap();
    assert_eq!((read(to + PAGE), read(to + PAGE + 8)), (17, 19));
    assert_eq!(used(0), 2 * PAGE);
    unmap(to + PAGE, 2 * PAGE).unwrap();
    assert_eq!(used(0), 0);
    give_up(to, 4 * PAGE).unwrap();
}

#[test]
fn memory_that_was_freed_comes_back_empty() {
    memory!();
    let driver = driver();
    let address = driver.address_reserve(PAGE).unwrap();
    for round in 0..3 {
        let extent = driver.extent_create(location(1), PAGE).unwrap();
        map(address, PAGE, extent).unwrap();
        set_access(address, PAGE, &[device(1)]).unwrap();
        assert_eq!(read(address), 0);
        write(address, round + 1);
        unmap(address, PAGE).unwrap();
        assert_eq!(used(1), PAGE);
        release(extent).unwrap();
        assert_eq!(used(1), 0);
    }
    give_up(address, PAGE).unwrap();
}

#[test]
fn devices_have_bytes_of_their_own() {
    memory!();
    let driver = driver();
    let address = driver.address_reserve(2 * PAGE).unwrap();
    for ordinal in 0..2 {
        let extent = driver.extent_create(location(ordinal), PAGE).unwrap();
        map(address + u64::from(ordinal) * PAGE, PAGE, extent).unwrap();
        release(extent).unwrap();
    }
    // One call for both mappings.
    set_access(address, 2 * PAGE, &[device(0)]).unwrap();
    write(address, 1);
    write(address + PAGE, 2);
    assert_eq!((read(address), read(address + PAGE)), (1, 2));
    assert_eq!((used(0), used(1)), (PAGE, PAGE));
    unmap(address, 2 * PAGE).unwrap();
    assert_eq!((used(0), used(1)), (0, 0));
    give_up(address, 2 * PAGE).unwrap();
}

#[test]
fn the_capacity_is_exact_and_never_scattered() {
    memory!();
    let driver = driver();
    let small: Vec<_> = (0..MEMORY / PAGE).map(|_| driver.extent_create(location(0), PAGE).unwrap()).collect();
    assert_out_of_memory(driver.extent_create(location(0), PAGE));
    assert_out_of_memory(driver.memory_allocate(1));
    // The handles of a library take from the same memory.
    assert_out_of_memory(SimulatedLibrary.create(device(0)));
    let info = driver.memory_info().unwrap();
    assert_eq!((info.free, info.total), (0, MEMORY));
    assert_eq!(driver.total_memory(location(0)).unwrap(), MEMORY);
    // Every second one goes, which leaves half the memory to one of any size.
    let (gone, kept): (Vec<_>, Vec<_>) = small.iter().enumerate().partition(|(index, _)| index % 2 == 0);
    gone.into_iter().for_each(|(_, &extent)| release(extent).unwrap());
    let large = driver.extent_create(location(0), MEMORY / 2).unwrap();
    assert_out_of_memory(driver.extent_create(location(0), PAGE));
    kept.into_iter().for_each(|(_, &extent)| release(extent).unwrap());
    release(large).unwrap();
    release(driver.extent_create(location(0), MEMORY).unwrap()).unwrap();
    assert_out_of_memory(driver.extent_create(location(0), MEMORY + PAGE));
    assert_eq!(used(0), 0);
}

#[test]
fn sizes_and_addresses_are_whole_pages() {
    memory!();
    let driver = driver();
    assert_eq!(driver.page_bytes(location(0)).unwrap(), PAGE);
    for bytes in [0, 1, PAGE - 1, PAGE + 4096] {
        assert_code(driver.address_reserve(bytes), 1);
        assert_code(driver.extent_create(location(0), bytes), 1);
    }
    assert_out_of_memory(driver.address_reserve(u64::MAX - PAGE + 1));
    let (address, extent) =
        (driver.address_reserve(2 * PAGE).unwrap(), driver.extent_create(location(0), PAGE).unwrap());
    assert_code(map(address + 4096, PAGE, extent), 1);
    assert_code(map(address, PAGE / 2, extent), 1);
    map(address, PAGE, extent).unwrap();
    assert_code(set_access(address, PAGE / 2, &[device(0)]), 1);
    assert_code(unmap(address, PAGE / 2), 1);
    unmap(address, PAGE).unwrap();
    release(extent).unwrap();
    give_up(address, 2 * PAGE).unwrap();
}

#[test]
fn mapping_refuses_what_is_not_free_reserved_and_alive() {
    memory!();
    let driver = driver();
    let address = driver.address_reserve(4 * PAGE).unwrap();
    let [one, two] = [PAGE, 2 * PAGE].map(|bytes| driver.extent_create(location(0), bytes).unwrap());
    // Outside of a reservation, or only partly in it.
    assert_code(map(PAGE, PAGE, one), 1);
    assert_code(map(address + 4 * PAGE, PAGE, one), 1);
    assert_code(map(address + 3 * PAGE, 2 * PAGE, two), 1);
    // Not the whole handle.
    assert_code(map(address, PAGE, two), 1);
    assert_code(map(address, 2 * PAGE, one), 1);
    // Over a mapping: from before, inside and the same.
    map(address + PAGE, 2 * PAGE, two).unwrap();
    assert_code(map(address, 2 * PAGE, two), 1);
    assert_code(map(address + 2 * PAGE, PAGE, one), 1);
    assert_code(map(address + PAGE, 2 * PAGE, two), 1);
    map(address, PAGE, one).unwrap();
    // Released handles: their mappings live, but nothing can be done with them again.
    release(one).unwrap();
    assert_code(release(one), 1);
    assert_code(map(address + 3 * PAGE, PAGE, one), 1);
    assert_eq!(used(0), 3 * PAGE);
    unmap(address, 3 * PAGE).unwrap();
    assert_code(release(one), 1);
    release(two).unwrap();
    assert_eq!(used(0), 0);
    give_up(address, 4 * PAGE).unwrap();
}

#[test]
fn unmapping_and_access_take_whole_mappings_only() {
    memory!();
    let driver = driver();
    let address = driver.address_reserve(6 * PAGE).unwrap();
    let [two, one] = [2 * PAGE, PAGE].map(|bytes| driver.extent_create(location(0), bytes).unwrap());
    // Pages: two, two, one, hole, one, hole. The same memory may be there twice.
    map(address, 2 * PAGE, two).unwrap();
    map(address + 2 * PAGE, PAGE, one).unwrap();
    map(address + 4 * PAGE, PAGE, one).unwrap();
    for (first, pages) in [(0, 1), (1, 1), (1, 2), (3, 1), (0, 4), (0, 5), (3, 2), (4, 2), (5, 1)] {
        assert_code(unmap(address + first * PAGE, pages * PAGE), 1);
        assert_code(set_access(address + first * PAGE, pages * PAGE, &[device(0)]), 1);
    }
    assert_code(set_access(address, 2 * PAGE, &[]), 1);
    let missing = set_access(address, 2 * PAGE, &[Device::from_ordinal(2)]).unwrap_err();
    assert!(matches!(missing.kind(), ErrorKind::InvalidValue(_)), "{missing}");
    // A reservation goes whole, and once nothing is mapped in it.
    assert_code(give_up(address, 6 * PAGE), 1);
    unmap(address, 3 * PAGE).unwrap();
    assert_code(unmap(address, 3 * PAGE), 1);
    unmap(address + 4 * PAGE, PAGE).unwrap();
    assert_code(give_up(address, 5 * PAGE), 1);
    assert_code(give_up(address + PAGE, 5 * PAGE), 1);
    give_up(address, 6 * PAGE).unwrap();
    assert_code(give_up(address, 6 * PAGE), 1);
    release(two).unwrap();
    release(one).unwrap();
    assert_eq!(used(0), 0);
}

#[test]
fn access_is_given_to_devices_one_by_one() {
    memory!();
    let driver = driver();
    assert!(driver.supports_virtual_memory(location(0)).unwrap());
    assert!(driver.can_access_peer(device(0), device(1)).unwrap());
    assert!(!driver.can_access_peer(device(1), device(1)).unwrap());
    let (address, extent) = (driver.address_reserve(PAGE).unwrap(), driver.extent_create(location(0), PAGE).unwrap());
    let who = || [0, 1].map(|ordinal| accessible(address + PAGE - 1, device(ordinal)));
    assert_eq!(who(), [false, false]);
    map(address, PAGE, extent).unwrap();
    assert_eq!(who(), [false, false]);
    set_access(address, PAGE, &[device(1)]).unwrap();
    assert_eq!(who(), [false, true]);
    set_access(address, PAGE, &[device(0)]).unwrap();
    assert_eq!(who(), [true, true]);
    assert!(!accessible(address + PAGE, device(0)));
    unmap(address, PAGE).unwrap();
    assert_eq!(who(), [false, false]);
    // A new mapping starts without.
    map(address, PAGE, extent).unwrap();
    assert_eq!(who(), [false, false]);
    unmap(address, PAGE).unwrap();
    release(extent).unwrap();
    give_up(address, PAGE).unwrap();
    let allocated = driver.memory_allocate(100).unwrap();
    assert!(accessible(allocated + 99, device(0)) && !accessible(allocated, device(1)));
    free(allocated).unwrap();
    assert!(!accessible(allocated, device(0)));
}

#[test]
fn allocations_have_bytes_and_freeing_waits_for_their_device() {
    memory!();
    let driver = driver();
    let (here, there) = (stream(0), stream(1));
    let bound = BoundDevice::new(driver, device(1)).unwrap();
    let address = driver.memory_allocate(PAGE + 1).unwrap();
    drop(bound);
    assert_eq!((used(0), used(1)), (0, 2 * PAGE));
    write(address + PAGE, 5);
    assert_eq!(read(address + PAGE), 5);
    submit(&here).unwrap();
    submit(&there).unwrap();
    // What is unknown waits for nothing.
    assert_code(free(address + PAGE), 1);
    assert!(!there.query().unwrap());
    free(address).unwrap();
    assert!(there.query().unwrap() && !here.query().unwrap());
    assert_code(free(address), 1);
    assert_eq!(used(1), 0);
    assert_code(driver.memory_allocate(0), 1);
    complete_all().unwrap();
    assert!(here.query().unwrap());
}

#[test]
fn the_ordered_calls_take_the_streams_device_and_do_not_wait() {
    memory!();
    let stream = stream(1);
    submit(&stream).unwrap();
    // SAFETY: the stream is alive, and the memory is freed once.
    unsafe {
        let address = driver().allocate_async(64, stream.raw()).unwrap();
        assert_eq!((used(0), used(1)), (0, PAGE));
        driver().free_async(address, stream.raw()).unwrap();
        assert_code(driver().free_async(address, stream.raw()), 1);
    }
    assert_eq!(used(1), 0);
    assert!(!stream.query().unwrap());
}

/// Memory for calls that are to be tried: all of it is where the call can be made.
struct Prepared {
    address: u64,
    mapped: Extent,
    loose: Extent,
    allocated: u64,
    stream: Stream,
    event: Event,
}

type Attempt = fn(&Prepared) -> Result<()>;

/// Every call that a capture forbids.
const ATTEMPTS: &[(&str, Attempt)] = &[
    ("extent_create", |_| driver().extent_create(location(0), PAGE).and_then(release)),
    ("memory_map", |p| map(p.address + PAGE, PAGE, p.loose)),
    ("memory_set_access", |p| set_access(p.address, PAGE, &[device(0)])),
    ("memory_unmap", |p| unmap(p.address, PAGE)),
    ("extent_release", |p| release(p.mapped)),
    ("memory_allocate", |_| driver().memory_allocate(1).and_then(free)),
    ("memory_free", |p| free(p.allocated)),
    ("allocate_async", |p| {
        // SAFETY: the stream is alive.
        unsafe { driver().allocate_async(1, p.stream.raw()) }.and_then(free)
    }),
    ("free_async", |p| {
        // SAFETY: the stream is alive, and the simulated platform checks the memory.
        unsafe { driver().free_async(p.allocated, p.stream.raw()) }
    }),
    ("stream_query", |p| p.stream.query().map(drop)),
    ("stream_synchronize", |p| p.stream.synchronize()),
    ("event_query", |p| p.event.query().map(drop)),
    ("event_synchronize", |p| p.event.synchronize()),
];

fn prepare() -> Prepared {
    let driver = driver();
    let address = driver.address_reserve(2 * PAGE).unwrap();
    let [mapped, loose] = [0, 1].map(|_| driver.extent_create(location(0), PAGE).unwrap());
    map(address, PAGE, mapped).unwrap();
    let allocated = driver.memory_allocate(PAGE).unwrap();
    Prepared { address, mapped, loose, allocated, stream: stream(0), event: Event::new(device(0)).unwrap() }
}

/// Frees whatever the attempts left.
fn clean_up(prepared: &Prepared) {
    for page in 0..2 {
        let _ = unmap(prepared.address + page * PAGE, PAGE);
    }
    let _ = (release(prepared.mapped), release(prepared.loose), free(prepared.allocated));
    give_up(prepared.address, 2 * PAGE).unwrap();
}

#[test]
fn memory_calls_spoil_captures_unless_the_thread_is_relaxed() {
    memory!();
    for (name, attempt) in ATTEMPTS {
        let (prepared, captured) = (Arc::new(prepare()), stream(0));
        let before = used(0);
        begin_capture(&captured, CaptureMode::Global).unwrap();
        let (theirs, attempt) = (Arc::clone(&prepared), *attempt);
        on_thread(move || assert_code(attempt(&theirs), 900));
        assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Invalidated, "{name}");
        assert_code(end_capture(&captured), 901);
        assert_eq!(used(0), before, "{name} did nothing");
        // A capture of this thread alone forbids nothing to others, and nothing to itself where it is relaxed.
        begin_capture(&captured, CaptureMode::ThreadLocal).unwrap();
        let relaxed = RelaxedCapture::new(driver()).unwrap();
        attempt(&prepared).unwrap_or_else(|error| panic!("{name}: {error}"));
        drop(relaxed);
        assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Active, "{name}");
        end_capture(&captured).unwrap();
        clean_up(&prepared);
    }
    assert_eq!(used(0), 0);
}

#[test]
fn reservations_and_questions_about_devices_spoil_no_capture() {
    memory!();
    let captured = stream(0);
    begin_capture(&captured, CaptureMode::Global).unwrap();
    let address = driver().address_reserve(PAGE).unwrap();
    give_up(address, PAGE).unwrap();
    driver().page_bytes(location(0)).unwrap();
    driver().total_memory(location(0)).unwrap();
    driver().can_access_peer(device(0), device(1)).unwrap();
    end_capture(&captured).unwrap();
}

type Question = fn(&Stream, &Event) -> Result<()>;

#[test]
fn asking_about_a_captured_event_or_stream_spoils_the_capture_in_any_mode() {
    memory!();
    let (captured, event) = (stream(0), Event::new(device(0)).unwrap());
    let questions: [(Question, i32); 4] = [
        (|_, event| event.query().map(drop), 907),
        (|_, event| event.synchronize(), 907),
        (|stream, _| stream.query().map(drop), 900),
        (|stream, _| stream.synchronize(), 900),
    ];
    for (ask, code) in questions {
        begin_capture(&captured, CaptureMode::Relaxed).unwrap();
        event.record(&captured).unwrap();
        assert_code(ask(&captured, &event), code);
        assert_eq!(captured.capture_status().unwrap(), CaptureStatus::Invalidated);
        assert_code(end_capture(&captured), 901);
    }
    // The event stays captured after its capture, harms no later one, and is free once it is recorded anew.
    assert_code(event.query(), 907);
    begin_capture(&captured, CaptureMode::Relaxed).unwrap();
    assert_code(event.query(), 907);
    end_capture(&captured).unwrap();
    event.record(&captured).unwrap();
    assert!(event.query().unwrap());
}

#[test]
fn what_was_exported_is_the_same_memory_and_stays_without_its_descriptor() {
    memory!();
    let driver = driver();
    let before = used(0);
    let (address, other) = (driver.address_reserve(2 * PAGE).unwrap(), driver.address_reserve(2 * PAGE).unwrap());
    let extents = [1, 2].map(|_| driver.extent_create(location(0), PAGE).unwrap());
    for (at, extent) in (0..).zip(extents) {
        map(address + at * PAGE, PAGE, extent).unwrap();
        let imported = import(&export(extent).unwrap()).unwrap();
        map(other + at * PAGE, PAGE, imported).unwrap();
        release(imported).unwrap();
        assert_code(export(imported), 1);
    }
    set_access(address, 2 * PAGE, &[device(0)]).unwrap();
    set_access(other, 2 * PAGE, &[device(1)]).unwrap();
    write(address + PAGE, 21);
    write(other, 22);
    assert_eq!((read(other + PAGE), read(address)), (21, 22));
    // It is counted once, where it was made.
    assert_eq!(used(0), before + 2 * PAGE);
    unmap(address, 2 * PAGE).unwrap();
    unmap(other, 2 * PAGE).unwrap();
    for extent in extents {
        release(extent).unwrap();
    }
    assert_eq!(used(0), before);
    give_up(address, 2 * PAGE).unwrap();
    give_up(other, 2 * PAGE).unwrap();
}

#[test]
fn every_memory_call_can_fail_and_then_does_nothing() {
    memory!();
    let attempts: [(Call, Attempt); 12] = [
        (Call::AddressReserve, |_| driver().address_reserve(PAGE).map(drop)),
        (Call::AddressFree, |p| give_up(p.address, 2 * PAGE)),
        (Call::ExtentCreate, |_| driver().extent_create(location(0), PAGE).map(drop)),
        (Call::ExtentRelease, |p| release(p.loose)),
        (Call::ExtentExport, |p| export(p.loose).map(drop)),
        (Call::ExtentImport, |p| import(&export(p.loose)?).map(drop)),
        (Call::MemoryMap, |p| map(p.address + PAGE, PAGE, p.loose)),
        (Call::MemorySetAccess, |p| set_access(p.address, PAGE, &[device(0)])),
        (Call::MemoryUnmap, |p| unmap(p.address, PAGE)),
        (Call::MemoryAllocate, |_| driver().memory_allocate(1).map(drop)),
        (Call::MemoryFree, |p| free(p.allocated)),
        (Call::PageBytes, |_| driver().page_bytes(location(0)).map(drop)),
    ];
    let (prepared, before) = (prepare(), used(0));
    for (call, attempt) in attempts {
        assert!(Call::ALL.contains(&call));
        inject(Fault { call, kind: StatusKind::OutOfMemory, after: 0, times: 1 });
        assert_out_of_memory(attempt(&prepared));
        inject(Fault { call, kind: StatusKind::Other, after: 0, times: 1 });
        assert_code(attempt(&prepared), 999);
        assert_eq!(used(0), before, "{call:?}");
    }
    clear_faults();
    // All is as it was, so each of these still has something to do.
    set_access(prepared.address, PAGE, &[device(0)]).unwrap();
    map(prepared.address + PAGE, PAGE, prepared.loose).unwrap();
    unmap(prepared.address, 2 * PAGE).unwrap();
    release(prepared.loose).unwrap();
    release(prepared.mapped).unwrap();
    free(prepared.allocated).unwrap();
    give_up(prepared.address, 2 * PAGE).unwrap();
    assert_eq!(used(0), before - 3 * PAGE);
}

#[test]
fn memory_calls_are_counted() {
    memory!();
    let driver = driver();
    let before = driver_calls();
    let address = driver.address_reserve(PAGE).unwrap();
    driver.page_bytes(location(0)).unwrap();
    driver.memory_info().unwrap();
    assert_eq!(driver_calls(), before);
    let extent = driver.extent_create(location(0), PAGE).unwrap();
    map(address, PAGE, extent).unwrap();
    set_access(address, PAGE, &[device(0)]).unwrap();
    unmap(address, PAGE).unwrap();
    release(extent).unwrap();
    free(driver.memory_allocate(1).unwrap()).unwrap();
    // A refused one counts too.
    assert_code(free(1), 1);
    assert_eq!(driver_calls(), before + 8);
    give_up(address, PAGE).unwrap();
}
