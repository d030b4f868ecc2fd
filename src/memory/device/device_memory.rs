//! The memory of one device: its address range, its pools, and what the allocator keeps between requests.
//!
//! Made when first needed and never dropped, so that memory can be freed at any time until the process ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, RwLock};

use crate::error::{Error, Result};
use crate::ids::Device;
use crate::memory::cache::heap::Counts;
use crate::memory::cache::thread_cache::{Service, ThreadCache};
use crate::memory::device::address_space::AddressSpace;
use crate::memory::device::budget::Budget;
use crate::memory::device::pages::{PAGE, Pages};
use crate::memory::device::retired::Retired;
use crate::memory::device::segment_source::DriverSegments;
use crate::memory::pool::id::PoolId;
use crate::memory::pool::limit;
use crate::memory::pool::state::{Pool, Rules, Source};
use crate::memory::serve::settle::EventPool;
use crate::memory_users::{self, MemoryUser};
use crate::process;
use crate::runtime;
use crate::sync::Table;
use crate::sync::{lock, read};

/// Addresses reserved for a device, as a multiple of its memory: what moves leaves holes, which are filled later.
const ROOM: u64 = 16;
/// Between these, in bytes.
const ROOM_LEAST: u64 = if cfg!(loom) { PAGE } else { 1 << 40 };
const ROOM_MOST: u64 = 16 << 40;
/// How many thread caches a device can have.
const CACHES_MAX: usize = if cfg!(loom) { 16 } else { 1 << 20 };

/// A segment's place: its address is not in the device's range, so its offsets are in a window beyond it.
#[derive(Clone, Copy, Debug)]
pub(in crate::memory) struct Segment {
    pub(in crate::memory) bytes: u64,
    pub(in crate::memory) offset: u64,
}

/// The memory of one device.
#[derive(Debug)]
pub(in crate::memory) struct DeviceMemory {
    pub(in crate::memory) device: Device,
    /// The reserved address range; 0 bytes where the device has no virtual memory.
    base: u64,
    room: u64,
    /// The device's memory, in bytes.
    total: u64,
    pub(in crate::memory) pages: Pages,
    pub(in crate::memory) space: Mutex<AddressSpace>,
    pub(in crate::memory) windows: Mutex<AddressSpace>,
    pub(in crate::memory) segments: RwLock<BTreeMap<u64, Segment>>,
    pub(in crate::memory) events: EventPool,
    pub(in crate::memory) retired: Retired,
    default: OnceLock<Arc<Pool>>,
    pools: Mutex<Pools>,
    caches: Table<OnceLock<ThreadCache>, 4>,
    cache_numbers: AtomicU32,
    /// Empty caches of pools that are gone; each is free for others once its thread has given it up.
    left: Mutex<Vec<&'static ThreadCache>>,
    /// The physical bytes of all pools together.
    pub(in crate::memory) budget: Budget,
    /// Calls of the driver's memory functions.
    pub(in crate::memory) driver_calls: AtomicU64,
    /// Pages that were moved to where they were needed.
    pub(in crate::memory) moved_pages: AtomicU64,
    /// The most that was ever told of all pools' [`Counts`], which never become less.
    pub(in crate::memory) told: (AtomicU64, AtomicU64),
    pub(in crate::memory) peers: Mutex<Vec<Device>>,
}

/// A device's pools, and what those that are gone have counted.
#[derive(Debug, Default)]
struct Pools {
    all: Vec<Arc<Pool>>,
    past: Counts,
}

/// Devices that a process can use memory of.
const DEVICES_MAX: usize = 256;
static DEVICES: [OnceLock<&'static DeviceMemory>; DEVICES_MAX] = [const { OnceLock::new() }; DEVICES_MAX];
/// One more than the highest ordinal among them.
static DEVICES_END: AtomicUsize = AtomicUsize::new(0);

fn too_many(what: &str) -> Error {
    Error::invalid_value(format!("there are too many {what}"))
}

impl DeviceMemory {
    /// The memory of the device.
    ///
    /// # Errors
    /// `ErrorKind::InvalidValue` if there is no such device; `ErrorKind::Library` if the driver refuses;
    /// `ErrorKind::Forked` in a forked child, where its locks may be held for ever.
    pub(in crate::memory) fn of(device: Device) -> Result<&'static Self> {
        process::refuse_forked()?;
        match DEVICES.get(device.ordinal()).and_then(OnceLock::get) {
            Some(memory) => Ok(memory),
            None => Self::make(device),
        }
    }

    /// The memory of the device, if it was used.
    #[inline]
    pub(in crate::memory) fn known(device: Device) -> Option<&'static Self> {
        DEVICES.get(device.ordinal())?.get().copied()
    }

    /// Every device whose memory was used.
    pub(in crate::memory) fn all() -> impl Iterator<Item = &'static Self> {
        let used = DEVICES.iter().take(DEVICES_END.load(Ordering::Acquire));
        used.filter_map(|memory| memory.get().copied())
    }

    #[cold]
    fn make(device: Device) -> Result<&'static Self> {
        runtime::device(device.ordinal() as i64)?;
        let place = DEVICES.get(device.ordinal()).ok_or_else(|| too_many("devices"))?;
        // Whole, with its default pool, before any other thread sees it.
        let memory: &'static Self = Box::leak(Box::new(Self::reserve(device)?));
        let rules = Rules { source: memory.default_source(), ..Rules::default() };
        let pool = memory.default.get_or_init(|| Arc::new(Pool::new(PoolId::NONE, 0, memory, rules, None)));
        memory.add_pool(pool);
        // Whoever sets the limit of all devices comes before, and is heeded here, or after, and finds this one.
        let limit = limit::lock();
        memory.budget.set_limit(limit.on(memory.total));
        let kept = *place.get_or_init(|| memory);
        DEVICES_END.fetch_max(device.ordinal() + 1, Ordering::AcqRel);
        drop(limit);
        if !std::ptr::eq(kept, memory) {
            // Another thread was first.
            memory.free_addresses();
        }
        static TELLS: Once = Once::new();
        TELLS.call_once(|| {
            memory_users::add(MemoryUser {
                used: crate::memory::report::stats::used,
                release: crate::memory::report::stats::release,
            })
        });
        Ok(kept)
    }

    fn new(device: Device, base: u64, room: u64, total: u64) -> Self {
        let pages = (room.max(ROOM_LEAST) / PAGE) as u32;
        Self {
            device,
            base,
            room,
            total,
            // The upper half is for the windows of segments.
            pages: Pages::new(u64::from(pages) * 2 * PAGE),
            space: Mutex::new(AddressSpace::new(0, (room / PAGE) as u32)),
            windows: Mutex::new(AddressSpace::new(pages, pages)),
            segments: RwLock::default(),
            events: EventPool::default(),
            retired: Retired::default(),
            default: OnceLock::new(),
            pools: Mutex::default(),
            caches: Table::new(CACHES_MAX),
            cache_numbers: AtomicU32::new(0),
            left: Mutex::default(),
            budget: Budget::new(None),
            driver_calls: AtomicU64::new(0),
            moved_pages: AtomicU64::new(0),
            told: Default::default(),
            peers: Mutex::default(),
        }
    }

    /// A device without memory, as small as can be: models make one for each order of their threads.
    #[cfg(all(test, loom))]
    pub(in crate::memory) fn for_model(device: Device) -> Self {
        Self::new(device, 0, PAGE, PAGE)
    }

    /// Where a pool's memory comes from unless it is told otherwise.
    pub(in crate::memory) fn default_source(&self) -> Source {
        if self.room > 0 { Source::Pages } else { Source::Segments(Arc::new(DriverSegments)) }
    }

    /// The address of an offset.
    #[inline]
    pub(in crate::memory) fn address(&self, offset: u64) -> u64 {
        if offset < self.room { self.base + offset } else { offset.wrapping_add(self.pages.delta(offset)) }
    }

    /// The offset of an address, if it lies in this device's address range.
    #[inline]
    pub(in crate::memory) fn page_offset(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.base);
        (offset < self.room).then_some(offset)
    }

    /// The offset of an address, if it lies in one of this device's segments.
    pub(in crate::memory) fn segment_offset(&self, address: u64) -> Option<u64> {
        let segments = read(&self.segments);
        let (start, segment) = segments.range(..=address).next_back()?;
        (address - start < segment.bytes).then(|| segment.offset + (address - start))
    }

    pub(in crate::memory) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of the reserved address range; what lies beyond are windows of segments.
    pub(in crate::memory) fn room(&self) -> u64 {
        self.room
    }

    /// The device's memory, in bytes.
    pub(in crate::memory) fn total(&self) -> u64 {
        self.total
    }

    pub(in crate::memory) fn default_pool(&self) -> Result<&Arc<Pool>> {
        self.default
            .get()
            .ok_or_else(|| Error::invalid_value(format!("the default pool of {} is being made", self.device)))
    }

    fn lock_pools(&self) -> MutexGuard<'_, Pools> {
        lock(&self.pools)
    }

    /// Every pool that has, or can have, memory. The default pool is the first.
    pub(in crate::memory) fn pools(&self) -> Vec<Arc<Pool>> {
        self.lock_pools().all.clone()
    }

    /// Every cache that serves one of them.
    pub(in crate::memory) fn serving(&self) -> impl Iterator<Item = &'static ThreadCache> {
        self.pools().into_iter().flat_map(|pool| pool.caches())
    }

    /// The pools, and what those that are gone have counted.
    pub(in crate::memory) fn pools_and_past(&self) -> (Vec<Arc<Pool>>, Counts) {
        let pools = self.lock_pools();
        (pools.all.clone(), pools.past)
    }

    pub(in crate::memory) fn add_pool(&self, pool: &Arc<Pool>) {
        self.lock_pools().all.push(Arc::clone(pool));
    }

    /// Forgets a pool in which nothing is live, but not what it has counted.
    pub(in crate::memory) fn remove_pool(&self, pool: &Pool, counts: Counts) {
        let mut pools = self.lock_pools();
        if let Some(place) = pools.all.iter().position(|other| other.number == pool.number) {
            pools.all.remove(place);
            pools.past.add(counts);
        }
    }

    /// The cache with this number.
    #[inline]
    pub(in crate::memory) fn cache(&self, number: u32) -> Option<&ThreadCache> {
        self.caches.get(number as usize)?.get()
    }

    /// The cache that holds the block at the offset.
    #[inline]
    pub(in crate::memory) fn cache_of(&self, offset: u64) -> Option<&ThreadCache> {
        self.cache(self.pages.cache(offset)?)
    }

    /// A cache that serves this from now on, owned by the thread.
    pub(in crate::memory) fn new_cache(&'static self, service: Service, thread: u64) -> Result<&'static ThreadCache> {
        let left = {
            let mut left = lock(&self.left);
            let place = left.iter().position(|cache| cache.adopt(thread));
            place.map(|place| left.swap_remove(place))
        };
        let cache = match left {
            Some(cache) => cache,
            None => {
                let number = self.cache_numbers.fetch_add(1, Ordering::Relaxed);
                let place = self.caches.get_or_make(number as usize).ok_or_else(|| too_many("threads and streams"))?;
                let cache = place.get_or_init(|| ThreadCache::new(number, self));
                cache.adopt(thread);
                cache
            }
        };
        cache.serve(service);
        Ok(cache)
    }

    /// Takes empty caches that no pool knows any more.
    pub(in crate::memory) fn let_go(&self, caches: Vec<&'static ThreadCache>) {
        lock(&self.left).extend(caches);
    }

    fn reserve(device: Device) -> Result<Self> {
        let total = runtime::get()?.total_memory(device)?;
        let wanted = total.saturating_mul(ROOM).clamp(ROOM_LEAST, ROOM_MOST).next_multiple_of(PAGE);
        let (base, room) = crate::memory::device::extents::reserve(device, wanted)?;
        Ok(Self::new(device, base, room, total))
    }

    fn free_addresses(&self) {
        crate::memory::device::extents::unreserve(self.device, self.base, self.room);
    }
}
