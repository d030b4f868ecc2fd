//! Settling: freed blocks that waited for other streams become free once those are done. Events are queried only when a
//! request finds no free block, or memory is given back.

use crate::error::Result;
use crate::memory::cache::{StreamCache, To, Waiting, is_recorded};
use crate::observe::delivery::deliver;
use crate::process;
use crate::sync::ThisThread;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// It only queries.
    Ask,
    /// It waits only for the work on segments whose end callbacks are told of.
    Report,
    /// It waits for recorded work.
    Wait,
}

/// Keeps a freed block until what it waits for is done.
pub(super) fn wait(cache: &StreamCache, block: Waiting) {
    cache.waiting.change(|waiting| waiting.push(block));
}

/// Frees the cache's waiting blocks whose streams are done; returns whether there were any.
///
/// # Errors
/// `ErrorKind::Library` if the driver refuses. Blocks that were not asked about still wait.
pub(super) fn settle_blocks(cache: &StreamCache, thread: ThisThread, patience: Patience) -> Result<bool> {
    if cache.waiting.is_empty() {
        return Ok(false);
    }
    let _moving = cache.memory.under_way.begin();
    let mut asked = cache.waiting.change(std::mem::take);
    let mut done = Vec::new();
    let mut outcome = Ok(());
    asked.retain_mut(|block| match block.is_done(&cache.memory.events, patience == Patience::Wait) {
        Ok(true) => {
            done.extend(block.offsets());
            false
        }
        Ok(false) => true,
        Err(error) => {
            outcome = Err(error);
            true
        }
    });
    // Before an observer is called, which may want the others.
    cache.waiting.change(|waiting| {
        asked.append(waiting);
        *waiting = asked;
    });
    let has_settled = !done.is_empty();
    if has_settled {
        if process::state().is_observed() {
            // Before any thread can have the blocks.
            done.iter().for_each(|&offset| cache.note_completed(offset, To::Observer));
            deliver();
        }
        let mut heap = cache.lock(thread);
        for offset in done {
            if is_recorded() {
                cache.note_completed(offset, To::Recording);
            }
            if cache.is_lender() {
                heap.end_waiting(&cache.memory.pages, offset);
            } else {
                heap.release(&cache.memory.pages, offset);
            }
        }
    }
    outcome.map(|()| has_settled)
}
