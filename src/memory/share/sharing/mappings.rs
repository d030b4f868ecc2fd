//! The mappings that other processes keep of regions whose blocks they have let go, so that they attach what stands there next at
//! once.
//!
//! Such a mapping never delays this process: the pages are used again and moved as if it were not there. It only keeps physical
//! memory from going back to the driver. So once the region has ended, the process is asked to end its mapping, and who gives
//! memory back waits a while for that.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use super::regions::{self, Region};
use crate::ids::Device;
use crate::memory::share::bell::ring;
use crate::memory::share::wire;
use crate::runtime::Extent;
use crate::sync::lock;

/// The most mappings that one process may keep: more than any version of gpupool does, so that one that says more is put out.
const MOST: usize = 0x4000;

/// A mapping that stays.
#[derive(Debug)]
struct Mapping {
    /// As its process numbers it.
    number: u64,
    region: Arc<Region>,
    /// Whether it is to end.
    is_asked: bool,
}

/// What one connection has told, and is to be told.
#[derive(Debug, Default)]
struct Book {
    /// By the regions' numbers.
    mappings: HashMap<u64, Vec<Mapping>>,
    /// The regions' numbers, by the mappings'.
    regions: HashMap<u64, u64>,
    /// The numbers of mappings that are to end, which it was not told yet.
    untold: Vec<u64>,
}

impl Book {
    /// Has the mappings of a region end; returns whether there is any.
    fn ask(&mut self, region: &Region) -> bool {
        let asked = self.untold.len();
        let mappings = self.mappings.get_mut(&region.number).into_iter().flatten();
        for mapping in mappings.filter(|mapping| !mapping.is_asked) {
            mapping.is_asked = true;
            region.memory.elsewhere.ask(1);
            self.untold.push(mapping.number);
        }
        self.untold.len() > asked
    }
}

#[derive(Debug)]
struct Books {
    by_listener: BTreeMap<u64, Book>,
    next: u64,
}

static BOOKS: Mutex<Books> = Mutex::new(Books { by_listener: BTreeMap::new(), next: 1 });

/// Ends the regions that an extent is part of, which is about to go back to the driver, and has their mappings end.
pub(in crate::memory::share) fn end_with(device: Device, extent: Extent) {
    let regions = regions::end(device, extent);
    if regions.is_empty() {
        return;
    }
    let mut is_asked = false;
    {
        let mut books = lock(&BOOKS);
        for book in books.by_listener.values_mut() {
            for region in &regions {
                is_asked |= book.ask(region);
            }
        }
    }
    if is_asked {
        ring();
    }
}

/// A connection by which a process tells of its mappings, and is told which are to end. What it had told ends with it.
#[derive(Debug)]
pub(super) struct Listener {
    number: u64,
}

impl Listener {
    pub(super) fn new() -> Self {
        let mut books = lock(&BOOKS);
        let number = books.next;
        books.next += 1;
        books.by_listener.insert(number, Book::default());
        Self { number }
    }

    fn book<R>(&self, look: impl FnOnce(&mut Book) -> R) -> Option<R> {
        lock(&BOOKS).by_listener.get_mut(&self.number).map(look)
    }

    /// Notes that a mapping of a region stays, a block of which the process still holds; false if it has told of too many.
    pub(super) fn stays(&self, region: &Arc<Region>, number: u64) -> bool {
        let add = |book: &mut Book| {
            // Told before, if it was used again meanwhile.
            if let Entry::Vacant(place) = book.regions.entry(number) {
                place.insert(region.number);
                let mapping = Mapping { number, region: Arc::clone(region), is_asked: false };
                book.mappings.entry(region.number).or_default().push(mapping);
                // Not while it is held, by what this process knows; then it is heard of here.
                if region.is_ended() {
                    book.ask(region);
                }
            }
            book.regions.len() <= MOST
        };
        self.book(add).unwrap_or(false)
    }

    /// Notes that a mapping has ended.
    pub(super) fn has_ended(&self, number: u64) {
        let remove = |book: &mut Book| {
            let region = book.regions.remove(&number)?;
            let mappings = book.mappings.get_mut(&region)?;
            let place = mappings.iter().position(|mapping| mapping.number == number)?;
            let ended = mappings.swap_remove(place);
            if mappings.is_empty() {
                book.mappings.remove(&region);
            }
            Some(ended)
        };
        let ended = self.book(remove).flatten();
        if let Some(ended) = ended.filter(|ended| ended.is_asked) {
            ended.region.memory.elsewhere.end(1);
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
                mapping.region.memory.elsewhere.end(1);
            }
        }
    }
}
