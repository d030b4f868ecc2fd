//! What can be set can be read.

use crate::common::device;
use gpupool::memory::{MemoryAction, MemoryLimit, memory_limit, set_memory_limit};
use gpupool::{Device, Recording, StackContext, enable_peer_access, on_oom, oom_callbacks, peers};

#[test]
fn the_limit_of_all_devices() {
    memory!();
    assert_eq!(memory_limit().unwrap(), MemoryLimit::default());
    let limit = MemoryLimit { fraction: Some(0.5), bytes: Some(1 << 20) };
    let former = set_memory_limit(limit).unwrap();
    assert_eq!(memory_limit().unwrap(), limit);
    set_memory_limit(former).unwrap();
    assert_eq!(memory_limit().unwrap(), MemoryLimit::default());
}

fn frees_nothing(_: Device, _: u64) -> bool {
    false
}

#[test]
fn the_callbacks_in_the_order_in_which_they_are_called() {
    memory!();
    let (first, second) = (on_oom(frees_nothing), on_oom(|_, _| true));
    let names = oom_callbacks().unwrap();
    assert!(names[0].ends_with("frees_nothing") && names[1].ends_with("{{closure}}"), "{names:?}");
    drop(first);
    assert_eq!(oom_callbacks().unwrap(), names[1..]);
    drop(second);
    assert!(oom_callbacks().unwrap().is_empty());
}

#[test]
fn what_is_recorded() {
    memory!();
    assert!(Recording::running().unwrap().is_none());
    let wanted = Recording::new().events(false).context(StackContext::Alloc).max_entries(77);
    wanted.skip([MemoryAction::Alloc]).start().unwrap();
    let running = Recording::running().unwrap().unwrap();
    let told = (running.has_events(), running.stacks(), running.most(), running.skipped().collect::<Vec<_>>());
    assert_eq!(told, (false, StackContext::Alloc, 77, vec![MemoryAction::Alloc]));
    Recording::stop().unwrap();
    assert!(Recording::running().unwrap().is_none());
}

#[test]
fn peers_of_a_device() {
    memory!();
    assert_eq!(peers(device(0)).unwrap(), []);
    enable_peer_access(device(0), device(1)).unwrap();
    assert_eq!((peers(device(0)).unwrap(), peers(device(1)).unwrap()), (vec![device(1)], vec![]));
}
