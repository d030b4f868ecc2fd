//! The mappings that other processes keep of blocks which they have let go, so that they attach them again at once.
//!
//! Such a mapping never delays this process: the block is used again, freed and moved as if it were not there. It only keeps
//! physical memory from going back to the driver. So once the block is gone, or its pool falls asleep, the process is asked to
//! end it, and who gives memory back waits a while for that.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use super::peers;
use super::shared::SharedBlock;
use crate::memory::device::DeviceMemory;
use crate::memory::pool::Pool;
use crate::memory::share::bell::ring;
use crate::memory::share::wire;
use crate::sync::lock;

/// The most mappings that one process may keep: more than any version of gpupool does, so that one that says more is put out.
const MOST: usize = 1 << 14;

/// A mapping that stays.
#[derive(Debug)]
struct Mapping {
    /// As its process numbers it.
    number: u64,
    memory: &'static DeviceMemory,
    /// The number of the block's pool.
    pool: Option<u32>,
    /// Whether it is to end.
    is_asked: bool,
}

/// What one connection has told, and is to be told.
#[derive(Debug, Default)]
struct Book {
    /// By the blocks' numbers.
    mappings: HashMap<u64, Vec<Mapping>>,
    /// The blocks' numbers, by the mappings'.
    blocks: HashMap<u64, u64>,
    /// The numbers of mappings that are to end, which it was not told yet.
    untold: Vec<u64>,
}

impl Book {
    /// Has mappings end.
    fn ask(mappings: &mut [Mapping], untold: &mut Vec<u64>, is_meant: impl Fn(&Mapping) -> bool) {
        for mapping in mappings.iter_mut().filter(|mapping| !mapping.is_asked && is_meant(mapping)) {
            mapping.is_asked = true;
            mapping.memory.elsewhere.ask(1);
            untold.push(mapping.number);
        }
    }
}

#[derive(Debug)]
struct Books {
    by_listener: BTreeMap<u64, Book>,
    next: u64,
}

static BOOKS: Mutex<Books> = Mutex::new(Books { by_listener: BTreeMap::new(), next: 1 });

/// Has the mappings of a block end that is gone.
pub(in crate::memory::share) fn end_of_block(block: u64) {
    {
        let mut books = lock(&BOOKS);
        for book in books.by_listener.values_mut() {
            if let Some(mappings) = book.mappings.get_mut(&block) {
                Book::ask(mappings, &mut book.untold, |_| true);
            }
        }
    }
    ring();
}

/// Has the mappings of a pool's blocks end, whose memory is about to go.
pub(in crate::memory) fn end_mappings_of(pool: &Pool) {
    let is_meant = |mapping: &Mapping| mapping.pool == Some(pool.number) && std::ptr::eq(mapping.memory, pool.memory);
    {
        let mut books = lock(&BOOKS);
        for book in books.by_listener.values_mut() {
            for mappings in book.mappings.values_mut() {
                Book::ask(mappings, &mut book.untold, is_meant);
            }
        }
    }
    ring();
}

/// A process that tells of its mappings by a connection, and is told by it which are to end. What it had told ends with it.
#[derive(Debug)]
pub(super) struct Listener {
    number: u64,
    pub(super) process: i32,
    pidfd: Arc<OwnedFd>,
}

impl Listener {
    /// Takes in a process that holds something; none otherwise.
    pub(super) fn new(process: i32) -> Option<Self> {
        let pidfd = peers::begin_listening(process)?;
        let mut books = lock(&BOOKS);
        let number = books.next;
        books.next += 1;
        books.by_listener.insert(number, Book::default());
        Some(Self { number, process, pidfd })
    }

    fn book<R>(&self, look: impl FnOnce(&mut Book) -> R) -> Option<R> {
        lock(&BOOKS).by_listener.get_mut(&self.number).map(look)
    }

    /// Notes that a mapping of a block stays that the process still holds; false if it has told of too many.
    pub(super) fn stays(&self, block: &SharedBlock, number: u64) -> bool {
        block.sharing.stay_mapped();
        let cache = block.block.cache;
        let pool = cache.service().map(|service| service.pool.number);
        let mapping = Mapping { number, memory: cache.memory, pool, is_asked: false };
        let add = |book: &mut Book| {
            // Told before, if it was used again meanwhile.
            if book.blocks.insert(number, block.number).is_none() {
                book.mappings.entry(block.number).or_default().push(mapping);
            }
            book.blocks.len() <= MOST
        };
        self.book(add).unwrap_or(false)
    }

    /// Notes that a mapping has ended.
    pub(super) fn has_ended(&self, number: u64) {
        let remove = |book: &mut Book| {
            let block = book.blocks.remove(&number)?;
            let mappings = book.mappings.get_mut(&block)?;
            let place = mappings.iter().position(|mapping| mapping.number == number)?;
            let ended = mappings.swap_remove(place);
            if mappings.is_empty() {
                book.mappings.remove(&block);
            }
            Some(ended)
        };
        let ended = self.book(remove).flatten();
        if let Some(ended) = ended.filter(|ended| ended.is_asked) {
            ended.memory.elsewhere.end(1);
        }
    }

    /// Returns some of the mappings that are to end, each once.
    pub(super) fn take_untold(&self) -> Vec<u64> {
        let take = |book: &mut Book| {
            let count = book.untold.len().min(wire::TOLD);
            book.untold.drain(..count).collect()
        };
        self.book(take).unwrap_or_default()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let book = lock(&BOOKS).by_listener.remove(&self.number);
        for mapping in book.into_iter().flat_map(|book| book.mappings.into_values()).flatten() {
            if mapping.is_asked {
                mapping.memory.elsewhere.end(1);
            }
        }
        peers::end_listening(self.process, &self.pidfd);
    }
}
