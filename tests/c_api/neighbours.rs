//! Neighbours and claims, by the C interface.

use std::ptr::{null, null_mut};

use crate::common::c_pools::{INVALID_VALUE, OUT_OF_MEMORY, create, failed, options, succeeded};
use crate::common::memory::MIB;
use crate::common::{MEMORY, device};
use gpupool::c_api::{C_API, ClaimHandle, PoolOptions};

fn available() -> u64 {
    let mut bytes = 0;
    // SAFETY: the place is that of a number.
    succeeded(unsafe { (C_API.available_memory)(0, &raw mut bytes) });
    bytes
}

fn claim(bytes: u64) -> (i32, *mut ClaimHandle) {
    let mut claim = null_mut();
    // SAFETY: the place is that of a pointer.
    let status = unsafe { (C_API.claim)(0, bytes, 0, &raw mut claim) };
    (status, claim)
}

#[test]
fn a_process_says_what_it_is_and_claims_memory() {
    // Nobody else is to be met.
    let folder = std::env::temp_dir().join(format!("gpupool-c-neighbours-{}", std::process::id()));
    if std::env::var_os("GPUPOOL_NEIGHBOURS").is_none() {
        std::fs::create_dir(&folder).unwrap();
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "neighbours::a_process_says_what_it_is_and_claims_memory", "--nocapture"])
            .env("GPUPOOL_NEIGHBOURS", &folder)
            .status()
            .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(ended.success());
        return;
    }
    gpupool::runtime::host::simulate(1, MEMORY).unwrap();
    // SAFETY: the name is a string, or null.
    unsafe {
        succeeded((C_API.set_neighbour)(0, c"by C".as_ptr(), MIB, 2 * MIB, -3));
        failed((C_API.set_neighbour)(0, null(), 2, 1, 0), INVALID_VALUE, &["raise the most"]);
        failed((C_API.set_neighbour)(7, null(), 0, u64::MAX, 0), INVALID_VALUE, &["no device 7"]);
    }
    let own = gpupool::neighbours(device(0)).unwrap();
    let told: Vec<_> = own.iter().map(|it| (it.name.as_str(), it.guarantee, it.most, it.priority)).collect();
    assert_eq!(told, [("by C", MIB, Some(2 * MIB), -3)]);
    assert_eq!(available(), MEMORY);
    let (status, held) = claim(MEMORY);
    succeeded(status);
    let (status, none) = claim(1);
    failed(status, OUT_OF_MEMORY, &["claim less"]);
    assert!(none.is_null());
    // SAFETY: the claim is this test's, which releases it once.
    unsafe {
        succeeded((C_API.claim_release)(held));
        failed((C_API.claim_release)(null_mut()), INVALID_VALUE, &["claim"]);
        failed((C_API.claim)(0, 1, 0, null_mut()), INVALID_VALUE, &["claim"]);
        failed((C_API.available_memory)(0, null_mut()), INVALID_VALUE, &["bytes"]);
    }
    create(PoolOptions { sleeps_for_others: 1, wakes_on_use: 1, ..options() });
    let wrong = PoolOptions { wakes_on_use: 1, ..options() };
    let mut pool = null_mut();
    // SAFETY: the options say their size.
    failed(unsafe { (C_API.pool_create)(0, &raw const wrong, &raw mut pool) }, INVALID_VALUE, &["sleeps_for_others"]);
}
