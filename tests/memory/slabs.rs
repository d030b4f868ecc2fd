//! Slabs of small blocks: what is left of them serves large requests.

use crate::common::memory::{MIB, pool};
use crate::common::stream;
use gpupool::{empty, empty_cache};

#[test]
fn a_large_request_has_what_empty_slabs_keep() {
    memory!();
    empty_cache().unwrap();
    let (pool, stream) = (pool(), stream(0));
    let _scope = pool.enter().unwrap();
    let reserved = || pool.stats().unwrap().reserved_bytes;
    // One slab of each size stays.
    drop((9..=16).map(|bits| empty(1 << bits, &stream).unwrap()).collect::<Vec<_>>());
    let with_slabs = reserved();
    assert!(with_slabs >= 2 * MIB);
    drop(empty(with_slabs, &stream).unwrap());
    assert_eq!(reserved(), with_slabs);
}
