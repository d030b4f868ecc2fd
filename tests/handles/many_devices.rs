//! More devices than most machines have.

use std::collections::HashSet;
use std::thread;

use gpupool::{Device, Pooled, Simulated, Stream};

const DEVICES: u32 = 20;

#[test]
fn every_device_has_its_own_handle_and_gets_it_back() {
    host!(DEVICES, 1 << 30);
    let pool = Simulated::pool();
    let take_all = move || -> Vec<usize> {
        let take =
            |ordinal| pool.handle(&Stream::legacy(Device::from_ordinal(ordinal)).unwrap()).unwrap().as_ptr().addr();
        let first: Vec<_> = (0..DEVICES).map(take).collect();
        assert_eq!((0..DEVICES).map(take).collect::<Vec<_>>(), first);
        first
    };
    let first = thread::spawn(take_all).join().unwrap();
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), DEVICES as usize);
    assert_eq!(thread::spawn(take_all).join().unwrap(), first);
    let stats = pool.stats(None).unwrap();
    assert_eq!((stats.created, stats.idle, stats.hits), (DEVICES.into(), DEVICES.into(), 2 * u64::from(DEVICES)));
}
