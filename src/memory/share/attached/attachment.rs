//! Another process's memory, mapped here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::books;
use super::imported::Imported;
use super::news::Said;
use super::owner_process::Owner;
use crate::error::{Error, Result};
use crate::memory::device::{DeviceMemory, with_device};
use crate::memory::share::secret::Secret;
use crate::memory::share::wire::{Ask, Request};

/// Another process's block, mapped here. It has an end of its own, [`Attachment::end`]: dropped without, at the end of the
/// process, nothing is undone.
#[derive(Debug)]
pub(in crate::memory::share) struct Attachment {
    pub(super) memory: &'static DeviceMemory,
    pub(super) owner: Arc<Owner>,
    pub(super) block: u64,
    secret: Secret,
    /// The mapping's number in this process.
    pub(super) number: u64,
    /// The number of the memory that is mapped, as its owner says.
    pub(super) backing: u64,
    /// The addresses that are reserved, and how many bytes of them are mapped.
    start: u64,
    reserved: u64,
    mapped: u64,
    /// Where the block starts in them.
    lead: u64,
    pub(in crate::memory::share) bytes: u64,
    /// Whether it counts as attached, and holds the block.
    is_held: bool,
    /// Whether its owner was told that the mapping stays.
    is_told: bool,
    /// Whether the imported extents count it.
    has_extents: bool,
    imported: Vec<Arc<Imported>>,
}

/// What is to be mapped.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) owner: Arc<Owner>,
    pub(super) block: u64,
    pub(super) secret: Secret,
    pub(super) backing: u64,
    pub(super) lead: u64,
    pub(super) bytes: u64,
    /// The extents with their sizes.
    pub(super) extents: Vec<(Arc<Imported>, u64)>,
}

/// What became of an attachment whose use is over.
#[derive(Debug)]
pub(super) enum Ended {
    /// Nothing is left.
    Wholly,
    /// Its owner has the block back, and it stays mapped.
    Idle(Attachment),
    /// Something was refused; it is to be ended again.
    NotYet(Attachment, Error),
}

impl Attachment {
    /// Maps a block that this process holds for a device, and takes the hold.
    ///
    /// # Errors
    /// Those of the driver, with what it refused to undo, if there is anything, which is to be ended later. It has not taken
    /// the hold then.
    pub(super) fn map(
        memory: &'static DeviceMemory,
        found: Found,
    ) -> std::result::Result<Arc<Self>, (Error, Option<Box<Self>>)> {
        let reserved: u64 = found.extents.iter().map(|(_, bytes)| bytes).sum();
        if found.lead.checked_add(found.bytes).is_none_or(|end| end > reserved) {
            return Err((Error::internal("a shared block does not lie in its extents"), None));
        }
        let start = with_device(memory.device, |runtime| runtime.address_reserve(reserved)).map_err(|e| (e, None))?;
        let Found { owner, block, secret, backing, lead, bytes, extents } = found;
        let mut attachment = Self {
            memory,
            owner,
            block,
            secret,
            number: books::number(),
            backing,
            start,
            reserved,
            mapped: 0,
            lead,
            bytes,
            is_held: false,
            is_told: false,
            has_extents: false,
            imported: Vec::new(),
        };
        match attachment.map_all(extents) {
            Ok(()) => {
                attachment.begin_use();
                Ok(books::add(attachment))
            }
            Err(error) => {
                let is_undone = attachment.unmap().is_ok();
                Err((error, (!is_undone).then(|| Box::new(attachment))))
            }
        }
    }

    /// Makes one that stands nowhere.
    #[cfg(test)]
    pub(super) fn for_test(memory: &'static DeviceMemory, owner: &Arc<Owner>, block: u64, backing: u64) -> Self {
        Self {
            memory,
            owner: Arc::clone(owner),
            block,
            secret: Secret([0; 16]),
            number: books::number(),
            backing,
            start: 0,
            reserved: 0,
            mapped: 0,
            lead: 0,
            bytes: 1,
            is_held: false,
            is_told: false,
            has_extents: false,
            imported: Vec::new(),
        }
    }

    fn map_all(&mut self, extents: Vec<(Arc<Imported>, u64)>) -> Result<()> {
        let (device, start) = (self.memory.device, self.start);
        with_device(device, |runtime| {
            for (imported, bytes) in extents {
                // SAFETY: the addresses were just reserved, and the extent is alive and as long as its owner says.
                unsafe { runtime.memory_map(start + self.mapped, bytes, imported.extent) }?;
                self.mapped += bytes;
                self.imported.push(imported);
            }
            // SAFETY: the whole range was just mapped.
            unsafe { runtime.memory_set_access(start, self.mapped, &[device]) }
        })
    }

    pub(in crate::memory::share) const fn address(&self) -> u64 {
        self.start + self.lead
    }

    /// Returns how many extents are mapped.
    pub(super) const fn extents(&self) -> usize {
        self.imported.len()
    }

    /// Takes a hold of the block.
    pub(super) fn begin_use(&mut self) {
        self.is_held = true;
        self.has_extents = true;
        self.imported.iter().for_each(|imported| imported.begin_hold());
        self.memory.attached.fetch_add(self.bytes, Ordering::Relaxed);
    }

    /// Has the imported extents no more count as those of a block that is held; before the hold is let go.
    fn leave_extents(&mut self) {
        if std::mem::take(&mut self.has_extents) {
            self.imported.iter().for_each(|imported| imported.end_hold());
        }
    }

    /// Counts it as attached no more.
    pub(super) fn uncount(&self) {
        self.memory.attached.fetch_sub(self.bytes, Ordering::Relaxed);
    }

    const fn request(&self, ask: Ask, mapping: u64) -> Request {
        Request { ask, secret: self.secret, block: self.block, from: mapping, count: 0 }
    }

    /// Undoes what is mapped, as far as the driver allows.
    fn unmap(&mut self) -> Result<()> {
        if self.mapped > 0 {
            let (start, mapped) = (self.start, self.mapped);
            // SAFETY: the range was mapped here, and all work that uses it is done.
            with_device(self.memory.device, |runtime| unsafe { runtime.memory_unmap(start, mapped) })?;
            self.mapped = 0;
        }
        self.leave_extents();
        self.imported.clear();
        if self.reserved > 0 {
            let (start, reserved) = (self.start, self.reserved);
            // SAFETY: the reservation is whole, and nothing is mapped there any more.
            with_device(self.memory.device, |runtime| unsafe { runtime.address_free(start, reserved) })?;
            self.reserved = 0;
        }
        Ok(())
    }

    /// Lets the block go, which stays mapped if it may; else it is unmapped before.
    pub(super) fn end(mut self) -> Ended {
        if self.is_held && self.mapped > 0 && books::may_stay(&self) {
            self.leave_extents();
            match self.owner.news().map_or(Said::Never, |news| news.say(&self.request(Ask::LetGo, self.number))) {
                Said::Now => {
                    self.is_told = true;
                    self.is_held = false;
                    return Ended::Idle(self);
                }
                Said::NotYet => return Ended::NotYet(self, no_time()),
                Said::Never => {}
            }
        }
        if let Err(error) = self.unmap() {
            return Ended::NotYet(self, error);
        }
        if self.is_held {
            if !self.owner.tell(&self.request(Ask::LetGo, 0)) {
                return Ended::NotYet(self, no_time());
            }
            self.is_held = false;
            self.uncount();
        }
        if self.is_told
            && let Some(news) = self.owner.news()
        {
            news.say_in_time(self.request(Ask::Unmapped, self.number));
        }
        books::forget(&self);
        Ended::Wholly
    }
}

#[cold]
fn no_time() -> Error {
    Error::unavailable("the process that shares the memory has no time to be told")
}
