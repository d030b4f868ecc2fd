//! Free pages of other caches that are moved to a request: those of its own pool first, until there are enough.

use std::sync::Arc;

use super::growth::Growth;
use crate::error::Result;
use crate::memory::cache::{DeviceCaches, Service, StreamCache};
use crate::memory::device::{Mapping, Remains, Until};
use crate::memory::pool::Pool;
use crate::memory::serve::take::{FreeMemory, Giver, NotTaken, Reach, take_from};
use crate::memory::tuning::{A_FEW, MANY, PAGE};
use crate::sync::ThisThread;

/// Pages that move. Those given back are still mapped.
impl FreeMemory for Vec<Mapping> {
    fn put_back(
        mut self,
        cache: &'static StreamCache,
        service: &Service,
        thread: ThisThread,
        until: Until,
    ) -> Result<()> {
        self.retain(|mapping| cache.add_segment(service, thread, mapping.start(), mapping.bytes()).is_err());
        if !self.is_empty() {
            let remains = Remains::Released { mapped: self, unmapped: Vec::new() };
            // SAFETY: these mappings were taken out of the cache, and `until` is all work on the stream that it served, or
            // on the device.
            unsafe { cache.memory.retire(remains, until, &service.pool.supply) };
        }
        Ok(())
    }
}

/// Takes free pages of other caches, until there are enough.
pub(super) fn gather(growth: &mut Growth<'_>, reach: &Reach) -> Result<()> {
    let may_move = |pool: &&Arc<Pool>| pool.source().is_pages() && !pool.no_split();
    for pool in reach.pools.iter().filter(may_move) {
        if !reach.waits {
            gather_from_few(growth, reach, pool)?;
            continue;
        }
        for cache in DeviceCaches::caches_of(pool) {
            if growth.missing_pages() == 0 {
                return Ok(());
            }
            gather_from(growth, reach, pool, cache)?;
        }
    }
    Ok(())
}

/// Takes free pages of those caches of a pool that have published some. Goes on while half of them have none any more.
fn gather_from_few(growth: &mut Growth<'_>, reach: &Reach, pool: &Pool) -> Result<()> {
    let mut at_work = 0;
    loop {
        let published = pool.ledger.with_pages(MANY);
        let caches = DeviceCaches::numbered(pool, &published);
        let mut bare = published.len() - caches.len();
        for cache in caches {
            if growth.missing_pages() == 0 || at_work >= 3 * A_FEW {
                return Ok(());
            }
            match gather_from(growth, reach, pool, cache)? {
                Some(NotTaken::Bare) => bare += 1,
                Some(NotTaken::AtWork) => at_work += 1,
                Some(NotTaken::Kept) | None => {}
            }
        }
        if bare < MANY / 2 {
            return Ok(());
        }
    }
}

/// Takes free pages of one cache, or returns why there are none: at most those that are missing and a little more.
fn gather_from(
    growth: &mut Growth<'_>,
    reach: &Reach,
    pool: &Pool,
    cache: &'static StreamCache,
) -> Result<Option<NotTaken>> {
    let missing = growth.missing_pages();
    let slack = u64::from(growth.place.taken.saturating_sub(growth.gathered_pages() + missing)) * PAGE;
    let wanted = u64::from(missing) * PAGE;
    let each = growth.each;
    let select = |heap: &mut _, _: &_| {
        let taken = match each {
            Some(each) => cache.take_mappings_of(heap, missing / each, each),
            None => cache.take_mappings(heap, wanted, slack, u64::MAX),
        };
        Some(taken).filter(|taken| !taken.is_empty())
    };
    let taken = take_from(growth.request, reach, Giver { cache, pool, least: 1, drops_slabs: true }, select)?;
    Ok(taken.map(|taken| growth.gathered.push(taken)).err())
}
