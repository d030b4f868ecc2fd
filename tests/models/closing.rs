//! A pool that is dropped, asleep or not, while threads free its last blocks, in random schedules of the real code: its memory
//! is back once all are done.

use gpupool::runtime::host::schedule::{self, Body};
use gpupool::{Backup, Device, MemPool, Stream, empty_cache, memory_stats, pinned_stats};

use crate::common::turns;

const PAGE: u64 = 2 << 20;
const DEVICE: Device = Device::from_ordinal(0);

/// Yields new pools, each with the size of its blocks and the seed of its schedule.
fn pools() -> impl Iterator<Item = (MemPool, u64, u64)> {
    let make = || MemPool::builder().device(DEVICE).build().unwrap();
    turns(20).flat_map(move |seed| [512, PAGE].map(|bytes| (make(), bytes, seed)))
}

#[test]
fn the_last_free_of_a_dropped_pool_gives_its_memory_back() {
    host!(1, 16 * PAGE);
    let stream = Stream::new(DEVICE).unwrap();
    for (pool, bytes, seed) in pools() {
        let block = pool.empty(bytes, &stream).unwrap();
        let freeing: Body = Box::new(move || drop(block));
        let dropping: Body = Box::new(move || drop(pool));
        assert!(schedule::run(seed, vec![freeing, dropping]).is_ok(), "schedule {seed}");
        let reserved = memory_stats(DEVICE).unwrap().total.reserved_bytes;
        assert_eq!(reserved, 0, "of blocks of {bytes} bytes in schedule {seed}");
        empty_cache().unwrap();
    }
}

#[test]
fn the_last_frees_of_a_dropped_pool_that_sleeps_give_its_backup_back() {
    host!(1, 16 * PAGE);
    let stream = Stream::new(DEVICE).unwrap();
    for (pool, bytes, seed) in pools() {
        let blocks = [(); 2].map(|()| pool.empty(bytes, &stream).unwrap());
        pool.sleep(Backup::Host).unwrap();
        drop(pool);
        let bodies = blocks.map(|block| Box::new(move || drop(block)) as Body).into_iter();
        let emptying: Body = Box::new(|| _ = empty_cache().unwrap());
        assert!(schedule::run(seed, bodies.chain([emptying]).collect()).is_ok(), "schedule {seed}");
        let live = pinned_stats(None).unwrap().total.live_bytes;
        assert_eq!(live, 0, "of blocks of {bytes} bytes in schedule {seed}");
    }
}
