//! What was sent to a process that has not taken it up yet: held, so that the sender need not keep it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::SharedBlock;
use crate::sync::lock;

#[derive(Debug)]
struct Parcels {
    by_number: BTreeMap<u64, Arc<SharedBlock>>,
    next: u64,
}

static PARCELS: Mutex<Parcels> = Mutex::new(Parcels { by_number: BTreeMap::new(), next: 1 });

/// Holds a block until the returned number has arrived; none if it was freed.
pub(in crate::memory::share) fn hold(block: &Arc<SharedBlock>) -> Option<u64> {
    if !block.sharing.hold() {
        return None;
    }
    block.memory().sent.fetch_add(block.bytes, Ordering::Relaxed);
    let mut parcels = lock(&PARCELS);
    let number = parcels.next;
    parcels.next += 1;
    parcels.by_number.insert(number, Arc::clone(block));
    Some(number)
}

/// Returns whether a block was sent under a number, and has not arrived.
pub(super) fn is_under_way(number: u64, block: &SharedBlock) -> bool {
    number > 0 && lock(&PARCELS).by_number.get(&number).is_some_and(|sent| sent.number == block.number)
}

/// Holds a block for a process that has its token: also one that was freed, where the token was sent and has not arrived.
pub(in crate::memory::share) fn hold_for_another(block: &SharedBlock, parcel: u64) -> bool {
    if is_under_way(parcel, block) { block.sharing.hold_again() } else { block.sharing.hold() }
}

/// Ends what was held of a block under a number, which has arrived.
pub(in crate::memory::share) fn arrived(number: u64, block: &SharedBlock) {
    let sent = {
        let mut parcels = lock(&PARCELS);
        let is_its = parcels.by_number.get(&number).is_some_and(|sent| sent.number == block.number);
        if is_its { parcels.by_number.remove(&number) } else { None }
    };
    if let Some(sent) = sent {
        sent.memory().sent.fetch_sub(sent.bytes, Ordering::Relaxed);
        sent.sharing.let_go();
    }
}
